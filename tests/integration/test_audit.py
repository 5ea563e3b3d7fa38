"""The audit with a real broker, ledger, API and Spark state reports every falsified value and nothing else."""

import json
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
import typer
from sqlalchemy import delete, func, select

from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.reconciliation.audit import audit, main
from schemas import topics
from services.codecs.events import forget_record
from services.codecs.records import balance_record, entry_from_notification, notification_record
from services.domain.entries import Kind
from services.domain.events import Adjust, Capture, Erase, Reserve, Transfer
from services.ledger.database import writing_engine
from services.ledger.tables import ACCOUNT, ENTRY
from services.messaging.avro import encoder
from services.pseudonyms import pseudonyms
from services.sql.database import Database
from tests.support.builders import IDS, invoice
from tests.support.kafka import publish, publish_commands, publish_invoices, records_of
from tests.support.processes import (
    POLL_SECONDS,
    ApiProcess,
    reconciliation_context,
    run_to_the_end,
    running_ledger,
)

A, B, C = "CARD8001A", "CARD8002B", "CARD8003C"


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"timer_interval": timedelta(seconds=1)})


@pytest.mark.usefixtures("topics_created")
@pytest.mark.timeout(1500)
def test_the_audit_reports_exactly_the_falsified_values(spark, settings, tmp_path, monkeypatch, capsys):
    """After purchases and commands there is no difference. Then one value in each place is falsified and found."""
    publish_invoices(
        settings, invoice("I1", A, 1000.0), invoice("I2", B, 50.0), invoice("I3", C, 10.0), invoice("I1", A, 1000.0)
    )
    publish_commands(
        settings,
        (A, Reserve(append_time=0, command_id="reserve", points=300)),
        (B, Reserve(append_time=0, command_id="too-much", points=30_000)),
        (C, Adjust(append_time=0, command_id="adjust", points=-10, reason="a mistake", actor="alice")),
    )
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    publish_invoices(settings, invoice("I2", C, 900.0), invoice("I4", A, -500.0, OriginalInvoiceNumber="I1"))
    # This return waits for its purchase, so its card has no account.
    publish_invoices(settings, invoice("I5", "no-member", 20.0, CustomerType="NONPRIME", OriginalInvoiceNumber="I6"))
    publish_commands(
        settings,
        (A, Capture(append_time=0, command_id="capture", redemption_id="reserve")),
        (A, Transfer(append_time=0, command_id="gift", points=100, counterparty=B)),
        (C, Erase(append_time=0, command_id="erase")),
    )
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    run_to_the_end(spark, settings, LOYALTY_QUERY)  # process the credit of the transfer
    publish_invoices(settings, invoice("I9", A, 77.0))  # not processed yet, so no difference
    number = len(records_of(settings, topics.LOYALTY))
    with ApiProcess(settings, tmp_path / "api.log") as api, running_ledger(settings, number, tmp_path / "ledger.log"):
        api.wait_until_ready()
        context = reconciliation_context(spark, settings)
        report = audit(context, api.url, (), archive=False)
        assert ([], [], []) == (report.differences, report.unreadable, report.notes)
        assert (3, number, 0) == (report.accounts, report.entries, report.not_recomputed)
        assert {"loyalty topic": number, "ledger": number, "served balance": 2, "Spark's state": 2} == report.compared
        served = sum(Decimal(api.balance(card).json()["TotalLoyaltyPoints"]) for card in (A, B))
        with closing(Database(settings)) as database:
            assert [{"Points": served}] == database.run("SELECT sum(Points) AS Points FROM liability").to_pylist()

        lose_a_return(spark, settings)
        falsify(settings)
        api.wait_until_ready()
        # The command would start a second Spark. test_security.py does that.
        monkeypatch.setattr("pipelines.reconciliation.audit.open_context", lambda *_: nullcontext(context))
        capsys.readouterr()
        with pytest.raises(typer.Exit) as ended:
            main(api=api.url, as_json=True)
        (run,) = api.http.get("/v1/audits").json()["runs"]
    assert 1 == ended.value.exit_code
    differences = json.loads(capsys.readouterr().out)["differences"]
    found = {(each["whose"], each["where"], each["what"]) for each in differences}
    assert {
        (A, "ledger", "entry 2 (reserved 0.00) is missing"),
        (B, "events", "no such event: forged, of the recorded entry 4"),
        (B, "loyalty topic", "entry 4 (adjusted 500.00) is one too many"),
        (B, "ledger", "entry 4 (adjusted 500.00) is one too many"),
        (A, "served balance", "no entry has its sequence 9"),
        (A, "events", "not forwarded: return R1 of invoice I1"),
    } <= found
    assert {A, B} == {whose for whose, *_ in found}
    of = pseudonyms(settings.pseudonym_key_file).of
    assert ("differs", len(differences)) == (run["outcome"], run["differences"])
    expected = {(of(whose), where, what) for whose, where, what in found}
    assert expected == {(each["customer"], each["place"], each["difference"]) for each in run["findings"]}


def lose_a_return(spark, settings):
    """Let the index of invoices forget I1, and return it without a card. No account gets that return.

    The account of I2 has not read the command with its return yet, which is no difference.
    """
    forget = encoder(topics.LOYALTY_COMMANDS, IDS)(forget_record(A, "I1"))
    publish(settings, topics.LOYALTY_COMMANDS, [(A.encode(), forget)])
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    for number, original in (("R1", "I1"), ("R2", "I2")):
        guest = invoice(number, None, -10.0, CustomerType="GUEST", OriginalInvoiceNumber=original)
        publish_invoices(settings, guest)
    run_to_the_end(spark, settings, LOYALTY_QUERY)


def falsify(settings):
    """Delete a row of the ledger, add an entry without an event, and write a balance without purchases."""
    engine = writing_engine(settings.ledger_url)
    with engine.begin() as connection:
        account = connection.scalar(select(ACCOUNT.c.id).where(ACCOUNT.c.card == A))
        connection.execute(delete(ENTRY).where(ENTRY.c.account_id == account, ENTRY.c.sequence == 2))
    last = max(
        (each for each in map(entry_of_b, records_of(settings, topics.LOYALTY)) if each), key=lambda e: e.sequence
    )
    forged = replace(
        last,
        sequence=last.sequence + 1,
        kind=Kind.ADJUSTED,
        points=50_000,
        total=last.total + 50_000,
        event_id="forged",
    )
    publish(
        settings,
        topics.LOYALTY,
        [(B.encode(), encoder(topics.LOYALTY, IDS)(notification_record(B, forged)))],
    )
    balance = balance_record(A, replace(last, sequence=9, total=1_000_000))
    publish(settings, topics.LOYALTY_BALANCES, [(A.encode(), encoder(topics.LOYALTY_BALANCES, IDS)(balance))])
    with engine.connect() as connection:
        is_in = select(func.count()).select_from(ENTRY).where(ENTRY.c.event_id == forged.event_id)
        while not connection.scalar(is_in):
            connection.rollback()
            time.sleep(POLL_SECONDS)
    engine.dispose()


def entry_of_b(record):
    return entry_from_notification(record) if record["CustomerCardNo"] == B else None
