"""Accounts that move to another card: a lost card is replaced, or two accounts are merged."""

from collections import defaultdict
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.topics import LOYALTY_COMMANDS
from services.codecs.events import command_record, credit_record, decode_event
from services.domain.account import moves
from services.domain.account.lots import Terms
from services.domain.account.model import (
    LARGEST_RETURNED_TOTAL,
    LARGEST_TOTAL,
    Account,
    PastPurchase,
    PastReturn,
    Reservation,
)
from services.domain.account.processor import advance, process
from services.domain.entries import Kind, Refusal
from services.domain.events import (
    Absorb,
    Adjust,
    Block,
    Capture,
    Erase,
    Forward,
    Import,
    Line,
    Merge,
    Purchase,
    Receive,
    Replace,
    Reserve,
    SentLot,
    Transfer,
    Void,
)
from services.domain.formats import LAST_TIME
from services.domain.programme import DAY, Period, Programme, Programmes, SpentReturns, Tier
from services.messaging.avro import encoder
from tests.support.builders import IDS
from tests.support.examples import examples
from tests.support.strategies import ACCOUNT_EVENTS, PROGRAMMES, PURCHASES, RETURNS

OLD, NEW, THIRD = "old", "new", "third"
BOUGHT = Purchase(1, "bought", Decimal(500))
"""Earns 10.00 points."""
encode = encoder(LOYALTY_COMMANDS, IDS)


class Cards:
    """The accounts of several cards, and the commands between them, as the loyalty query delivers them."""

    def __init__(self, programmes=None):
        self.programmes = programmes or Programmes()
        self.states, self.entries, self.decisions = {}, defaultdict(list), {}
        self.waiting, self.forgotten, self.now = [], set(), 0

    def happen(self, card, *events, delivered=True):
        outcome = process(self.states.get(card), events, self.programmes, card)
        self.states[card] = outcome.state
        self.entries[card] += outcome.entries
        self.decisions |= {decision.command_id: decision for decision in outcome.decisions}
        self.forgotten |= {each.command_id for each in outcome.forgotten}
        self.forgotten |= {(card, number) for number in outcome.forgotten_invoices}
        self.now = max([self.now, *(event.append_time for event in events)])
        self.waiting += [(each.to_card, credit_record(card, each)) for each in outcome.credits]
        self.waiting += [(to_card, command_record(to_card, each)) for to_card, each in outcome.commands]
        if delivered:
            self.deliver()
        return self

    def deliver(self):
        while self.waiting:
            card, record = self.waiting.pop(0)
            self.happen(card, decode_event(self.now, encode(record)), delivered=False)
        return self

    def advance(self, until):
        for card, state in self.states.items():
            if state:
                outcome = advance(state, until, self.programmes)
                self.states[card] = outcome.state
                self.entries[card] += outcome.entries
        return self

    def total(self, *cards):
        return sum(self.states[card].total for card in cards or self.states if self.states[card])


def move(time, to=NEW, kind=Replace, number=""):
    return kind(append_time=time, command_id=f"move{number}", counterparty=to, reason="lost", actor="clerk")


def kinds(entries):
    return [entry.kind for entry in entries]


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


def test_what_arrives_for_the_old_card_follows():
    """A late invoice, its return, points of a transfer and a capture reach the new account, also over two moves."""
    cards = Cards().happen(OLD, BOUGHT, Reserve(append_time=2, command_id="R", points=4_00))
    cards.happen(OLD, move(3)).happen(NEW, move(4, THIRD, number=2))
    cards.happen(OLD, Purchase(5, "late", Decimal(100), lines=(Line("milk", Decimal(100)),)))
    cards.happen(OLD, Purchase(6, "back", Decimal(-50), original_invoice_number="late"))
    cards.happen(OLD, Receive(append_time=7, command_id="T/in", counterparty="x", lots=(SentLot(25, 9 * DAY),)))
    foreign = Purchase(8, "foreign", Decimal(-50), original_invoice_number="bought")
    cards.happen(OLD, Forward(append_time=8, command_id="foreign/forward", invoice=foreign))
    cards.happen(OLD, Capture(append_time=8, command_id="C", redemption_id="R"))

    assert 10_00 + 2_00 - 1_00 - 1_00 + 25 - 4_00 == cards.total(THIRD) == cards.total()
    assert [Kind.FORWARDED] * 5 == kinds(cards.entries[OLD][-5:]) == kinds(cards.entries[NEW][-5:])
    assert (None, -4_00) == (cards.decisions["C"].refusal, cards.decisions["C"].points)
    assert ["late", "back"] == [entry.invoice_number for entry in cards.entries[OLD] if entry.invoice_number][-2:]
    assert "late" in cards.states[THIRD].purchases


@pytest.mark.parametrize(
    "command",
    [
        Reserve(append_time=9, command_id="C", points=1),
        Adjust(append_time=9, command_id="C", points=1),
        Transfer(append_time=9, command_id="C", points=1, counterparty="x"),
        Block(append_time=9, command_id="C"),
        move(9, to=THIRD, number="C"),
    ],
)
def test_commands_for_the_old_card_are_refused(command):
    """Nobody who found the lost card can spend its points, and the clerk learns that it was replaced."""
    cards = Cards().happen(OLD, BOUGHT, move(2)).happen(OLD, command)

    assert Refusal.CARD_REPLACED == cards.decisions[command.command_id].refusal
    assert (0, 10_00) == (cards.total(OLD), cards.total(NEW))


def test_an_event_twice_counts_once_on_whichever_card():
    """A duplicate of the invoice that was counted before the move, of a late one, and of every command does nothing."""
    late = replace(BOUGHT, append_time=5, invoice_number="late")
    capture = Capture(append_time=6, command_id="C", redemption_id="R")
    events = [BOUGHT, Reserve(append_time=2, command_id="R", points=4_00), move(3), late, capture]
    once, twice = Cards(), Cards()
    for event in events:
        once.happen(OLD, event)
        twice.happen(OLD, event)
        twice.happen(OLD, replace(event, append_time=twice.now))
    twice.happen(OLD, replace(BOUGHT, append_time=7)).happen(NEW, replace(late, append_time=8))

    assert 16_00 == once.total() == twice.total()
    assert kinds(once.entries[NEW]) == kinds(twice.entries[NEW])


SHIRT = replace(BOUGHT, append_time=5, invoice_number="P", lines=(Line("shirt", Decimal(500)),))
LINES = (Line("shirt", Decimal(-500)), Line("coat", Decimal(1000)))
EXCHANGE = Purchase(6, "X", Decimal(500), original_invoice_number="P", lines=LINES)


@pytest.mark.parametrize("first", ["the return", "the exchange"])
def test_an_exchange_with_the_old_card_counts_once_in_any_order(first):
    """The index forwards the returned half to the card that bought. The old card sends it the whole exchange."""
    cards = Cards().happen(OLD, BOUGHT, move(2)).happen(NEW, SHIRT)
    forward = Forward(append_time=7, command_id="X/forward", invoice=EXCHANGE)
    if first == "the return":
        cards.happen(NEW, forward).happen(OLD, EXCHANGE)
    else:
        cards.happen(OLD, EXCHANGE).happen(NEW, replace(forward, append_time=cards.now))
    cards.happen(OLD, replace(EXCHANGE, append_time=cards.now)).happen(NEW, replace(EXCHANGE, append_time=cards.now))

    assert 30_00 == cards.total(NEW)
    assert 1 == kinds(cards.entries[NEW]).count(Kind.RETURNED)


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_exchange_reaches_the_last_of_two_new_cards(is_whole):
    """The second card is replaced before the old card sends it the exchange, or after it."""
    cards = Cards().happen(OLD, BOUGHT, move(2)).happen(NEW, SHIRT)
    cards.happen(NEW, Forward(append_time=7, command_id="X/forward", invoice=EXCHANGE))
    if is_whole:
        cards.happen(OLD, EXCHANGE)
    cards.happen(NEW, move(cards.now, THIRD, number="2"))
    cards.happen(OLD, replace(EXCHANGE, append_time=cards.now))

    assert 30_00 == cards.total(THIRD) == cards.total()
    assert 1 == kinds(cards.entries[NEW] + cards.entries[THIRD]).count(Kind.RETURNED)


def test_a_card_ignores_copies_of_what_it_has_read():
    """A copy that another card sends counts once. A card that was replaced does not forward a copy of its own till."""
    cards = Cards().happen(OLD, BOUGHT, move(2)).happen(OLD, replace(BOUGHT, append_time=3, invoice_number="late"))
    entries = len(cards.entries[OLD]), len(cards.entries[NEW])
    sent = replace(BOUGHT, append_time=4, invoice_number="late", redirect_id="late/redirected")
    cards.happen(NEW, sent).happen(OLD, replace(BOUGHT, append_time=5))

    assert entries == (len(cards.entries[OLD]), len(cards.entries[NEW]))
    assert 20_00 == cards.total(NEW)


def test_a_return_of_a_return_that_the_index_forwarded_is_refused():
    """Only a half of an exchange has another half that can come later."""
    back = Purchase(3, "R", Decimal(-500), original_invoice_number=BOUGHT.invoice_number)
    again = Purchase(5, "again", Decimal(-500), original_invoice_number="R")
    cards = Cards().happen(OLD, BOUGHT, Forward(append_time=4, command_id="R/forward", invoice=back), again)

    last = cards.entries[OLD][-1]
    assert (Kind.REFUSED, "return-of-return") == (last.kind, last.reason)


def test_a_return_of_what_an_exchange_sold_can_come_before_the_sale():
    """The account knows only the returned half of the exchange. So the return waits for the other half."""
    back = Purchase(8, "R", Decimal(-1000), original_invoice_number="X", lines=(Line("coat", Decimal(-1000)),))
    cards = Cards().happen(OLD, BOUGHT, move(2)).happen(NEW, SHIRT)
    cards.happen(NEW, Forward(append_time=7, command_id="X/forward", invoice=EXCHANGE), back)
    assert 10_00 == cards.total(NEW)

    cards.happen(OLD, replace(EXCHANGE, append_time=9))

    assert 10_00 == cards.total(NEW) == cards.total()
    last = cards.entries[NEW][-1]
    assert (Kind.RETURNED, -20_00, "R") == (last.kind, last.points, last.invoice_number)


def test_merged_accounts_add_up():
    """Points and debts add up. A return on one card finds its purchase on the other. The tier counts both cards."""
    tiers = (Tier("silver", 5_00), Tier("gold", 15_00))
    programme = Programme(tier_period=Period.YEAR, tiers=tiers, spent_returns=SpentReturns.NEGATIVE_ALLOWED)
    cards = Cards(Programmes((programme,)))
    cards.happen(OLD, BOUGHT).happen(NEW, replace(BOUGHT, invoice_number="other"))
    cards.happen(NEW, Purchase(2, "back", Decimal(-500), original_invoice_number="bought"))
    assert 20_00 == cards.total()

    cards.happen(OLD, move(3, kind=Merge))
    assert (10_00, 0) == (cards.total(NEW), cards.total(OLD))
    assert [Kind.MOVED_IN, Kind.TIER, Kind.RETURNED] == kinds(cards.entries[NEW][-3:])
    assert "gold" == cards.states[NEW].tier
    assert ("merge", None) == (cards.decisions["move"].kind, cards.decisions["move"].refusal)


def test_a_debt_moves():
    """The points of the other account pay it."""
    cards = Cards().happen(OLD, Adjust(append_time=1, command_id="A", points=-3_00, allow_negative=True))
    cards.happen(NEW, replace(BOUGHT, append_time=2)).happen(OLD, move(3, kind=Merge))

    assert (7_00, 7_00, 0) == (cards.total(NEW), cards.states[NEW].available, cards.states[NEW].debt)


@pytest.mark.parametrize("erased", [OLD, NEW, THIRD])
def test_an_erasure_forgets_all_cards_of_the_customer(erased):
    """The erasure of any card leaves no state, and every decision is forgotten."""
    cards = Cards().happen(OLD, BOUGHT, Reserve(append_time=2, command_id="R", points=4_00), move(3))
    cards.happen(OLD, Capture(append_time=4, command_id="C", redemption_id="R"))
    cards.happen(NEW, move(5, THIRD, number=2))
    cards.happen(erased, Erase(append_time=6, command_id="E"))

    for card in (OLD, NEW, THIRD):
        assert Kind.ERASED == cards.entries[card][-1].kind
        assert not isinstance(cards.states[card], Account)
        assert [1] == [kinds(cards.entries[card]).count(Kind.ERASED)]
    assert {"R", "C", "move", "move2"} <= cards.forgotten
    assert {(card, "bought") for card in (OLD, NEW, THIRD)} <= cards.forgotten, "the index of invoices forgets it"


def test_two_cards_that_replace_each_other_lose_nothing():
    """Both moves are decided before one of them arrives. The commands do not go around forever."""
    cards = Cards().happen(OLD, BOUGHT).happen(NEW, replace(BOUGHT, invoice_number="other", total_amount=Decimal(50)))
    cards.happen(OLD, move(2), delivered=False).happen(NEW, move(2, OLD, number=2), delivered=False).deliver()

    assert {OLD: 1_00, NEW: 10_00} == {card: cards.total(card) for card in (OLD, NEW)}
    assert ["", ""] == [cards.states[card].moved_to for card in (OLD, NEW)]


def test_an_invoice_on_its_way_between_two_cards_that_replace_each_other_counts():
    """It follows the account to the other card and back. The first card has seen it, and must still count it."""
    cards = Cards().happen(OLD, BOUGHT, move(2))
    cards.happen(OLD, Purchase(3, "late", Decimal(100)), delivered=False)
    cards.happen(NEW, move(3, OLD, number=2), delivered=False).deliver()

    assert {OLD: 12_00, NEW: 0} == {card: cards.total(card) for card in (OLD, NEW)}
    assert {"bought", "late"} == cards.states[OLD].purchases.keys()
    cards.happen(OLD, Purchase(4, "late", Decimal(100))).happen(NEW, Purchase(5, "late", Decimal(100)))
    assert 12_00 == cards.total()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Account(1, lots={Terms(5 * DAY): 2_00}), Account(1, lots={Terms(): LARGEST_TOTAL})),
        (Account(1, debt=2_00), Account(1, debt=LARGEST_TOTAL)),
    ],
)
def test_an_account_that_does_not_fit_comes_back(old, new):
    """The new card may not exceed the limit of a total. The old card then keeps its points and works again.

    An invoice that it has sent after its account does not count a second time.
    """
    cards = Cards()
    cards.states = {OLD: old, NEW: new}
    late = replace(BOUGHT, append_time=3, customer_type="NONPRIME", original_invoice_number="unknown")
    cards.happen(OLD, move(2, kind=Merge), delivered=False).happen(OLD, late, delivered=False).deliver()

    assert (old.total, new.total) == (cards.total(OLD), cards.total(NEW))
    assert (Kind.REFUSED, "too-many-points") == (cards.entries[NEW][0].kind, cards.entries[NEW][0].reason)
    assert ("", ()) == (cards.states[OLD].moved_to, cards.states[NEW].former_cards)
    assert "bought" in cards.states[OLD].returns


def test_an_account_that_comes_back_is_taken_above_the_limit():
    """It has no other place. Only beyond nine times the limit it goes away once more."""
    back = Absorb(append_time=2, command_id="m/back", counterparty=NEW, part=Account(1, lots={Terms(): 2_00}))
    for before, total, commands in (LARGEST_TOTAL, LARGEST_TOTAL + 2_00, 0), (LARGEST_RETURNED_TOTAL,) * 2 + (1,):
        outcome = process(Account(1, lots={Terms(): before}), [back], Programmes(), OLD)
        assert (total, commands) == (outcome.account.total, len(outcome.commands))


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (100 * DAY + 5 * 3_600_000, (7_00, 100 * DAY)),
        (400 * DAY, (4_00, 400 * DAY)),
        (50 * DAY, (3_00, 100 * DAY)),
    ],
)
def test_points_of_two_periods_do_not_add_up(end, found):
    """The later period counts. A few hours are the difference of two time zones."""
    part = Account(1, period_end=end, earned_in_period=4_00)
    account = Account(1, period_end=100 * DAY, earned_in_period=3_00)
    outcome = process(account, [absorb(part)], Programmes(), NEW)

    assert found == (outcome.account.earned_in_period, outcome.account.period_end)


def test_a_tier_that_the_programme_no_longer_has_moves():
    """It lasts until the end of its period."""
    outcome = process(Account(1), [absorb(Account(1, tier="former"))], Programmes(), NEW)

    assert [(Kind.MOVED_IN, ""), (Kind.TIER, "former")] == [(entry.kind, entry.tier) for entry in outcome.entries]


def absorb(part):
    return Absorb(append_time=2, command_id="move/0/moved", counterparty=OLD, part=part)


def test_a_return_that_waits_finds_its_purchase_on_the_other_card():
    half = Purchase(2, "R", Decimal(-250), original_invoice_number="bought")
    cards = Cards().happen(NEW, BOUGHT).happen(OLD, replace(BOUGHT, invoice_number="other"), half)
    assert 20_00 == cards.total()

    cards.happen(OLD, move(3, kind=Merge))

    assert 15_00 == cards.total() == cards.total(NEW)


def test_a_card_does_not_replace_itself():
    cards = Cards().happen(OLD, BOUGHT, move(2, to=OLD))
    assert (Refusal.SAME_CUSTOMER, 10_00) == (cards.decisions["move"].refusal, cards.total())


def test_a_large_account_moves_in_parts():
    """Each part fits into a record, and together they are the account."""
    items = {f"item-{number}": Decimal(1) for number in range(100)}
    purchases = {f"I{number}": PastPurchase(number, Decimal(100), 2_00, 0, items=items) for number in range(300)}
    lots = {Terms(day * DAY): 1_00 for day in range(1, 5_000)}
    cards = Cards()
    cards.states = {OLD: Account(1, lots=lots, purchases=purchases)}
    cards.happen(OLD, move(2), delivered=False)

    assert 4 < len(cards.waiting) < 12
    assert all(len(encode(record)) < 2 * moves.PART_SIZE for _, record in cards.waiting)
    cards.deliver()
    new = cards.states[NEW]
    assert (lots, purchases, [*purchases]) == (new.lots, new.purchases, [*new.purchases])
    assert (OLD,) == new.former_cards


@settings(max_examples=examples(60))
@given(ACCOUNT_EVENTS, ACCOUNT_EVENTS, PROGRAMMES)
def test_a_move_conserves_points(events, others, programmes):
    """For any two accounts, the sum over both cards stays the same until something else happens."""
    here, there = (process(None, each, programmes, card).account for each, card in ((events, OLD), (others, NEW)))
    if here is None or here.moved_to:
        return
    cards = Cards(programmes)
    cards.states = {OLD: here, NEW: there}
    now = 41 * DAY
    cards.advance(now)
    here, before = cards.states[OLD], cards.total()
    cards.happen(OLD, move(now, kind=Merge))

    settled = sum(entry.points for entry in cards.entries[NEW] if entry.kind is Kind.RETURNED and entry.time == now)
    assert before + settled == cards.total()
    assert 0 == cards.total(OLD)
    lots = cards.states[NEW].lots
    if there is None:
        assert (here.lots, here.debt, here.reservations) == (
            lots,
            cards.states[NEW].debt,
            cards.states[NEW].reservations,
        )
    assert all(points > 0 for points in lots.values())
    assert not (lots and cards.states[NEW].debt)


@settings(max_examples=examples(60))
@given(st.lists(PURCHASES | RETURNS, min_size=1, max_size=10), st.integers(0, 9), PROGRAMMES)
def test_a_customer_whose_card_is_replaced_gets_the_same_points(events, after, programmes):
    """The same invoices with and without a replacement between them give the same account."""
    events = sorted({event.invoice_number: event for event in events}.values(), key=lambda each: each.append_time)
    after %= len(events)
    programmes = Programmes((programmes.versions[0],))
    same, moved = Cards(programmes), Cards(programmes)
    for number, event in enumerate(events):
        same.happen(OLD, event)
        moved.happen(OLD, event)
        if number == after:
            moved.happen(OLD, move(event.append_time))

    # An invoice that does not count is not forwarded, but it advances the time of its card.
    for cards in (same, moved):
        cards.advance(same.now)
    assume(same.states.get(OLD) is not None and NEW in moved.states)
    for name in ("total", "lots", "debt", "tier", "earned_in_period"):
        assert getattr(same.states[OLD], name) == getattr(moved.states[NEW], name), name


def test_a_part_that_cannot_be_read_is_refused_and_stops_nobody():
    """Only the loyalty query writes such commands. A damaged one is an entry, and the query goes on."""
    outcome = process(Account(1), [BOUGHT, move(2)], Programmes(), OLD)
    ((_, absorb),) = outcome.commands
    late = process(outcome.state, [replace(BOUGHT, append_time=3, invoice_number="late")], Programmes(), OLD)
    ((_, redirected),) = late.commands
    assert replace(redirected, append_time=9) == decode_event(9, encode(command_record(NEW, redirected)))
    record = command_record(NEW, absorb)
    whole = record["Payload"]
    for payload in (None, b"", b"\0\0\0\x80\x80\0", whole[:-1], b"\x01\xff", whole[:5] + b"\xff" * 9):
        event = decode_event(9, encode(record | {"Payload": payload}))
        (entry,) = process(None, [event], Programmes(), NEW).entries
        assert (Kind.REFUSED, "unreadable") == (entry.kind, entry.reason)


@pytest.mark.parametrize(
    "part",
    [
        Account(1, lots={Terms(2**63): 100}),
        Account(1, lots={Terms(): 2**62}),
        Account(1, reservations={"r": Reservation(LAST_TIME + 1, {Terms(): 1})}),
        Account(1, reservations={"r": Reservation(5, {Terms(available_time=-1): 1})}),
        Account(1, purchases={"i": PastPurchase(1, Decimal("NaN"), 0, 0)}),
        Account(1, purchases={"i": PastPurchase(1, Decimal(1), 2**63, 0)}),
        Account(1, period_end=2**60),
        Account(1, debt=2**63),
    ],
)
def test_a_part_that_no_record_can_hold_is_refused_and_stops_nobody(part):
    """A timer or a balance of such an account would stop the query at every restart."""
    outcome = process(Account(1), [BOUGHT, move(2)], Programmes(), OLD)
    ((_, absorb),) = outcome.commands
    event = decode_event(9, encode(command_record(NEW, replace(absorb, part=part))))
    (entry,) = process(None, [event], Programmes(), NEW).entries
    assert (Kind.REFUSED, "unreadable") == (entry.kind, entry.reason)


@given(PURCHASES | RETURNS)
def test_a_late_invoice_arrives_as_it_was(purchase):
    """The command has every field of the invoice, with the append time and the id of the command.

    An invoice that would change no account sends none.
    """
    outcome = process(Account(1, moved_to=NEW), [purchase], Programmes(), OLD)
    counts = purchase.customer_type.upper() == "PRIME" or purchase.original_invoice_number is not None
    expected = replace(
        purchase,
        lines=tuple(line for line in purchase.lines if line.value),
        append_time=7,
        redirect_id=f"{purchase.invoice_number}/redirected",
    )
    records = [(to_card, command_record(to_card, command)) for to_card, command in outcome.commands]

    assert [(NEW, expected)] * counts == [(to_card, decode_event(7, encode(record))) for to_card, record in records]
    assert [expected.event_id] * counts == [record["CommandID"] for _, record in records]


@pytest.mark.parametrize("part_size", [1, moves.PART_SIZE])
@pytest.mark.parametrize("bought_by", [OLD, NEW])
def test_a_merge_takes_a_return_back_once(bought_by, part_size, monkeypatch):
    """The return came with the card that did not buy. There it waits, and it has counted where the invoice is."""
    monkeypatch.setattr(moves, "PART_SIZE", part_size)
    half = Purchase(2, "R", Decimal(-250), "here", original_invoice_number=BOUGHT.invoice_number)
    cards = Cards()
    cards.happen(bought_by, BOUGHT, half)
    cards.happen(NEW if bought_by == OLD else OLD, half)
    before = cards.total()
    cards.happen(OLD, move(3, kind=Merge))
    assert before == cards.total() == cards.total(NEW)
    assert 5_00 == before


def test_a_void_follows_and_frees_the_points():
    cards = Cards().happen(OLD, BOUGHT, Reserve(append_time=2, command_id="R", points=4_00), move(3))
    cards.happen(OLD, Void(append_time=4, command_id="V", redemption_id="R"))
    assert (10_00, {}) == (cards.states[NEW].available, cards.states[NEW].reservations)
