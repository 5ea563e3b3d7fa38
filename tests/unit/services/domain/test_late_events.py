"""Recomputation is exact for any history with erasures, late events and timers between any batches."""

import os
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.account.lots import Terms
from services.domain.account.model import Account, AccountState, Reservation
from services.domain.account.processor import advance, process
from services.domain.entries import AccountVersion, Kind
from services.domain.events import Erase, Purchase, Void
from services.domain.programme import DAY, Programmes
from services.domain.recomputation import recompute
from tests.support.account_histories import CARD, EVENTS, PLAIN, RICH, TIERED
from tests.support.examples import examples

HISTORIES = int(os.environ.get("TEST_HISTORIES", examples(300)))
"""The number of random histories of each test. ``TEST_HISTORIES=33000`` is the long run."""

LONGEST_LAG = 9 * DAY
"""Shorter than ``EVENT_MEMORY``, for which an account remembers events and an erased card keeps its marker."""

many = settings(max_examples=HISTORIES, deadline=None)


@many
@given(
    st.lists(st.tuples(EVENTS, st.just(0) | st.integers(0, LONGEST_LAG)), max_size=14),
    st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(0, 90 * DAY)), min_size=14, max_size=14),
    st.sampled_from([Programmes((PLAIN,)), Programmes((RICH,)), Programmes((PLAIN, TIERED))]),
)
def test_late_events_recompute_exactly(arrivals, batches, programmes):
    """Recomputation gives the entries of live processing, and later accounts have higher versions."""
    unique = {event.event_id: (event, lag) for event, lag in arrivals}
    order = [event for event, _ in sorted(unique.values(), key=lambda each: each[0].append_time + each[1])]
    state: AccountState | None = None
    entries = []
    rest = order
    for size, timer in batches:
        batch, rest = rest[:size], rest[size:]
        outcome = process(state, batch, programmes, CARD)
        entries += outcome.entries
        state = outcome.state
        if state and timer is not None and order:
            # At this time of the timers, older events than the longest lag have been read.
            unread = min((event.append_time for event in rest), default=order[-1].append_time + 90 * DAY)
            outcome = advance(state, min(order[0].append_time + timer, unread + LONGEST_LAG), programmes)
            entries += outcome.entries
            state = outcome.state

    recomputed = recompute(CARD, order, entries, programmes)

    assert entries == recomputed.settled.entries
    assert ([], []) == (recomputed.without_event, recomputed.not_processed)
    versions = [entry.version for entry in entries]
    assert versions == sorted(set(versions))


def test_an_account_after_an_erasure_is_newer_than_the_erased_one():
    """An older invoice arrives after the erasure was decided. It opens an account with a later opened time."""
    late = Purchase(1_000_000, "INV-1", Decimal(5000))
    erase = Erase(append_time=2_000_000, command_id="E")
    first = process(None, [erase], Programmes(), CARD)
    second = process(first.state, [late], Programmes(), CARD)

    assert AccountVersion(2_000_001, 1) == second.entries[0].version
    recomputed = recompute(CARD, [late, erase], [*first.entries, *second.entries], Programmes())
    assert second.account == recomputed.late.account


def test_the_changes_after_a_late_event_are_not_older_than_the_latest_entry():
    """A void that arrives late frees points that have expired meanwhile. They expire at the time of the last entry."""
    freed = Reservation(9 * DAY, {Terms(expires_time=6): 1_00})
    account = Account(1, sequence=1, updated_time=9, reservations={"R": freed})
    voided = process(account, [Void(append_time=5, command_id="V", redemption_id="R")], Programmes(), CARD)
    later = advance(voided.state, 9, Programmes())

    entries = [(entry.kind, entry.time) for entry in (*voided.entries, *later.entries)]
    assert [(Kind.VOIDED, 5), (Kind.EXPIRED, 9)] == entries


def test_a_marker_ends_when_no_older_event_can_arrive():
    """The marker is deleted after ten days. Then the state has nothing of the card."""
    marker = process(None, [Erase(append_time=5, command_id="E")], Programmes(), CARD)

    assert 5 + 10 * DAY == marker.next_due
    assert marker.state == advance(marker.state, 4 + 10 * DAY, Programmes()).state
    assert advance(marker.state, 5 + 10 * DAY, Programmes()).state is None
