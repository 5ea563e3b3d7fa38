"""The audit finds facts that differ from the events, and marks differences that may settle."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.audit.facts import Facts, Source
from services.domain.account.model import PastPurchase
from services.domain.entries import Kind
from services.domain.events import Erase, Purchase
from services.domain.formats import short_time_text
from services.domain.programme import DAY, Programme, Programmes
from tests.support.account_histories import HISTORIES, START, processed
from tests.unit.services.audit.facts_and_differences import EVERYTHING, PROGRAMMES, balance, facts_of, found


@given(HISTORIES)
def test_results_of_the_processor_have_no_differences(history):
    """The results of the processor have no differences in any source."""
    assert [] == found(facts_of(history), history.programmes)


@given(HISTORIES, st.data())
def test_a_changed_entry_is_found(history, data):
    """If one field of an entry differs in one source, the audit names this source."""
    assume(history.entries)
    facts = facts_of(history)
    where = data.draw(st.sampled_from([Source.LOYALTY, Source.LEDGER]))
    at = data.draw(st.integers(0, len(history.entries) - 1))
    field, change = data.draw(st.sampled_from([("points", 1), ("total", -5), ("available", 1), ("expires_time", 7)]))
    entry = facts.recorded[where][at]
    facts.recorded[where][at] = replace(entry, **{field: getattr(entry, field) + change})

    assert any(
        difference.where == where and field in difference.what for difference in found(facts, history.programmes)
    )


@given(HISTORIES, st.data())
def test_a_lost_event_is_found(history, data):
    """The audit finds an event that is missing in the inputs."""
    ids = [entry.event_id for entry in history.entries if entry.event_id and entry.kind is not Kind.LAPSED]
    assume(ids)
    lost = data.draw(st.sampled_from(ids))
    facts = facts_of(history)
    facts.events = [event for event in facts.events if event.event_id != lost]

    assert any(lost in each.what for each in found(facts, history.programmes) if each.where is Source.EVENT)


def test_a_doubled_entry_is_found(facts, three):
    """A second copy of an entry under the next sequence number is one too many."""
    again = replace(three.entries[-1], sequence=4, total=800, available=800)
    facts.recorded[Source.LOYALTY].append(again)

    (difference,) = found(facts)

    assert (Source.LOYALTY, "entry 4 (earned 2.00) is one too many", False) == difference


def test_two_entries_of_one_sequence_are_found(facts, three):
    """Two different entries with one sequence number are a difference. Two equal ones are not."""
    facts.recorded[Source.LOYALTY] += [three.entries[1], replace(three.entries[1], reason="forged")]

    assert ["there are two different entries 2"] == [difference.what for difference in found(facts)]


def test_a_missing_row_of_the_ledger_is_found(facts, three):
    """A missing row in the middle is a difference. Missing rows at the end may settle."""
    del facts.recorded[Source.LEDGER][1:]
    assert [(Source.LEDGER, True)] * 2 == [(each.where, each.settles) for each in found(facts)]

    facts.recorded[Source.LEDGER].append(three.entries[2])
    assert [(Source.LEDGER, "entry 2 (earned 2.00) is missing", False)] == found(facts)


def test_a_purchase_that_was_not_processed_is_found(facts):
    """The audit names an invoice without an entry."""
    facts.events.append(Purchase(START + 4, "I4", Decimal(5)))

    assert [(Source.EVENT, "not processed: I4", False)] == found(facts)


def test_a_wrong_balance_is_found(facts, three):
    """The audit names a served balance with wrong points. An older balance may settle."""
    facts.balance = {**facts.balance, "TotalLoyaltyPoints": "99.00"}
    assert [(Source.BALANCE, "of sequence 3: TotalLoyaltyPoints is 99.00 and should be 6.00", False)] == found(facts)

    facts.balance = balance(three.entries[1])
    assert [(Source.BALANCE, "is that of sequence 2, not 3", True)] == found(facts)

    facts.balance = None
    assert [(Source.BALANCE, "there is no balance, but entry 3", True)] == found(facts)


@pytest.mark.parametrize(("number", "names"), [(1, "P0"), (3, "P0, P1, P2"), (5, "P0, P1, P2 and 2 more")])
def test_a_difference_names_invoices_without_their_baskets(facts, number, names):
    """The topic audit-runs keeps the text, and an erasure does not reach it."""
    facts.state = facts.state.copy()
    bought = PastPurchase(START, Decimal(1), 2, 0, items={"sofa": Decimal(1)})
    facts.state.purchases |= {f"P{each}": bought for each in reversed(range(number))}
    (difference,) = found(facts, coverage=replace(EVERYTHING, now=START + DAY))
    assert (Source.STATE, f"at sequence 3: purchases differs at {names}", False) == difference


def test_no_difference_shows_a_card(facts):
    """The topic audit-runs keeps the text, and an erasure does not reach it."""
    facts.state = replace(facts.state, moved_to="CARD17", former_cards=("CARD18",))
    facts.balance = {**facts.balance, "CustomerCardNo": "CARD19", "MovedTo": "CARD20"}
    assert [
        "of sequence 3: CustomerCardNo differs, MovedTo differs",
        "at sequence 3: moved_to differs, former_cards differs",
    ] == [each.what for each in found(facts)]


def test_a_difference_in_lots_says_how_many_points_are_wrong(facts):
    expected = facts.state.lots
    wrong = {terms: points + 1 for terms, points in expected.items()}
    facts.state = replace(facts.state, lots=wrong)
    (difference,) = found(facts, coverage=replace(EVERYTHING, now=START + DAY))
    assert f"at sequence 3: lots is {wrong} and should be {expected}" == difference.what


def test_a_wrong_state_is_found(facts, three):
    """The audit names wrong fields of Spark's account. An account with another sequence number may settle, and so may
    that of another opening.
    """
    facts.state = three.account.copy()
    facts.state.debt = 1
    assert [(Source.STATE, "at sequence 3: debt is 0.01 and should be 0.00", False)] == found(facts)

    facts.state.sequence = 2
    assert [(Source.STATE, "has sequence 2, not 3", True)] == found(facts)

    facts.state = replace(three.account, opened_time=START)
    opened = "the account that was opened at"
    expected = f"has sequence 3 of {opened} {short_time_text(START)}, not 3 of {opened} {short_time_text(START + 1)}"
    assert [(Source.STATE, expected, True)] == found(facts)


def test_a_timer_that_has_not_run_is_found():
    """The audit finds a release that is overdue, but only after its time."""
    programmes = Programmes((Programme(pending=DAY),))
    history = processed([[Purchase(START, "I1", Decimal(100))]], programmes)
    facts = facts_of(history)

    assert [] == found(facts, programmes, replace(EVERYTHING, timers_until=START + DAY - 1))
    (difference,) = found(facts, programmes, replace(EVERYTHING, timers_until=START + DAY))
    assert "a timer that was due at 2026-09-22T14:13:20Z has not run" == difference.what


@pytest.mark.parametrize("source", [Source.LOYALTY, Source.LEDGER])
def test_a_source_that_could_not_be_read_is_not_compared(facts, source):
    """A source that is not compared may lack all entries."""
    facts.recorded[source] = []

    assert [] == found(facts, coverage=replace(EVERYTHING, compared=EVERYTHING.compared - {source}))


def test_an_account_that_only_one_side_has_is_found(facts):
    """Entries without an account in Spark's state, and an account without entries, are differences that may settle."""
    state, facts.state = facts.state, None
    assert [(Source.STATE, "there is no account", True)] == found(facts)
    assert [(Source.STATE, "there is an account, of sequence 3", True)] == found(Facts(state=state))


@pytest.mark.parametrize("number", [0, 1])
def test_a_balance_of_an_erased_account_is_found(number):
    """Also a balance that only has the sequence of the erasure. It may settle."""
    events = [[Purchase(START, "I1", Decimal(100))], [Erase(append_time=START + 1, command_id="C1")]]
    history = processed(events, PROGRAMMES)
    facts = facts_of(history)
    facts.balance = balance(history.entries[number])
    assert [(Source.BALANCE, f"has sequence {number + 1}, but entry 2 erased the account", True)] == found(facts)


def test_a_balance_of_the_account_before_an_erasure_is_found():
    """The next account of the card has the same sequence number. The difference may settle."""
    events = [Purchase(START, "I1", Decimal(100)), Erase(append_time=START + 1, command_id="C1")]
    history = processed([[*events, Purchase(START + 2, "I2", Decimal(100))]], PROGRAMMES)
    facts = facts_of(history)
    facts.balance = balance(history.entries[0])
    opened = "the account that was opened at"
    expected = (
        f"is that of sequence 1 of {opened} {short_time_text(START)}, not 1 of {opened} {short_time_text(START + 2)}"
    )
    assert [(Source.BALANCE, expected, True)] == found(facts)
