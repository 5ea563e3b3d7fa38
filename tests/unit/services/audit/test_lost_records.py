"""Records that retention has deleted are no difference. Other missing records are."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.audit.comparison import Coverage, compare
from services.audit.facts import Facts, Source
from services.domain.events import Adjust, Capture, Erase, Purchase, Reserve, Transfer
from services.domain.programme import DAY
from tests.support.account_histories import CARD, HISTORIES, START, processed
from tests.unit.services.audit.facts_and_differences import (
    EVERYTHING,
    PROGRAMMES,
    balance,
    facts_of,
    found,
    judged,
    pseudonymize,
)


@pytest.mark.parametrize(
    ("lost", "first", "is_recomputed"),
    [
        ("I1", {}, True),
        ("I1", {"first_invoice": START + 2}, True),
        ("I1", {"first_invoice": START + 3}, False),
        ("C1", {"first_invoice": START + 9}, True),
        ("C1", {"first_command": START + 3}, True),
        ("C1", {"first_command": START + 4}, False),
        ("", {"first_invoice": START + 9, "first_command": START + 9}, True),
    ],
)
def test_events_of_before_the_first_record_of_their_topic_are_lost(lost, first, is_recomputed):
    """The topic was created again. The audit must not recompute an account that lacks its older events."""
    events = [Purchase(START + 2, "I1", Decimal(100)), Adjust(append_time=START + 3, command_id="C1", points=5)]
    facts = facts_of(processed([[each] for each in events], PROGRAMMES))
    facts.events = [event for event in events if event.event_id != lost]
    coverage = replace(EVERYTHING, **first)
    assert is_recomputed == compare(CARD, facts, PROGRAMMES, coverage, pseudonymize)[0].recomputed


@given(HISTORIES, st.data())
def test_entries_that_topic_and_ledger_have_lost_are_no_difference(history, data):
    """Retention has deleted the first entries from the topic. The ledger has all entries, or began after the loss."""
    facts = facts_of(history)
    lost = data.draw(st.integers(0, len(history.entries)))
    appended = max((entry.time for entry in history.entries[: lost + 1]), default=START) + 1
    topic_from = appended if lost < len(history.entries) else EVERYTHING.now
    coverage = replace(EVERYTHING, topic_from=topic_from)
    facts.recorded[Source.LOYALTY] = history.entries[lost:]
    assert (True, False, []) == judged(facts, history.programmes, coverage)

    facts.recorded[Source.LEDGER] = history.entries[lost:]
    assert (not lost, lost > 0, []) == judged(facts, history.programmes, coverage)


def test_a_topic_that_was_created_again_lacks_older_entries():
    """The topic begins at offset 0 and looks complete. The ledger is restored from a backup. It has only the first
    entry of the card, or no entry of a card that has sent points to another card and was erased later.
    """
    first, second = (Purchase(START + n, f"I{n}", Decimal(100)) for n in (1, 2))
    gift = Transfer(append_time=START + 1, command_id="C1", points=100, counterparty="4712")
    erase = Erase(append_time=START + 2, command_id="C2")
    for events, in_backup in (([first, second], 1), ([first, gift, erase], 0)):
        history = processed([[each] for each in events], PROGRAMMES)
        served = balance(history.entries[-1]) if in_backup else None
        facts = Facts(list(history.events), {Source.LEDGER: history.entries[:in_backup]}, served)
        for first_entry, lacks_entries in ((START + 2, False), (START + 3, True)):
            compared = frozenset({Source.LOYALTY, Source.LEDGER})
            coverage = replace(EVERYTHING, compared=compared, first_entry=first_entry)
            assert (not lacks_entries, lacks_entries) == judged(facts, PROGRAMMES, coverage)[:2]


@pytest.mark.parametrize(
    ("bought", "is_recorded"),
    [
        ([], False),
        ([Purchase(START + 1, "I1", Decimal(100))], False),
        ([Purchase(START + 1, "I1", Decimal(100))], True),
    ],
    ids=["unknown card", "new account", "known account"],
)
def test_a_waiting_erasure_does_not_show_lost_entries(bought, is_recorded):
    """The topic was created again, and the ledger is complete. The last events came while the pipeline stood."""
    facts = facts_of(processed([bought], PROGRAMMES)) if is_recorded else Facts(bought.copy())
    facts.events.append(Erase(append_time=START + 2, command_id="C1"))
    compared = frozenset({Source.LOYALTY, Source.LEDGER})
    coverage = replace(EVERYTHING, compared=compared, first_entry=EVERYTHING.now)
    assert (True, False, []) == judged(facts, PROGRAMMES, coverage)


@pytest.mark.parametrize(
    ("topic_from", "differences"),
    [(START + 3, []), (START + 2, [(Source.LOYALTY, "entries 3 to 4 are missing", False)])],
)
def test_only_retention_may_delete_entries(topic_from, differences):
    """The ledger lacks the entries 3 and 4, too. If the topic must still have them, that is a difference."""
    history = processed([[Purchase(START + n, f"I{n}", Decimal(100))] for n in range(1, 6)], PROGRAMMES)
    facts = facts_of(history)
    for entries in facts.recorded.values():
        del entries[2:4]
    assert (False, True, differences) == judged(facts, PROGRAMMES, replace(EVERYTHING, topic_from=topic_from))


def test_a_balance_that_is_newer_than_the_entries_does_not_show_lost_entries(facts):
    """An interrupted micro-batch has written the balance, but not its entry. The topic has deleted nothing."""
    facts.recorded = {source: entries[:2] for source, entries in facts.recorded.items()}
    facts.state = None
    coverage = replace(EVERYTHING, compared=frozenset({Source.LOYALTY, Source.LEDGER}), topic_from=START + 3)
    assert (True, False, []) == judged(facts, PROGRAMMES, coverage)
    coverage = replace(coverage, topic_from=START + 4)
    assert (False, True, []) == judged(facts, PROGRAMMES, coverage)


@pytest.mark.parametrize(("balance_of", "is_recomputed"), [(2, True), (3, False)])
def test_an_account_without_entries_needs_all_events_of_its_balance(facts, three, balance_of, is_recomputed):
    """Retention has deleted all entries and the first events. The events that are left do not give the balance."""
    facts.recorded, facts.state = {}, None
    facts.balance = balance(three.entries[balance_of - 1])
    facts.events = facts.events[:2]
    coverage = replace(
        EVERYTHING,
        compared=frozenset({Source.LOYALTY}),
        topic_from=EVERYTHING.now,
        events_from=START + 1,
        record_from=EVERYTHING.now,
    )
    assert is_recomputed == judged(facts, PROGRAMMES, coverage)[0]


def test_an_entry_without_an_event_is_found_although_entries_are_missing(facts, three):
    """A forged entry has a sequence number that is too high. The events show that it has none."""
    facts.recorded[Source.LEDGER].append(replace(three.entries[-1], sequence=9, event_id="forged"))
    coverage = replace(EVERYTHING, topic_from=START + 99)
    what = "no such event: forged, of the recorded entry 9"
    assert (False, True) == judged(facts, PROGRAMMES, coverage)[:2]
    assert (Source.EVENT, what, False) in found(facts, coverage=coverage)


def test_accounts_without_their_old_events_are_not_recomputed(facts):
    """The audit then compares the sources with each other."""
    facts.events = facts.events[2:]
    gone = replace(EVERYTHING, events_from=START + 3)

    assert (False, False, []) == judged(facts, PROGRAMMES, gone)

    facts.balance = {**facts.balance, "TotalLoyaltyPoints": "99.00"}
    assert [Source.BALANCE] == [each.where for each in found(facts, coverage=gone)]


@pytest.mark.parametrize("later", [[], [Purchase(START + 20 * DAY, "I5", Decimal(100))]])
@pytest.mark.parametrize(
    "deleted",
    [
        [
            Reserve(append_time=START + 3, command_id="r", points=9_000),
            Capture(append_time=START + 4, command_id="c", redemption_id="r"),
        ],
        [Erase(append_time=START + 3, command_id="e")],
        [Erase(append_time=START + 3, command_id="e"), Purchase(START + 4, "I3", Decimal(100))],
    ],
    ids=["redeemed", "erased", "opened again"],
)
@pytest.mark.parametrize("events_from", [0, START + 10 * DAY])
def test_an_entry_that_was_sent_again_changes_nothing_without_a_ledger(events_from, deleted, later):
    """A replay of a webhook's dead letter brings the entry back after Kafka has deleted the entries after it."""
    before = [Purchase(START + 1, "I1", Decimal(100)), Purchase(START + 2, "I2", Decimal(5_000))]
    history = processed([[event] for event in (*before, *deleted, *later)], PROGRAMMES)
    facts = facts_of(history)
    facts.events = [event for event in facts.events if event.append_time >= events_from]
    recent = [entry for entry in history.entries if entry.time >= START + 10 * DAY]
    coverage = Coverage(
        frozenset(Source) - {Source.LEDGER}, events_from, START + 10 * DAY, START + 10 * DAY, START + 21 * DAY
    )
    results = []
    for repeated in ([], [history.entries[1]]):
        facts.recorded = {Source.LOYALTY: [*recent, *repeated]}
        results.append(compare(CARD, facts, PROGRAMMES, coverage, pseudonymize))
    assert results[0] == results[1]


def test_totals_of_entries_with_a_gap_between_them_are_no_difference(facts, three):
    """Without the ledger, the topic has an entry that was sent again to a webhook, and the newest entries."""
    facts.recorded = {Source.LOYALTY: [three.entries[0], three.entries[2]]}
    facts.events = facts.events[2:]
    since = START + 3
    coverage = replace(EVERYTHING, events_from=since, record_from=since, topic_from=since)
    coverage = replace(coverage, compared=EVERYTHING.compared - {Source.LEDGER})
    assert [] == found(facts, coverage=coverage)

    facts.recorded[Source.LOYALTY].insert(1, replace(three.entries[1], total=500))
    wrong = ["entry 2 has the total 5.00", "entry 3 has the total 6.00"]
    assert wrong == [each.what.partition(",")[0] for each in found(facts, coverage=coverage)]


@pytest.mark.parametrize("lost", [1, 2])
def test_without_a_ledger_a_lost_entry_is_found(facts, lost):
    """The sources have all events, so no retention explains the loss."""
    entries = facts.recorded[Source.LOYALTY]
    facts.recorded = {Source.LOYALTY: [each for each in entries if each.sequence != lost]}
    coverage = replace(EVERYTHING, compared=frozenset(Source) - {Source.LEDGER})
    not_processed = [each.what for each in found(facts, coverage=coverage) if each.where is Source.EVENT]
    assert [f"not processed: I{lost}"] == not_processed
