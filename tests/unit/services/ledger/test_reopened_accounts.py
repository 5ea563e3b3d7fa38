"""Accounts that are opened after an erasure: every entry has its own key in the ledger, and the audit agrees."""

from dataclasses import replace
from decimal import Decimal

import orjson
import pytest

from services.audit.comparison import Coverage, compare
from services.audit.facts import Facts, Source
from services.codecs.records import balance_record
from services.domain.account.processor import process
from services.domain.entries import Entry
from services.domain.events import Adjust, Erase, Event, Purchase
from services.domain.programme import Programmes
from services.state_stores.catalogue import balance_body
from tests.support.ledger import PSEUDONYMS, Ledger, expected, stored

CARD = "4711"
PROGRAMMES = Programmes()


def purchase(time: int, number: str) -> Purchase:
    return Purchase(time, number, Decimal(5_000))


TWICE_IN_ONE_MILLISECOND = [
    [Erase(append_time=5_000, command_id="E1"), Erase(append_time=5_000, command_id="E2")],
    [purchase(5_001, "I1")],
    [purchase(6_001, "I2")],
]
LATE_INVOICES = [
    [purchase(5_000, "I1")],
    [Erase(append_time=9_000, command_id="E1")],
    [purchase(6_000, "I2")],
    [Erase(append_time=9_000, command_id="E2")],
    [purchase(7_000, "I3"), Adjust(append_time=9_001, command_id="A1", points=5, reason="gift", actor="clerk")],
]


@pytest.mark.parametrize("batches", [TWICE_IN_ONE_MILLISECOND, LATE_INVOICES])
def test_no_entry_of_a_later_account_is_lost(ledger: Ledger, batches: list[list[Event]]) -> None:
    """Erasures in one millisecond and late invoices give versions that increase, and the ledger has each entry."""
    state, entries = None, list[Entry]()
    for batch in batches:
        outcome = process(state, batch, PROGRAMMES, CARD)
        state = outcome.state
        entries += outcome.entries
    versions = [entry.version for entry in entries]
    assert sorted(set(versions)) == versions

    assert len(entries) == ledger.append(*((CARD, entry) for entry in entries)).entries

    assert expected((CARD, entry) for entry in entries) == stored(ledger.engine)
    assert [] == ledger.gaps()
    assert [*[None] * (len(ledger.cards()) - 1), CARD] == ledger.cards()
    opened = entries[-1].opened_time
    hidden = [entry if entry.opened_time == opened else replace(entry, reason="") for entry in entries]
    facts = Facts(
        events=[event for batch in batches for event in batch],
        recorded={Source.LOYALTY: entries, Source.LEDGER: hidden},
        balance=orjson.loads(balance_body(balance_record(CARD, entries[-1]))),
        state=outcome.account,
    )
    coverage = Coverage(frozenset(Source), 0, 0, 0, 10_000)
    verdict, _ = compare(CARD, facts, PROGRAMMES, coverage, PSEUDONYMS.of)
    assert ([], entries[-1].version) == (verdict.differences, verdict.version)
