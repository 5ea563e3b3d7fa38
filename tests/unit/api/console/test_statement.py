"""The statement of a customer, from the ledger."""

import re
from contextlib import closing
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient

from schemas.topics import LOYALTY_DECISIONS
from services.codecs.records import mark_of
from services.domain.entries import Kind
from services.ledger.queries import LedgerQueries
from services.settings import Settings
from tests.support.builders import entry
from tests.support.clusters import Instance
from tests.support.ledger import Ledger
from tests.unit.api.console.console_customer import BALANCE, CARD


def test_the_statement_loads_again_until_the_ledger_has_the_entries(
    client: TestClient, instance: Instance, ledger: Ledger
) -> None:
    """The ledger does not answer. Then it has no entry of the new customer, then an older one, and then all of them."""

    def statement(kind: str = "") -> tuple[str, bool]:
        answer = client.get("/console/customer/entries", params={"card": CARD, "kind": kind})
        again = r'hx-get="/console/customer/entries.*\bevery 2s'
        return answer.text, "again" in answer.headers.get("hx-trigger", "") or bool(re.search(again, answer.text))

    shown, loads_again = statement()
    assert ("The ledger is unavailable" in shown, loads_again) == (True, True)
    with closing(LedgerQueries(Settings(ledger_url=ledger.url))) as queries:
        instance.app.state.dependencies.ledger = queries
        shown, loads_again = statement()
        assert ("not in the ledger yet" in shown, loads_again) == (True, True)
        for sequence, is_behind in ((1, True), (3, False)):
            opened = BALANCE["OpenedTime"]
            ledger.append((CARD, entry(sequence, 100, time=opened, opened_time=opened, total=100)))
            shown, loads_again = statement()
            assert ("1.00" in shown, is_behind) == (True, loads_again)
            shown, loads_again = statement("adjusted")
            assert ("No entries." in shown, is_behind) == (True, loads_again)
        with patch.object(queries, "page", wraps=queries.page) as read:
            statement()
        assert 1 == read.call_count


@pytest.mark.parametrize(
    ("later", "offered"),
    [
        ([(Kind.EARNED, 300, "p3")], ["r2"]),
        ([(Kind.REDEEMED, 0, "c-r2")], []),
        ([(Kind.REDEEMED, 0, "c-r2"), (Kind.RESERVED, 200, "r4")], ["r4"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.REDEEMED, 300, "c-r2")], ["r3"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.VOIDED, 300, "c-r3")], ["r2"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.LAPSED, 300, "r2")], ["r3"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.VOIDED, 300, "unknown")], ["r3", "r2"]),
    ],
)
def test_the_statement_offers_no_end_for_reservations_that_have_ended(
    client: TestClient, instance: Instance, ledger: Ledger, later: list[tuple[Kind, int, str]], offered: list[str]
) -> None:
    """The decision of a capture or a void names its redemption, and the entry of a lapse does it, too. Two reservations
    have the same points. If the decision is not known, either one may be open. With a filter, the page does not show
    whether the reservations have ended.
    """
    kinds = [(Kind.EARNED, 0, "p1"), (Kind.RESERVED, 300, "r2"), *later]
    for number, (kind, reserved, event) in enumerate(kinds, start=1):
        change = {"kind": kind, "total": 900, "reserved": reserved, "event_id": event}
        ledger.append((CARD, entry(number, 0, time=BALANCE["OpenedTime"], opened_time=BALANCE["OpenedTime"], **change)))
    opened = {"CustomerCardNo": CARD, "OpenedTime": BALANCE["OpenedTime"]}
    for redemption in ("r2", "r3"):
        mark = {**mark_of(f"c-{redemption}", "capture", ""), "Sequence": 2, "Status": "done"}
        instance.write(LOYALTY_DECISIONS, f"c-{redemption}", mark | opened | {"RedemptionID": redemption})
    with closing(LedgerQueries(Settings(ledger_url=ledger.url))) as queries:
        instance.app.state.dependencies.ledger = queries
        pages = [
            client.get("/console/customer/entries", params={"card": CARD, "kind": kind}).text
            for kind in ("", "reserved")
        ]
    shown, filtered = (re.findall(r"/console/customer/capture\?[^\"]+redemption=(\w+)", page) for page in pages)
    assert (offered, []) == (shown, filtered)
