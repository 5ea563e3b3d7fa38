"""The index of invoices, with the accounts to which it forwards returns."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.entries import Kind, ReturnReason
from services.domain.events import Erase, Line
from services.domain.invoice_index import MOST_WAITING, Bought, Forgotten, IndexedInvoice, Returned, apply_news
from services.domain.programme import Programmes
from services.domain.recomputation import recompute
from tests.support.loyalty_stream import stream_of
from tests.support.return_histories import COMPLETE_RETURNS, RETURN_HISTORIES, expected_total, invoice, many

CARD, OTHER = "card", "other"
BOUGHT = invoice("bought", None, [Line("sofa", Decimal(100))], time=2)
RETURNED = invoice("returned", "bought", [Line("sofa", Decimal(-100))], time=1)
EXCHANGED = invoice("exchanged", "bought", [Line("sofa", Decimal(-100)), Line("bed", Decimal(150))], time=3)


@pytest.mark.parametrize("carried", ["", OTHER])
def test_a_return_without_a_card_or_under_another_card(carried):
    """It takes back exactly what the purchase earned, from the account that earned it."""
    own = (OTHER, invoice("own", None, [Line("lamp", Decimal(10))], time=1))
    for batches in (
        [[(CARD, BOUGHT)], [(carried, RETURNED)]],
        [[(carried, RETURNED)], [(CARD, BOUGHT)]],
        [[(CARD, BOUGHT), (carried, RETURNED)]],
    ):
        stream = stream_of([own], *batches)
        assert (0, 20) == (stream.total(CARD), stream.total(OTHER))
        last = stream.entries[CARD][-1]
        assert (Kind.RETURNED, -2_00, "returned") == (last.kind, last.points, last.invoice_number)


def test_an_exchange_under_another_card():
    """The new lines earn for the card of the exchange, and the returned lines take from the account that bought."""
    for batches in ([[(CARD, BOUGHT)], [(OTHER, EXCHANGED)]], [[(OTHER, EXCHANGED)], [(CARD, BOUGHT)]]):
        stream = stream_of(*batches)
        assert (0, 3_00) == (stream.total(CARD), stream.total(OTHER))


def test_a_return_of_an_invoice_that_nobody_bought_with_a_card_takes_nothing():
    """The customer of the purchase is not in the programme. The card of the return keeps its points."""
    own = (OTHER, invoice("own", None, [Line("sofa", Decimal(100))], time=1))
    foreign = ("guest", replace(BOUGHT, customer_type="NONPRIME"))
    stream = stream_of([own], [foreign], [(OTHER, RETURNED)], [("", replace(RETURNED, invoice_number="again"))])

    assert 2_00 == stream.total(OTHER)
    assert ReturnReason.PURCHASE_UNKNOWN == stream.entries[OTHER][-1].reason
    assert [] == stream.entries["guest"]


def test_a_customer_who_joins_with_the_purchase_of_an_earlier_return():
    """The return found no account and was not kept. The index forwards it when the purchase has opened the account."""
    assert 0 == stream_of([(CARD, replace(RETURNED, customer_type="NONPRIME"))], [(CARD, BOUGHT)]).total(CARD)


def test_a_return_of_a_return_without_a_card_is_refused():
    again = invoice("again", "returned", [Line("sofa", Decimal(100))], time=5)
    stream = stream_of([(CARD, BOUGHT)], [(CARD, RETURNED)], [("", again)])

    assert 0 == stream.total(CARD)
    assert (Kind.REFUSED, "return-of-return") == (stream.entries[CARD][-1].kind, stream.entries[CARD][-1].reason)


def test_the_index_forgets_an_erased_customer():
    """The index and waiting returns do not name the card. A return after the erasure opens no account."""
    early = invoice("early", "never", [Line("sofa", Decimal(-1))], time=3)
    erase = Erase(append_time=9, command_id="erase")
    stream = stream_of([(CARD, BOUGHT), (CARD, early)], [(CARD, erase), (OTHER, RETURNED)])
    stream.read([("", replace(RETURNED, invoice_number="after"))])

    assert "" == stream.index["bought"].card
    assert [""] == [each.card for each in stream.index["never"].waiting]
    assert Kind.ERASED == stream.entries[CARD][-1].kind


def test_a_number_that_another_customer_has_bought_since_stays():
    found = apply_news(IndexedInvoice("new"), [Forgotten(1, "old")])
    assert IndexedInvoice("new") == found.invoice


def test_an_erasure_ends_no_wait():
    waiting = IndexedInvoice("", (Returned(0, "", "returned"),))
    assert waiting == apply_news(waiting, [Forgotten(1, CARD)]).invoice


CARRIED = st.sampled_from([CARD, "", OTHER])


@given(st.lists(st.builds(Returned, st.integers(1, 2), CARRIED, st.text()), max_size=4), st.randoms())
def test_the_order_in_which_news_are_delivered_does_not_matter(returns, dice):
    """A replayed batch has the same outcome."""
    news = [*returns, Bought(1, CARD), Forgotten(2, CARD)]
    assert apply_news(IndexedInvoice(), news) == apply_news(IndexedInvoice(), dice.sample(news, len(news)))


def test_the_number_of_returns_that_wait_for_one_invoice_is_bounded():
    outcome = apply_news(IndexedInvoice(), [Returned(time, "", time) for time in range(MOST_WAITING + 1)])
    assert (MOST_WAITING, 1) == (outcome.began, outcome.refused)
    bought = apply_news(outcome.invoice, [Bought(0, CARD)])
    assert (MOST_WAITING, IndexedInvoice(CARD)) == (bought.settled, bought.invoice)


@many
@given(RETURN_HISTORIES, st.lists(CARRIED, min_size=8, max_size=8), st.lists(st.randoms(), min_size=2, max_size=2))
def test_any_order_ends_in_the_same_totals_whatever_cards_the_returns_carry(invoices, carried, orders):
    """In two random orders, returns take points from the card that bought, and exchanges earn points for their own
    card.
    """
    read_events = [
        (CARD if each.original_invoice_number is None else card, each)
        for each, card in zip(invoices, carried, strict=False)
    ]
    # An exchange without a card is a return alone.
    cards = {each.invoice_number: card for card, each in read_events}
    expected = {
        card: expected_total(invoices, counted=lambda number, card=card: cards[number] == card)
        for card in (CARD, OTHER)
    }
    for dice in orders:
        order = dice.sample(read_events, len(read_events))
        size = dice.randint(1, 4)
        stream = stream_of(*(order[start : start + size] for start in range(0, len(order), size)))

        assert expected == {card: stream.total(card) for card in (CARD, OTHER)}
        for card, entries in stream.entries.items():
            again = recompute(card, stream.events[card], entries, Programmes())
            assert (entries, []) == (again.settled.entries, again.not_processed)


@many
@given(COMPLETE_RETURNS, st.lists(CARRIED, min_size=7, max_size=7), st.randoms(), st.integers(1, 4))
def test_a_complete_return_with_discounts_leaves_nothing_whatever_cards_it_carries(invoices, carried, dice, size):
    """The purchase can have no card, too. The exchanges of its items earn points, until their items come back."""
    read_events = [*zip(carried, invoices, strict=False)]
    order = dice.sample(read_events, len(read_events))
    stream = stream_of(*(order[start : start + size] for start in range(0, len(order), size)))

    assert [0, 0] == [stream.total(card) for card in (CARD, OTHER)]
