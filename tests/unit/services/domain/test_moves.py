"""What moves when a lost card is replaced or two accounts are merged: points, tier, purchases and debts."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings

from services.codecs.events import command_record, decode_event
from services.codecs.state import encode_account
from services.domain.account import moves
from services.domain.account.lots import Terms
from services.domain.account.model import (
    LARGEST_RETURNED_TOTAL,
    LARGEST_TOTAL,
    Account,
    ErasureMarker,
    PastPurchase,
    PastReturn,
    Reservation,
)
from services.domain.account.processor import process
from services.domain.entries import Kind, Refusal
from services.domain.events import Absorb, Adjust, Block, Capture, Import, Line, Merge, Purchase, Reserve, SentLot, Void
from services.domain.formats import LAST_TIME
from services.domain.programme import DAY, Period, Programme, Programmes, SpentReturns, Tier
from services.domain.validation import MOST_LINE_ITEMS
from tests.support.examples import examples
from tests.support.strategies import ACCOUNT_EVENTS, PROGRAMMES
from tests.unit.services.domain.moving_cards import BOUGHT, NEW, OLD, Cards, bought, encode, kinds, move


def test_a_replaced_card_hands_over_everything():
    """Points with their expiry, pending points, reservations, tier and purchases move. Entries name both cards."""
    programme = Programme(pending=3 * DAY, valid_for=20 * DAY, tier_period=Period.YEAR, tiers=(Tier("gold", 5_00),))
    cards = Cards(Programmes((programme,)))
    cards.happen(OLD, BOUGHT, Adjust(append_time=2, command_id="A", points=3_00))
    cards.happen(OLD, Reserve(append_time=3, command_id="R", points=1_00), Block(append_time=4, command_id="B"))
    cards.happen(OLD, Import(append_time=4, command_id="I", lots=(SentLot(1_00, 0),)))
    before = cards.states[OLD]
    cards.happen(OLD, move(5))

    old, new = cards.states[OLD], cards.states[NEW]
    same = "lots", "reservations", "purchases", "returns", "tier", "period_end", "earned_in_period", "imports", "total"
    for name in same:
        assert getattr(before, name) == getattr(new, name), name
    left = Account(1, old.sequence, 5, moved_to=NEW, commands=old.commands, returns={"bought": PastReturn(1, 0)})
    assert left == old
    assert ((OLD,), False) == (new.former_cards, new.is_blocked)
    out, inward = cards.entries[OLD][-1], cards.entries[NEW][0]
    assert [(Kind.MOVED_OUT, -14_00, NEW, "lost", "clerk"), (Kind.MOVED_IN, 14_00, OLD, "lost", "clerk")] == [
        (each.kind, each.points, each.counterparty, each.reason, each.actor) for each in (out, inward)
    ]
    assert (None, -14_00) == (cards.decisions["move"].refusal, cards.decisions["move"].points)
    assert NEW == out.balance_details.moved_to


def test_a_card_does_not_replace_itself():
    cards = Cards().happen(OLD, BOUGHT, move(2, to=OLD))
    assert (Refusal.SAME_CUSTOMER, 10_00) == (cards.decisions["move"].refusal, cards.total())


def test_merged_accounts_add_up():
    """Points and debts add up. A return on one card finds its purchase on the other. The tier counts both cards."""
    tiers = (Tier("silver", 5_00), Tier("gold", 15_00))
    programme = Programme(tier_period=Period.YEAR, tiers=tiers, spent_returns=SpentReturns.NEGATIVE_ALLOWED)
    cards = Cards(Programmes((programme,)))
    cards.happen(OLD, BOUGHT).happen(NEW, bought("other"))
    cards.happen(NEW, Purchase(2, "back", Decimal(-500), original_invoice_number="bought"))
    assert 20_00 == cards.total()

    cards.happen(OLD, move(3, kind=Merge))
    assert (10_00, 0) == (cards.total(NEW), cards.total(OLD))
    assert [Kind.MOVED_IN, Kind.TIER, Kind.RETURNED] == kinds(cards.entries[NEW][-3:])
    assert ("silver", "gold") == (cards.entries[NEW][-2].reason, cards.states[NEW].tier)
    assert ("merge", None) == (cards.decisions["move"].kind, cards.decisions["move"].refusal)


def test_a_redemption_does_not_cancel_a_debt_that_its_points_could_not_pay():
    """The points of a voided redemption pay an adjustment first. The debt of the return stays. Then the cards merge."""
    cards = Cards().happen(OLD, BOUGHT, Reserve(append_time=2, command_id="R", points=10_00))
    cards.happen(OLD, Purchase(3, "back", Decimal(-500), original_invoice_number="bought"))
    cards.happen(OLD, Adjust(append_time=4, command_id="A", points=-10_00, allow_negative=True))
    cards.happen(OLD, Void(append_time=5, command_id="V", redemption_id="R"))
    cards.happen(NEW, bought("other"), Reserve(append_time=6, command_id="X", points=10_00))
    before = cards.total()
    assert 0 == before

    cards.happen(OLD, move(7, kind=Merge)).happen(NEW, Capture(append_time=8, command_id="C", redemption_id="X"))

    assert -10_00 == cards.total(NEW)


def test_a_return_that_waits_finds_its_purchase_on_the_other_card():
    half = Purchase(2, "R", Decimal(-250), original_invoice_number="bought")
    cards = Cards().happen(NEW, BOUGHT).happen(OLD, bought("other"), half)
    assert 20_00 == cards.total()

    cards.happen(OLD, move(3, kind=Merge))

    assert 15_00 == cards.total() == cards.total(NEW)


def test_returns_that_wait_on_two_cards_are_decided_in_their_order():
    """Both wait for a purchase that comes after the merge."""
    returns = [Purchase(time, f"R{time}", Decimal(-250), original_invoice_number="bought") for time in (2, 3)]
    cards = Cards().happen(NEW, bought("new"), returns[0]).happen(OLD, bought("old"), returns[1])
    cards.happen(OLD, move(4, kind=Merge)).happen(NEW, bought(time=5))

    assert ["bought", "R2", "R3"] == [entry.invoice_number for entry in cards.entries[NEW]][-3:]


@pytest.mark.parametrize("first", [OLD, NEW])
def test_the_newer_purchase_of_a_number_stays_after_a_merge(first):
    """Both accounts know the number. The window of the first purchase is over, so a return means the second one."""
    second, day = NEW if first == OLD else OLD, 95 * DAY
    cards = Cards().happen(first, BOUGHT, bought("between", 50 * DAY)).happen(second, bought(time=day))
    cards.happen(OLD, move(day + 1, kind=Merge))
    cards.happen(NEW, Purchase(day + 2, "back", Decimal(-500), original_invoice_number="bought"))

    assert 20_00 == cards.total()
    assert ["between", "bought"] == list(cards.states[NEW].purchases)


@pytest.mark.parametrize("part_size", [1, moves.PART_SIZE])
@pytest.mark.parametrize("bought_by", [OLD, NEW])
def test_a_merge_takes_a_return_back_once(bought_by, part_size, monkeypatch):
    """The return came twice: it counts on the card that bought, and waits on the other card."""
    monkeypatch.setattr(moves, "PART_SIZE", part_size)
    half = Purchase(2, "R", Decimal(-250), "here", original_invoice_number=BOUGHT.invoice_number)
    cards = Cards()
    cards.happen(bought_by, BOUGHT, half)
    cards.happen(NEW if bought_by == OLD else OLD, half)
    before = cards.total()
    cards.happen(OLD, move(3, kind=Merge))
    assert before == cards.total() == cards.total(NEW)
    assert 5_00 == before


@pytest.mark.parametrize(("owes", "total"), [(Adjust, -2_00), (Purchase, 0)])
def test_the_kind_of_a_debt_moves(owes, total):
    """An adjustment or a return takes reserved points. A capture cancels the debt of the return only, also after a
    move.
    """
    cards = Cards().happen(OLD, replace(BOUGHT, append_time=1, total_amount=Decimal(100)))
    cards.happen(OLD, Reserve(append_time=2, command_id="R", points=2_00))
    adjusted = Adjust(append_time=3, command_id="A", points=-2_00, allow_negative=True)
    returned = Purchase(3, "back", Decimal(-100), original_invoice_number=BOUGHT.invoice_number)
    cards.happen(OLD, adjusted if owes is Adjust else returned).happen(OLD, move(4))

    cards.happen(NEW, Capture(append_time=9, command_id="C", redemption_id="R"))
    assert total == cards.total() == cards.total(NEW)


def test_a_debt_moves():
    """The points of the other account pay the debt."""
    cards = Cards().happen(OLD, Adjust(append_time=1, command_id="A", points=-3_00, allow_negative=True))
    cards.happen(NEW, replace(BOUGHT, append_time=2)).happen(OLD, move(3, kind=Merge))

    assert (7_00, 7_00, 0) == (cards.total(NEW), cards.states[NEW].available, cards.states[NEW].debt)
    owing = absorb(Account(1, debt=2_00, reserved_debt=2_00))
    paid = process(Account(1, lots={Terms(): 10_00}), [owing], Programmes(), NEW).account
    assert (8_00, 0, 0) == (paid.total, paid.debt, paid.reserved_debt)


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (100 * DAY + 5 * 3_600_000, (7_00, 1, 100 * DAY)),
        (400 * DAY, (4_00, 1, 400 * DAY)),
        (50 * DAY, (3_00, 2, 100 * DAY)),
    ],
)
def test_points_of_two_periods_do_not_add_up(end, found):
    """The later period counts. Two ends that differ by a few hours are one period in two time zones."""
    part = Account(1, period_start=1, period_end=end, earned_in_period=4_00)
    account = Account(1, period_start=2, period_end=100 * DAY, earned_in_period=3_00)
    outcome = process(account, [absorb(part)], Programmes(), NEW)

    later = outcome.account
    assert found == (later.earned_in_period, later.period_start, later.period_end)


def test_a_tier_that_the_programme_no_longer_has_moves():
    """The customer keeps the tier until the end of its period."""
    outcome = process(Account(1), [absorb(Account(1, tier="former"))], Programmes(), NEW)

    assert [(Kind.MOVED_IN, ""), (Kind.TIER, "former")] == [(entry.kind, entry.tier) for entry in outcome.entries]


def absorb(part):
    return Absorb(append_time=2, command_id="move/0/moved", counterparty=OLD, part=part)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Account(1, lots={Terms(5 * DAY): 2_00}), Account(1, lots={Terms(): LARGEST_TOTAL})),
        (Account(1, debt=2_00), Account(1, debt=LARGEST_TOTAL)),
        (
            Account(1, debt=5_00, reserved_debt=2_00, reservations={"R": Reservation(9 * DAY, {Terms(): 2_00})}),
            Account(1, debt=LARGEST_TOTAL),
        ),
    ],
)
def test_an_account_that_does_not_fit_comes_back(old, new):
    """The new card may not exceed the limit of a total. The old card then keeps its points and works again.

    An invoice that it has sent after its account does not count a second time.
    """
    cards = Cards(states={OLD: old, NEW: new})
    late = replace(BOUGHT, append_time=3, customer_type="NONPRIME", original_invoice_number="unknown")
    cards.happen(OLD, move(2, kind=Merge), delivered=False).happen(OLD, late, delivered=False).deliver()

    assert (old.total, new.total) == (cards.total(OLD), cards.total(NEW))
    refused = cards.entries[NEW][0]
    assert (Kind.REFUSED, "too-many-points", OLD) == (refused.kind, refused.reason, refused.counterparty)
    assert ("", (), ()) == (cards.states[OLD].moved_to, *(cards.states[card].former_cards for card in (OLD, NEW)))
    assert (old.debt, old.reserved_debt) == (cards.states[OLD].debt, cards.states[OLD].reserved_debt)
    assert "bought" in cards.states[OLD].returns


def test_an_account_that_comes_back_is_taken_above_the_limit():
    """The account has no other place. Only beyond nine times the limit it is sent away once more."""
    back = Absorb(append_time=2, command_id="m/back", counterparty=NEW, part=Account(1, lots={Terms(): 2_00}))
    for before, total, commands in (LARGEST_TOTAL, LARGEST_TOTAL + 2_00, 0), (LARGEST_RETURNED_TOTAL,) * 2 + (1,):
        outcome = process(Account(1, lots={Terms(): before}), [back], Programmes(), OLD)
        assert (total, commands) == (outcome.account.total, len(outcome.commands))


def test_a_large_account_moves_in_parts():
    """Each part fits into a record, and together they are the account."""
    items = {f"item-{number}": Decimal(1) for number in range(100)}
    purchases = {f"I{number}": PastPurchase(number, Decimal(100), 2_00, 0, items=items) for number in range(300)}
    many_items = {f"{number:100}": Decimal(1) for number in range(3_800)}
    purchases["many items"] = PastPurchase(300, Decimal(100), 2_00, 0, items=many_items)
    lots = {Terms(day * DAY): 1_00 for day in range(1, 5_000)}
    cards = Cards(states={OLD: Account(1, lots=lots, purchases=purchases)})
    cards.happen(OLD, move(2), delivered=False)

    assert 4 < len(cards.waiting) < 12
    assert all(len(encode(record)) < 2 * moves.PART_SIZE for _, record in cards.waiting)
    cards.deliver()
    new = cards.states[NEW]
    assert (lots, purchases, [*purchases]) == (new.lots, new.purchases, [*new.purchases])
    assert (OLD,) == new.former_cards


def test_more_than_ten_parts_of_one_millisecond_keep_their_order():
    """A part with a return must come before the part with its purchase. As a text, 10 comes before 2."""
    parts = [replace(absorb(Account(1)), command_id=f"move/{number}/moved") for number in range(12)]

    outcome = process(None, reversed(parts), Programmes(), NEW)

    assert [each.command_id for each in parts] == [entry.event_id for entry in outcome.entries]


def test_a_return_between_two_parts_waits_for_what_an_exchange_sold(monkeypatch):
    """The returned half of the exchange is in an earlier part than the sold half."""
    monkeypatch.setattr(moves, "PART_SIZE", 1)
    lines = (Line("sofa", Decimal(-100)), Line("bed", Decimal(150)))
    exchange = Purchase(2, "exchange", Decimal(50), original_invoice_number=BOUGHT.invoice_number, lines=lines)
    cards = Cards().happen(OLD, BOUGHT, exchange, move(3), delivered=False)
    while NEW not in cards.states or "exchange" not in cards.states[NEW].returns:
        cards.deliver_next(NEW)
    back = Purchase(
        cards.now + 1, "back", Decimal(-150), original_invoice_number="exchange", lines=(Line("bed", Decimal(-150)),)
    )
    cards.happen(NEW, back)

    assert Kind.REFUSED not in kinds(cards.entries[NEW])
    assert cards.total() == cards.total(NEW) == 10_00 - 2_00


def test_a_part_that_cannot_be_read_is_refused_and_stops_nobody():
    """Only the loyalty query writes such commands. A damaged one becomes a refusal, and the query continues."""
    moved, command = account_that_moves()
    ((_, redirected),) = process(moved, [bought("late", 3)], Programmes(), OLD).commands
    assert replace(redirected, append_time=9) == decode_event(9, encode(command_record(NEW, redirected)))
    record = command_record(NEW, command)
    whole = record["Payload"]
    marker, no_text = encode_account(ErasureMarker(1)), whole.replace(b"bought", b"\xff" * 6)
    damaged = None, b"", b"\0\0\0\x80\x80\0", whole[:-1], b"\x01\xff", whole[:5] + b"\xff" * 9, marker, no_text
    for payload in damaged:
        assert_unreadable(record | {"Payload": payload})


@pytest.mark.parametrize(
    "part",
    [
        Account(1, lots={Terms(2**63): 100}),
        Account(1, lots={Terms(): 2**62}),
        Account(1, reservations={"r": Reservation(LAST_TIME + 1, {Terms(): 1})}),
        Account(1, reservations={"r": Reservation(5, {Terms(available_time=-1): 1})}),
        Account(1, purchases={"i": PastPurchase(1, Decimal("NaN"), 0, 0)}),
        Account(1, purchases={"i": PastPurchase(1, Decimal("1e30"), 1, 0)}),
        Account(1, purchases={"i": PastPurchase(1, Decimal(1), 1, 0, lines=(Line("A", Decimal("NaN")),))}),
        Account(1, purchases={"i": PastPurchase(1, Decimal(1), 1, 0, items={"A": Decimal("1e30")})}),
        Account(1, purchases={"i": PastPurchase(1, Decimal(1), 2**63, 0)}),
        Account(1, purchases={"i": PastPurchase(LAST_TIME, Decimal(1), 1, 0)}),
        Account(1, purchases={"i": PastPurchase(1, Decimal(1), 1, 0, decided_time=LAST_TIME)}),
        Account(1, period_end=2**60),
        Account(1, debt=2**63),
        Account(1, reserved_debt=2**63),
        Account(1, earned_in_period=2**63),
        Account(1, lots={Terms(): 0}),
        Account(1, returns={"i": PastReturn(1, 0, "unknown", taxable_amount=Decimal("NaN"))}),
    ],
)
def test_a_part_that_no_record_can_hold_is_refused_and_stops_nobody(part):
    """Otherwise a timer, a balance or a return of such an account would stop the query at every restart."""
    _, command = account_that_moves()
    assert_unreadable(command_record(NEW, replace(command, part=part)))


@pytest.mark.parametrize(
    "part",
    [Account(1, purchases={"i": PastPurchase(1, Decimal(1), 1, 7)}), Account(1, returns={"i": PastReturn(1, 7)})],
    ids=["purchase", "return"],
)
def test_a_part_with_an_unknown_version_of_the_programme_is_refused(part):
    """Otherwise the next event of the card would stop the query at every restart."""
    _, command = account_that_moves()
    assert_unreadable(command_record(NEW, replace(command, part=part)))


def test_a_part_with_the_largest_exchange_is_read():
    """The lines of one exchange can have the largest amounts."""
    sold, back = Line("A", Decimal("99999999999.99")), Line("B", Decimal(-1))
    lines = (*[sold] * (MOST_LINE_ITEMS - 1), back)
    exchange = Purchase(1, "exchange", Decimal(1), "here", original_invoice_number="unknown", lines=lines)
    _, command = account_that_moves(exchange)

    assert command.part == decode_event(9, encode(command_record(NEW, command))).part


def account_that_moves(event=BOUGHT):
    """An account that has moved, and the command that it has sent to the new card."""
    outcome = process(Account(1), [event, move(2)], Programmes(), OLD)
    ((_, command),) = outcome.commands
    return outcome.state, command


def assert_unreadable(record):
    event = decode_event(9, encode(record))
    (entry,) = process(None, [event], Programmes(), NEW).entries
    assert (Kind.REFUSED, "unreadable") == (entry.kind, entry.reason)


@settings(max_examples=examples(60))
@given(ACCOUNT_EVENTS, ACCOUNT_EVENTS, PROGRAMMES)
def test_a_move_conserves_points(events, others, programmes):
    """For any two accounts, the sum over both cards stays the same until something else happens."""
    here, there = (process(None, each, programmes, card).account for each, card in ((events, OLD), (others, NEW)))
    if here is None or here.moved_to:
        return
    cards = Cards(programmes, {OLD: here} | ({NEW: there} if there else {}))
    now = 41 * DAY
    cards.advance(now)
    here, before = cards.states[OLD], cards.total()
    cards.happen(OLD, move(now, kind=Merge))

    settled = sum(entry.points for entry in cards.entries[NEW] if entry.kind is Kind.RETURNED and entry.time == now)
    assert before + settled == cards.total()
    assert 0 == cards.total(OLD)
    new = cards.states[NEW]
    if there is None:
        assert (here.lots, here.debt, here.reservations) == (new.lots, new.debt, new.reservations)
    assert all(points > 0 for points in new.lots.values())
    assert not (new.lots and new.debt)
