"""A card that was replaced or merged: what still arrives for it follows its account, and counts once."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.codecs.events import command_record, decode_event
from services.domain.account.model import EVENT_MEMORY, Account
from services.domain.account.processor import process
from services.domain.entries import Kind, Refusal
from services.domain.events import (
    Adjust,
    Block,
    Capture,
    Erase,
    Forward,
    Import,
    Line,
    Purchase,
    Receive,
    Reserve,
    SentLot,
    Transfer,
    Void,
)
from services.domain.programme import DAY, Programmes
from services.domain.recomputation import recompute
from tests.support.strategies import PROGRAMMES, PURCHASES, RETURNS
from tests.unit.services.domain.moving_cards import (
    BOUGHT,
    NEW,
    OLD,
    RESERVED,
    THIRD,
    Cards,
    assert_that_an_audit_finds_nothing,
    bought,
    encode,
    kinds,
    move,
)


def test_what_arrives_for_the_old_card_follows():
    """A late invoice, its return, the points of a transfer and a capture reach the new account, also after a second
    move.
    """
    cards = Cards().happen(OLD, BOUGHT, RESERVED)
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


def test_only_the_new_card_has_the_reason_and_the_actor_of_a_transfer():
    """The entry of the new card names the sender, so an erasure of the sender finds it."""
    cards = Cards().happen(OLD, BOUGHT, move(3))
    sent = {"counterparty": "x", "reason": "for Anna", "actor": "token:x"}
    cards.happen(OLD, Receive(append_time=7, command_id="T/in", lots=(SentLot(25, 9 * DAY),), **sent))
    old, new = cards.entries[OLD][-1], cards.entries[NEW][-1]
    assert ("", "", NEW) == (old.reason, old.actor, old.counterparty)
    assert ("for Anna", "token:x", "x") == (new.reason, new.actor, new.counterparty)


def test_a_void_follows_and_frees_the_points():
    cards = Cards().happen(OLD, BOUGHT, RESERVED, move(3))
    cards.happen(OLD, Void(append_time=4, command_id="V", redemption_id="R"))
    assert (10_00, {}) == (cards.states[NEW].available, cards.states[NEW].reservations)


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


@pytest.mark.parametrize("erased", [OLD, NEW, THIRD])
def test_an_erasure_forgets_all_cards_of_the_customer(erased):
    """The erasure of any card leaves no state, and every decision is forgotten."""
    cards = Cards().happen(OLD, BOUGHT, RESERVED, move(3))
    cards.happen(OLD, Capture(append_time=4, command_id="C", redemption_id="R"))
    cards.happen(NEW, move(5, THIRD, number=2))
    cards.happen(erased, Erase(append_time=6, command_id="E"))

    for card in (OLD, NEW, THIRD):
        assert Kind.ERASED == cards.entries[card][-1].kind
        assert not isinstance(cards.states[card], Account)
        assert 1 == kinds(cards.entries[card]).count(Kind.ERASED)
    assert {"R", "C", "move", "move2"} <= cards.forgotten
    assert {(card, "bought") for card in (OLD, NEW, THIRD)} <= cards.forgotten, "the index of invoices forgets it"


def test_an_invoice_that_is_on_its_way_does_not_bring_an_erased_customer_back():
    """A till used the old card before the erasure. Another till uses the new card later, which opens a new account."""
    cards = Cards().happen(OLD, BOUGHT, move(2))
    cards.happen(OLD, bought("late", 3), delivered=False).happen(NEW, Erase(append_time=4, command_id="E"))

    assert Kind.ERASED == cards.entries[OLD][-1].kind == cards.entries[NEW][-1].kind
    assert 10_00 == cards.happen(NEW, bought("new", 5)).states[NEW].total
    recomputed = recompute(NEW, cards.events[NEW], cards.entries[NEW], Programmes())
    assert (cards.entries[NEW], []) == (recomputed.settled.entries, recomputed.late.entries)


def test_an_invoice_that_comes_before_the_content_of_its_card_counts():
    """The clocks of brokers differ, so the append times can have another order than the commands."""
    cards = Cards().happen(OLD, BOUGHT, move(2), bought("next", 3), delivered=False)
    cards.waiting.reverse()
    assert 20_00 == cards.deliver().total(NEW)
    assert_that_an_audit_finds_nothing(cards)


@pytest.mark.parametrize("is_marker_removed", [False, True])
def test_a_card_that_the_new_account_does_not_know_sends_its_invoices_again_after_the_marker(is_marker_removed):
    """The content of the old card was lost, so the erasure of the new card does not reach the old card."""
    cards = Cards().happen(OLD, BOUGHT, move(2), delivered=False)
    cards.waiting.clear()
    assert 10_00 == cards.happen(OLD, bought("before", 3)).total(NEW)
    cards.happen(NEW, Erase(append_time=4, command_id="E")).happen(OLD, bought("early", 3 + EVENT_MEMORY))
    assert not isinstance(cards.states[NEW], Account)
    if is_marker_removed:
        assert cards.advance(4 + EVENT_MEMORY).states[NEW] is None
    assert 10_00 == cards.happen(OLD, bought("after", 4 + EVENT_MEMORY)).total(NEW)
    assert_that_an_audit_finds_nothing(cards)


def test_an_audit_knows_that_an_import_came_with_another_account():
    """The account ignored the second import. After the erasure, the import must not open another account."""
    imported = Import(append_time=2, command_id="I", lots=(SentLot(5_00, 0),))
    cards = Cards().happen(OLD, BOUGHT, imported, move(3))
    cards.happen(OLD, replace(imported, append_time=4 + 22 * DAY))
    assert 15_00 == cards.total(NEW)

    cards.happen(NEW, Erase(append_time=cards.now + 1, command_id="E"))
    assert_that_an_audit_finds_nothing(cards)


@pytest.mark.parametrize(("time", "missing"), [(EVENT_MEMORY, []), (1 + EVENT_MEMORY, ["late/redirected"])])
def test_an_audit_misses_an_invoice_that_a_replaced_card_sends_after_the_marker(time, missing):
    """The query lost it, and a later invoice opened the next account."""
    known = [Erase(append_time=1, command_id="E"), bought("new", 2 + EVENT_MEMORY)]
    lost = replace(bought("late", time), redirect_id="late/redirected")
    entries = process(None, known, Programmes(), NEW).entries
    assert missing == recompute(NEW, [*known, lost], entries, Programmes()).not_processed


@pytest.mark.parametrize("erased", [(), (BOUGHT, Erase(append_time=2, command_id="E"), bought("again", 3))])
def test_a_rebuild_counts_an_invoice_from_a_replaced_card_that_the_query_did_not_read(erased):
    """The invoice and the content of its card have one append time. The customer can have been erased before."""
    cards = Cards().happen(NEW, *erased).happen(OLD, bought("old", 4), move(5), bought("next", 6), delivered=False)
    cards.deliver_next(NEW)
    written = list(cards.entries[NEW])
    cards.deliver()

    recomputed = recompute(NEW, cards.events[NEW], written, Programmes())
    assert (written, cards.states[NEW]) == (recomputed.settled.entries, recomputed.late.account)
    assert ["next/redirected"] == recomputed.not_processed


def test_an_event_twice_counts_once_on_whichever_card():
    """A duplicate of the invoice that was counted before the move, of a late one, and of every command does nothing."""
    late = bought("late", 5)
    capture = Capture(append_time=6, command_id="C", redemption_id="R")
    once, twice = Cards(), Cards()
    for event in (BOUGHT, RESERVED, move(3), late, capture):
        once.happen(OLD, event)
        twice.happen(OLD, event)
        twice.happen(OLD, replace(event, append_time=twice.now))
    twice.happen(OLD, replace(BOUGHT, append_time=7)).happen(NEW, replace(late, append_time=8))

    assert 16_00 == once.total() == twice.total()
    assert kinds(once.entries[NEW]) == kinds(twice.entries[NEW])


def test_a_card_ignores_copies_of_what_it_has_read():
    """A copy that another card sends counts once. A replaced card does not forward a copy that its own till sends."""
    cards = Cards().happen(OLD, BOUGHT, move(2)).happen(OLD, bought("late", 3))
    entries = len(cards.entries[OLD]), len(cards.entries[NEW])
    sent = replace(bought("late", 4), redirect_id="late/redirected")
    cards.happen(NEW, sent).happen(OLD, replace(BOUGHT, append_time=5))

    assert entries == (len(cards.entries[OLD]), len(cards.entries[NEW]))
    assert 20_00 == cards.total(NEW)


SHIRT = replace(bought("P", 5), lines=(Line("shirt", Decimal(500)),))
LINES = (Line("shirt", Decimal(-500)), Line("coat", Decimal(1000)))
EXCHANGE = Purchase(6, "X", Decimal(500), original_invoice_number="P", lines=LINES)
"""The shirt comes back, and a coat is sold. It earns 20.00 points, and the shirt loses 10.00."""
FORWARDED = Forward(append_time=7, command_id="X/forward", invoice=EXCHANGE)
"""The index of invoices sends the returned half to the card that bought the shirt."""


def replaced_card_and_shirt():
    """The card is replaced, and the new card buys the shirt. A till still knows the old card, and exchanges with it."""
    return Cards().happen(OLD, BOUGHT, move(2)).happen(NEW, SHIRT)


@pytest.mark.parametrize("first", ["the return", "the exchange"])
def test_an_exchange_with_the_old_card_counts_once_in_any_order(first):
    """The index forwards the returned half to the card that bought. The old card sends it the whole exchange."""
    cards = replaced_card_and_shirt()
    if first == "the return":
        cards.happen(NEW, FORWARDED).happen(OLD, EXCHANGE)
    else:
        cards.happen(OLD, EXCHANGE).happen(NEW, replace(FORWARDED, append_time=cards.now))
    cards.happen(OLD, replace(EXCHANGE, append_time=cards.now)).happen(NEW, replace(EXCHANGE, append_time=cards.now))

    assert 30_00 == cards.total(NEW)
    assert 1 == kinds(cards.entries[NEW]).count(Kind.RETURNED)


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_exchange_reaches_the_last_of_two_new_cards(is_whole):
    """The second card is replaced before the old card sends it the exchange, or after it."""
    cards = replaced_card_and_shirt()
    cards.happen(NEW, FORWARDED)
    if is_whole:
        cards.happen(OLD, EXCHANGE)
    cards.happen(NEW, move(cards.now, THIRD, number="2"))
    cards.happen(OLD, replace(EXCHANGE, append_time=cards.now))

    assert 30_00 == cards.total(THIRD) == cards.total()
    assert 1 == kinds(cards.entries[NEW] + cards.entries[THIRD]).count(Kind.RETURNED)


def test_a_return_of_what_an_exchange_sold_can_come_before_the_sale():
    """The account knows only the returned half of the exchange. So the return waits for the other half."""
    back = Purchase(8, "R", Decimal(-1000), original_invoice_number="X", lines=(Line("coat", Decimal(-1000)),))
    cards = replaced_card_and_shirt()
    cards.happen(NEW, FORWARDED, back)
    assert 10_00 == cards.total(NEW)

    cards.happen(OLD, replace(EXCHANGE, append_time=9))

    assert 10_00 == cards.total(NEW) == cards.total()
    last = cards.entries[NEW][-1]
    assert (Kind.RETURNED, -20_00, "R") == (last.kind, last.points, last.invoice_number)


def test_a_return_of_a_return_that_the_index_forwarded_is_refused():
    """Only a half of an exchange has another half that can come later."""
    back = Purchase(3, "R", Decimal(-500), original_invoice_number=BOUGHT.invoice_number)
    again = Purchase(5, "again", Decimal(-500), original_invoice_number="R")
    cards = Cards().happen(OLD, BOUGHT, Forward(append_time=4, command_id="R/forward", invoice=back), again)

    last = cards.entries[OLD][-1]
    assert (Kind.REFUSED, "return-of-return") == (last.kind, last.reason)


def test_two_cards_that_replace_each_other_lose_nothing():
    """Both moves are decided before one of them arrives. The commands do not go around forever."""
    cards = Cards().happen(OLD, BOUGHT).happen(NEW, replace(BOUGHT, invoice_number="other", total_amount=Decimal(50)))
    cards.happen(OLD, move(2), delivered=False).happen(NEW, move(2, OLD, number=2), delivered=False).deliver()

    assert {OLD: 1_00, NEW: 10_00} == {card: cards.total(card) for card in (OLD, NEW)}
    assert ["", ""] == [cards.states[card].moved_to for card in (OLD, NEW)]


@pytest.mark.parametrize("names", [(OLD, NEW), (OLD, NEW, THIRD)])
def test_a_circle_ends_although_no_account_in_it_can_be_read(names):
    """The unreadable accounts are lost. An invoice that follows them runs only to the card where the circle ends."""
    cards = Cards()
    for old, new in zip(names, (*names[1:], names[0]), strict=True):
        cards.happen(old, bought(old), move(cards.now + 1, new, number=old), delivered=False)
    cards.waiting = [(card, record | {"Payload": b"unreadable"}) for card, record in cards.waiting]
    cards.happen(OLD, bought("late", cards.now + 1), delivered=False)

    for _ in range(20):
        if cards.waiting:
            cards.deliver_next(cards.waiting[0][0])
    assert ([], 10_00) == (cards.waiting, cards.total())
    reasons = [entry.reason for each in cards.entries.values() for entry in each if entry.kind is Kind.REFUSED]
    assert [Refusal.UNREADABLE] * len(names) == reasons


def test_an_invoice_on_its_way_between_two_cards_that_replace_each_other_counts():
    """The invoice follows the account to the other card and back. The first card has seen it, and still counts it."""
    cards = Cards().happen(OLD, BOUGHT, move(2))
    cards.happen(OLD, Purchase(3, "late", Decimal(100)), delivered=False)
    cards.happen(NEW, move(3, OLD, number=2), delivered=False).deliver()

    assert {OLD: 12_00, NEW: 0} == {card: cards.total(card) for card in (OLD, NEW)}
    assert {"bought", "late"} == cards.states[OLD].purchases.keys()
    cards.happen(OLD, Purchase(4, "late", Decimal(100))).happen(NEW, Purchase(5, "late", Decimal(100)))
    assert 12_00 == cards.total()


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

    assume(same.states.get(OLD) is not None and NEW in moved.states)
    # It applies what is due. A period that ends without an entry would wait for the next entry.
    adjust = Adjust(append_time=same.now, command_id="last", points=1)
    same.happen(OLD, adjust)
    moved.happen(NEW, adjust)
    for name in ("total", "lots", "debt", "tier", "earned_in_period"):
        assert getattr(same.states[OLD], name) == getattr(moved.states[NEW], name), name
