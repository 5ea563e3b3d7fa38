"""Properties that hold for all accounts, for any events in any order under any rules."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.account.model import Account, Outcome
from services.domain.account.processor import advance, process
from services.domain.entries import Kind
from services.domain.events import Purchase, Receive, Transfer
from services.domain.programme import DAY, Programmes
from tests.support.examples import examples
from tests.support.oracles import earned_points
from tests.support.strategies import (
    ACCOUNT_EVENTS,
    ACCOUNT_EVENTS_WITH_ERASURES,
    ACCOUNT_PROGRAMMES,
    AMOUNTS,
    PROGRAMMES,
    PURCHASES,
)

LATER = 60 * DAY

thrifty = settings(max_examples=examples(80))


def in_batches(events, programmes, cuts):
    """Process the events in append order in several batches. A batch ends only between two milliseconds."""
    ordered = sorted(events, key=lambda event: event.append_time)
    starts = [
        index
        for index in range(1, len(ordered))
        if index in cuts and ordered[index - 1].append_time < ordered[index].append_time
    ]
    state, outcome, together = None, Outcome(None), Outcome(None)
    for start, end in zip([0, *starts], [*starts, len(ordered)], strict=True):
        outcome = process(state, ordered[start:end], programmes, "card")
        state = outcome.state
        add(together, outcome)
    together.account, together.marker, together.next_due = outcome.account, outcome.marker, outcome.next_due
    return together


def add(together, outcome):
    together.entries += outcome.entries
    together.decisions += outcome.decisions
    together.credits += outcome.credits
    together.forgotten += outcome.forgotten
    together.commands += outcome.commands
    together.forgotten_invoices += outcome.forgotten_invoices


@thrifty
@given(ACCOUNT_EVENTS, PROGRAMMES)
def test_balance_is_the_sum_of_the_entries(events, programmes):
    """Totals are the sums of the entries, sequence numbers have no gaps, and the account agrees with its entries."""
    outcome = process(None, events, programmes, "card")
    total = 0
    for sequence, entry in enumerate(outcome.entries, start=1):
        total += entry.points
        assert (sequence, total) == (entry.sequence, entry.total)
        assert entry.total == entry.available + entry.pending + entry.reserved

    if outcome.account:
        account = outcome.account
        assert total == account.total == account.available + account.pending + account.reserved
        assert total == sum(account.lots.values()) + account.reserved - account.debt
        assert (len(outcome.entries), max(entry.time for entry in outcome.entries)) == (
            account.sequence,
            account.updated_time,
        )


@thrifty
@given(ACCOUNT_EVENTS, PROGRAMMES)
def test_no_lot_is_negative_or_empty(events, programmes):
    """Lots and reservations have positive points. An account with a debt has no lots."""
    account = process(None, events, programmes, "card").account or Account(0)
    lots = [account.lots, *(reservation.lots for reservation in account.reservations.values())]

    assert all(points > 0 for held in lots for points in held.values())
    assert account.debt >= 0
    assert not (account.debt and account.lots)


@thrifty
@given(ACCOUNT_EVENTS_WITH_ERASURES, PROGRAMMES, st.randoms())
def test_order_of_arrival_within_a_batch_does_not_matter(events, programmes, dice):
    """A replayed batch gives the same account and entries, in whatever order Spark delivers the events."""
    shuffled = dice.sample(events, len(events))

    assert process(None, events, programmes, "card") == process(None, shuffled, programmes, "card")


@thrifty
@given(ACCOUNT_EVENTS_WITH_ERASURES, PROGRAMMES, st.sets(st.integers(1, 13)))
def test_how_events_are_cut_into_batches_does_not_matter(events, programmes, cuts):
    """Several batches in append order give the same account, entries, decisions and credits as one batch."""
    assert process(None, events, programmes, "card") == in_batches(events, programmes, cuts)


@thrifty
@given(ACCOUNT_EVENTS, PROGRAMMES, st.lists(st.integers(0, 50 * DAY), max_size=4), st.integers(0, 41 * DAY))
def test_when_timers_fire_does_not_matter(events, programmes, times, cut):
    """A timer between two batches creates only the entries that are due, and creates none of them twice."""
    first = [event for event in events if event.append_time <= cut]
    second = [event for event in events if event.append_time > cut]
    begin = max((event.append_time for event in first), default=0)
    end = min((event.append_time for event in second), default=LATER)
    expected = process(None, events, programmes, "card")
    pieces = Outcome(None)
    outcome = process(None, first, programmes, "card")
    add(pieces, outcome)
    for time in sorted(time for time in times if begin <= time < end):
        if outcome.account:
            outcome = advance(outcome.account, time, programmes)
            add(pieces, outcome)
    outcome = process(outcome.account, second, programmes, "card")
    add(pieces, outcome)

    if outcome.account and expected.account:
        add(pieces, advance(outcome.account, LATER, programmes))
        add(expected, advance(expected.account, LATER, programmes))
    assert expected.entries == pieces.entries
    assert expected.decisions == pieces.decisions


@thrifty
@given(ACCOUNT_EVENTS, PROGRAMMES)
def test_a_change_that_was_applied_is_not_due_again(events, programmes):
    """After an advance to a time, the next timer is later. A second advance to that time does nothing."""
    outcome = process(None, events, programmes, "card")
    while (account := outcome.account) and (due := outcome.next_due):
        outcome = advance(account, due, programmes)
        assert (outcome.account != account) == bool(outcome.entries)
        again = advance(outcome.account, due, programmes)
        assert (again.account, again.entries, again.next_due) == (outcome.account, [], outcome.next_due)
        assert (outcome.next_due or due + 1) > due


@thrifty
@given(ACCOUNT_EVENTS, PROGRAMMES, st.data())
def test_the_same_event_twice_changes_nothing(events, programmes, data):
    """A duplicate within 9 days changes nothing, with its old or a new append time, also within one batch."""
    early = [event for event in events if event.append_time < 9 * DAY]
    outcome = process(None, early, programmes, "card")
    assert outcome == process(None, early + early, programmes, "card")

    if outcome.account:
        now = max(event.append_time for event in early)
        again = data.draw(st.sampled_from(early))
        repeat = replace(again, append_time=data.draw(st.sampled_from([again.append_time, now, 9 * DAY])))
        if process(None, [repeat], programmes, "card").account or again.event_id in outcome.account.purchases:
            repeated = process(outcome.account, [repeat], programmes, "card")
            assert advance(outcome.account, repeat.append_time, programmes).entries == repeated.entries


@thrifty
@given(ACCOUNT_EVENTS, PROGRAMMES)
def test_returns_never_take_more_than_purchases_earned(events, programmes):
    """At any time, returns have taken back at most the points that purchases have earned."""
    left = 0
    for entry in process(None, events, programmes, "card").entries:
        if entry.kind in {Kind.EARNED, Kind.RETURNED}:
            left += entry.points
            assert left >= 0


@thrifty
@given(ACCOUNT_EVENTS, PROGRAMMES)
def test_only_available_points_can_be_spent(events, programmes):
    """Reservations and transfers use only available points. Only an allowed adjustment or a return creates a debt."""
    outcome = process(None, events, programmes, "card")
    allowed = {event.event_id for event in events if getattr(event, "allow_negative", False)}
    before = 0
    for entry in outcome.entries:
        if entry.kind in {Kind.RESERVED, Kind.SENT}:
            assert entry.available >= 0
        if entry.available < min(0, before):
            assert entry.kind == Kind.RETURNED or entry.event_id in allowed
        before = entry.available


@thrifty
@given(ACCOUNT_EVENTS_WITH_ERASURES, PROGRAMMES)
def test_every_command_is_decided_once(events, programmes):
    """Each command of an account has one decision, with the sequence number of its entry."""
    events = [event for event in events if event.append_time < 10 * DAY]
    outcome = process(None, events, programmes, "card")
    by_sequence = {(entry.opened_time, entry.sequence): entry for entry in outcome.entries}
    decided = [(decision.opened_time, decision.command_id) for decision in outcome.decisions]

    assert len(decided) == len(set(decided))
    for decision in outcome.decisions:
        entry = by_sequence[decision.opened_time, decision.account_sequence]
        assert (entry.event_id, entry.total) == (decision.command_id, decision.total)
        assert (entry.kind == Kind.REFUSED) == (decision.refusal is not None)


@thrifty
@given(ACCOUNT_EVENTS, ACCOUNT_PROGRAMMES, st.integers(1, 20_00))
def test_transfer_conserves_points(events, rules, points):
    """A transfer keeps the sum of the points of both accounts. Points keep their time of expiry."""
    programmes = Programmes((rules,))
    here = process(None, events, programmes, "card")
    now = 41 * DAY
    transfer = Transfer(append_time=now, command_id="transfer", points=points, counterparty="other")
    before = (advance(here.account, now, programmes).account if here.account else None) or Account(now)
    after = process(here.account, [transfer], programmes, "card")
    there = process(None, [received(credit, now) for credit in after.credits], programmes, "other").account

    assert before.total == after.account.total + (there.total if there else 0)
    may_send = before.available >= points and not before.is_blocked
    assert (points if may_send else 0) == (there.total if there else 0)
    if there:
        moved = {(terms.expires_time, count) for terms, count in there.lots.items()}
        assert sum(count for _, count in moved) == points
        assert {expires for expires, _ in moved} <= {terms.expires_time for terms in before.lots}


def received(credit, time):
    return Receive(append_time=time, command_id=credit.command_id, counterparty="card", lots=credit.lots)


@thrifty
@given(ACCOUNT_EVENTS, ACCOUNT_EVENTS, PROGRAMMES)
def test_processing_does_not_change_its_input(first, second, programmes):
    """The account of the previous batch stays as it was."""
    account = process(None, first, programmes, "card").account
    if account:
        before = account.copy()
        process(account, second, programmes, "card")
        advance(account, LATER, programmes)
        assert before == account


@given(st.lists(st.builds(replace, PURCHASES, total_amount=AMOUNTS.map(abs).map(repr)), max_size=6))
def test_the_default_programme_gives_points_that_never_expire(purchases):
    """Every PRIME invoice earns ``earned_points``. The points are available at once and never expire."""
    unique = {purchase.invoice_number: purchase for purchase in purchases}.values()
    exact = [replace(purchase, total_amount=Decimal(purchase.total_amount)) for purchase in unique]
    outcome = process(None, exact, Programmes(), "card")
    prime = [float(purchase.total_amount) for purchase in exact if purchase.customer_type.upper() == "PRIME"]

    assert sorted(earned_points(amount) for amount in prime) == sorted(entry.points for entry in outcome.entries)
    if outcome.account:
        assert sum(earned_points(amount) for amount in prime) == outcome.account.available
        assert outcome.account.next_due() is None
        assert len(outcome.account.lots) <= 1


def test_customer_of_ten_years_has_one_lot():
    """Points that never expire stay in one lot. The account forgets purchases ten days after their return window."""
    account = None
    for week in range(520):
        purchase = Purchase(week * 7 * DAY, str(week), Decimal(100))
        account = process(account, [purchase], Programmes(), "card").account

    assert [520 * 2_00] == list(account.lots.values())
    assert 15 == len(account.purchases)


def test_two_events_with_one_identity_count_once():
    """One of them counts, also if both have the same append time. It is the same one in every order."""
    first, second = Purchase(1, "same", Decimal(100)), Purchase(1, "same", Decimal(200))
    outcome = process(None, [first, second], Programmes(), "card")

    assert 1 == len(outcome.entries)
    assert outcome == process(None, [second, first], Programmes(), "card")
