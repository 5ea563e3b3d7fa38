"""This release continues the data of release 0.1: its topics, the checkpoint of its loyalty query, its ledger and its
stores, which it builds again.
"""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select

from pipelines.queries.loyalty import LOYALTY_QUERY
from schemas import topics
from services.domain.events import Replace
from services.ledger.database import reading_engine
from services.ledger.tables import ENTRY
from tests.support.builders import invoice
from tests.support.kafka import last_balances_of, publish_commands, publish_invoices, records_of
from tests.support.processes import ApiProcess, run_to_the_end, running_ledger
from tests.support.release_data import continue_release
from tests.support.release_maker import LINES

DATA = Path(__file__).parents[1] / "data" / "release-0.1" / "data.tar.xz"
A, B, C = "ABC"  # the cards of release 0.1
D = "CARD4D"


@pytest.mark.usefixtures("topics_created")
def test_the_data_of_release_0_1_continue(spark, settings, tmp_path):
    """Totals are those of all events, before and after the upgrade.

    The loyalty query continues the accounts and the remembered numbers, and begins an index of invoices. The ledger and
    the API continue their data. ``tests.support.release_maker`` has the events of release 0.1.
    """
    settings = continue_release(DATA, tmp_path / "release", settings)
    settings = settings.model_copy(update={"timer_interval": timedelta(seconds=1)})
    before = ledger_entries(settings)
    assert before
    publish_invoices(
        settings,
        invoice("I1", B, 5_000.0),  # a used number
        invoice("R1", A, -300.0, OriginalInvoiceNumber="I1", InvoiceLineItems=[line(LINES[0], -1)]),
        invoice("I6", B, 400.0),
        # Without a card, so it needs the index of invoices.
        invoice("R6", None, -100.0, CustomerType="GUEST", OriginalInvoiceNumber="I6"),
    )
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    publish_commands(settings, (B, Replace(append_time=0, command_id="replace", counterparty=D, reason="lost")))
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    run_to_the_end(spark, settings, LOYALTY_QUERY)  # D gets the account

    # Release 0.1: 1,000 and 200 bought, 100 returned, 10 given, 3 redeemed, 1 transferred. Now 300 of I1 are returned.
    points = {A: points_of(1000 + 200 - 100 - 300) + 10 - 3 - 1}
    # 50 bought and 1 received. Release 0.1 did not read 30. Then 400 bought, and 100 returned.
    points[D] = points_of(50 + 30 + 400 - 100) + 1
    balances = last_balances_of(settings)
    assert points == {card: balances[card]["TotalLoyaltyPoints"] for card in points}
    assert points[A] == balances[A]["AvailableLoyaltyPoints"], "points are released and reservations lapse"
    assert (Decimal(0), D) == (balances[B]["TotalLoyaltyPoints"], balances[B]["MovedTo"])
    assert C not in balances, "erased by release 0.1"
    after = records_of(settings, topics.LOYALTY)
    log = tmp_path / "api.log"
    with ApiProcess(settings, log) as api, running_ledger(settings, len(after), tmp_path / "ledger.log"):
        api.wait_until_ready()
        assert {card: f"{each}" for card, each in points.items()} == api.points([A, C, D])
    # Release 0.1 skipped balances of newer schemas, so its stores may lack them.
    assert "store rebuilt from its changelog" in log.read_text()
    entries = ledger_entries(settings)
    assert before < entries
    assert len(after) == len(entries)


def ledger_entries(settings):
    """All rows."""
    engine = reading_engine(settings.ledger_url)
    with engine.connect() as connection:
        rows = {tuple(row) for row in connection.execute(select(ENTRY))}
    engine.dispose()
    return rows


def points_of(amount):
    return Decimal(amount) * Decimal("0.02")


def line(bought, quantity):
    return {**bought, "ItemQty": quantity, "TotalValue": bought["ItemPrice"] * quantity}
