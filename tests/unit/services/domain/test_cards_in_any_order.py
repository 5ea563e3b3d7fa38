"""Cards that are replaced, and all kinds of events in random orders. No point is lost, and none counts twice."""

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.domain.account.model import Account
from services.domain.events import Adjust, Capture, Erase, Purchase, Replace, Reserve, Transfer, Void
from services.domain.programme import Programme, Programmes, SpentReturns
from services.domain.returns import InvoiceKind
from tests.support.return_histories import RETURN_HISTORIES, expected_total, many
from tests.unit.services.domain.moving_cards import Cards, assert_that_an_audit_finds_nothing, bought

PROGRAMMES = Programmes((Programme(spent_returns=SpentReturns.NEGATIVE_ALLOWED),))
"""A debt is part of a total, so the sum of all totals is exact."""

NAMES = st.integers(2, 5).map(lambda number: [f"card {position}" for position in range(number)])
DICE = st.randoms(use_true_random=False)


def cards_with_points(names):
    """Each card has bought once. The number of its invoice is its own name."""
    cards = Cards(PROGRAMMES)
    for name in names:
        read(cards, name, bought(name))
    return cards


def read(cards, name, event):
    """Read an event one millisecond after the last one. The index of invoices reads an invoice, too."""
    event = replace(event, append_time=cards.now + 1)
    if isinstance(event, Purchase):
        cards.read_invoice(name, event)
    else:
        cards.happen(name, event, delivered=False)


def read_in_any_order(cards, events, dice):
    """Read events from the end of the list. In between, deliver commands to random cards."""
    while events or cards.waiting:
        receivers = list(dict.fromkeys(name for name, _ in cards.waiting))
        if receivers and (not events or dice.random() < 0.6):
            cards.now += 1
            cards.deliver_next(dice.choice(receivers))
        else:
            read(cards, *events.pop())


def events_of(names, dice):
    """Events of random cards. The last of the list is read first, so a capture comes after its reservation."""

    def command(kind, command_id, **fields):
        return kind(append_time=0, command_id=command_id, **fields)

    def any_card():
        return dice.choice(names)

    events = replacements_of(names)
    events += [(any_card(), bought(f"late {number}")) for number in range(3)]
    for number in range(2):
        sender, receiver = dice.sample(names, 2)
        points = dice.choice([1_00, 7_00])
        events.append((sender, command(Transfer, f"transfer {number}", points=points, counterparty=receiver)))
    events.append((any_card(), command(Adjust, "adjust", points=dice.choice([2_50, -2_50]))))
    for buyer in dice.sample(names, 2):
        returned = replace(bought(f"return of {buyer}"), total_amount=Decimal(-200), original_invoice_number=buyer)
        events.append((dice.choice([*names, ""]), returned))
    dice.shuffle(events)
    for number in range(2):
        name, redemption, end = any_card(), f"reserve {number}", dice.choice([Capture, Void])
        first, last = sorted(dice.sample(range(len(events)), 2))
        events.insert(last, (name, command(Reserve, redemption, points=4_00)))
        events.insert(first, (name, command(end, f"end {number}", redemption_id=redemption)))
    return events


def replacements_of(names):
    """Each card replaces the one before, except the last, which is of another customer."""
    return [
        (old, Replace(append_time=0, command_id=f"replace {old}", counterparty=new))
        for old, new in pairwise(names[:-1])
    ]


def assert_that_no_point_is_lost(names, events, dice):
    """Read the events in any order. Then compare the sum of all totals, the decisions, and what an audit computes."""
    cards = cards_with_points(names)
    asked = {event.command_id for _, event in events if not isinstance(event, Purchase)}
    invoices = [event.total_amount for _, event in events if isinstance(event, Purchase)]
    read_in_any_order(cards, [*events], dice)

    done = [each for each in cards.decisions.values() if each.refusal is None and each.kind in ("capture", "adjust")]
    earned = 10_00 * len(names) + 2 * int(sum(invoices))
    assert earned + sum(each.points for each in done) == cards.total()
    assert asked == cards.decisions.keys()
    assert_that_an_audit_finds_nothing(cards)


@many
@given(NAMES, DICE)
def test_no_point_is_lost_between_cards(names, dice):
    assert_that_no_point_is_lost(names, events_of(names, dice), dice)


@many
@given(NAMES, DICE)
def test_no_point_is_lost_between_cards_that_replace_each_other_in_a_circle(names, dice):
    """No event is a return, because a return does not find its purchase if two cards have swapped their accounts."""
    events = [each for each in events_of(names, dice) if getattr(each[1], "original_invoice_number", None) is None]
    first, last = names[0], names[-2]
    replaced = Replace(append_time=0, command_id=f"replace {last}", counterparty=first)
    events.insert(dice.randrange(len(events)), (last, replaced))
    assert_that_no_point_is_lost(names, events, dice)


@many
@given(NAMES, DICE)
def test_an_erased_customer_does_not_come_back(names, dice):
    """Tills use old cards until the erasure, which reaches the cards in any order. The replacements were long ago."""
    cards = cards_with_points(names)
    customer = names[:-1]
    for event in replacements_of(names):
        read(cards, *event)
        cards.deliver()
    erasure = Erase(append_time=0, command_id="erase")
    late = [(dice.choice(customer), bought(f"late {number}")) for number in range(3)]
    read_in_any_order(cards, [(dice.choice(customer), erasure), *late], dice)

    assert [] == [name for name in customer if isinstance(cards.states[name], Account)]
    assert_that_an_audit_finds_nothing(cards)


@many
@given(RETURN_HISTORIES, NAMES, DICE)
def test_returns_and_exchanges_count_once_while_cards_are_replaced(invoices, names, dice):
    """The oracle knows no cards. Only a return without a sold half can have no card."""
    cards = cards_with_points(names)
    events = replacements_of(names)
    for each in invoices:
        is_return = each.invoice_kind is InvoiceKind.RETURN
        events.append((dice.choice([*names, ""] if is_return else names), each))
    dice.shuffle(events)
    read_in_any_order(cards, events, dice)

    assert 10_00 * len(names) + expected_total(invoices) == cards.total()
    assert_that_an_audit_finds_nothing(cards)
