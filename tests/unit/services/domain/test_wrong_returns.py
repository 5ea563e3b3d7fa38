"""Returns that name the wrong purchase, come twice, or have lines whose values cancel each other.

They change nothing that the customer has earned for other goods. None of them stops the loyalty query, and none keeps
an account from moving to a new card.
"""

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.domain.account.processor import process
from services.domain.events import Line, Purchase
from services.domain.programme import Campaign, Programme, Programmes, TaxBasis
from services.domain.validation import LARGEST_AMOUNT, MOST_LINE_ITEMS
from tests.support.return_histories import COMPLETE_RETURNS, invoice, many
from tests.unit.services.domain.moving_cards import NEW, OLD, Cards, move
from tests.unit.services.domain.purchases_and_returns import after, back, buy, cancelled, lines, taken

TAXABLE = Programme(tax_basis=TaxBasis.TAXABLE)
BASES = [Programme(), TAXABLE]
SOFA = buy("2100", lines=lines(sofa=2100), taxable_amount=Decimal(1780))


def moved(*events, programme=TAXABLE):
    """The points of the old card after these events, and those of the new card after the replacement."""
    cards = Cards(Programmes((programme,)))
    for event in events:
        cards.happen(OLD, event)
    before = cards.total(OLD)
    cards.happen(OLD, move(10**6))
    return before, cards.total(NEW)


def wrong_return(goods, discount, amount, taxable, item="table"):
    """The till writes doubles. A discount without a code pays the goods."""
    sold, off = (Decimal(repr(value)) for value in (goods, discount))
    returned = (*lines(**{item: -sold}), *cancelled(**{"": off}))
    return back(repr(amount), lines=returned, taxable_amount=-Decimal(repr(taxable)))


def test_a_sum_of_almost_nothing_beside_a_large_taxable_amount():
    """The lines add up to 0.01, and the taxable amount is 90,000,000,000.00. The return brings A back."""
    bought = buy("100", lines=lines(A=100), taxable_amount=Decimal("84.75"))

    assert [1_70] == taken(after(bought, wrong_return(1e10, 9999999999.99, 0.01, 9e10, "A"), programme=TAXABLE))


@pytest.mark.parametrize("item", ["ring", "sofa"])
def test_the_last_digit_of_a_double_does_not_stop_an_account(item):
    """A discount pays the ring, but is larger by the last digit of a double."""
    returned = wrong_return(5000000.3, math.nextafter(5000000.3, math.inf), 0.0, 4237288.39, item)
    before, now = moved(SOFA, returned)

    assert before == now == (35_60 if item == "ring" else 0)


def test_the_points_of_a_replaced_card_survive_a_return_of_another_purchase():
    """The till adds three discounts of the table: 4200.1 + 0.1 + 0.1 is 4200.300000000001."""
    assert (35_60, 35_60) == moved(SOFA, wrong_return(4200.3, 4200.1 + 0.1 + 0.1, 0.0, 3559.58))


def test_many_large_discounts_do_not_keep_an_account_from_moving():
    """Each exchange brings back 0.01 of A. Together their discounts are larger than all lines of an invoice can be."""
    discount = Line("", Decimal(LARGEST_AMOUNT) - 1, takes_back_discount=True)
    half = (*lines(A="-0.01", bed=1), *[discount] * (MOST_LINE_ITEMS // 2 + 1))
    exchanges = [
        Purchase(time, f"exchange {time}", Decimal(1), original_invoice_number="bought", lines=half) for time in (2, 3)
    ]

    assert (2_04, 2_04) == moved(buy("100", lines=lines(A=100)), *exchanges, programme=Programme())


@pytest.mark.parametrize("programme", BASES, ids=["total", "taxable"])
@pytest.mark.parametrize("discount", ["60", "99", "99.99", "100", "160"])
@pytest.mark.parametrize("code", ["", "off"])
def test_a_complete_return_leaves_nothing_after_a_return_of_other_goods(programme, discount, code):
    """B is from another purchase. The customer can even pay for its discount."""
    bought = buy("100", lines=lines(A=100), taxable_amount=Decimal(80))
    returned = (*lines(B=-100), *cancelled(**{code: discount}))
    rest = 100 - Decimal(discount)
    wrong = back(rest, number="wrong", lines=returned, taxable_amount=-rest * Decimal("0.8"))
    complete = back("100", time=3, lines=lines(A=-100), taxable_amount=Decimal(-80))
    points = 1_60 if programme is TAXABLE else 2_00

    assert [0, points] == taken(after(bought, wrong, complete, programme=programme))


@pytest.mark.parametrize(
    "sold",
    [{"A": 100, "B": 100}, {"A": 100, "B": 90, "": 10}, {"A": "100.00000000000001", "B": 90, "": 10}],
    ids=["only codes", "a bag without a code", "a sum of doubles"],
)
@pytest.mark.parametrize("code", ["", "off"])
def test_goods_that_have_come_back_do_not_bring_back_a_discount(code, sold):
    """A comes back, then A with a discount, then the other goods."""
    bought = buy("200", lines=lines(**sold))
    first = back("100", number="first", lines=lines(A=-100))
    again = back("40", number="again", time=3, lines=(*lines(A=-100), *cancelled(**{code: 60})))
    rest = [replace(line, value=-line.value) for line in bought.lines if line.item_code != "A"]

    assert [2_00, 0, 2_00] == taken(after(bought, first, again, back("100", number="rest", time=4, lines=rest)))


def test_the_last_digit_of_a_double_is_no_goods():
    """A was free, and comes back with the discount of the other goods, for which the customer pays."""
    price = "0.30000000000000004"
    bought = buy("150", lines=(*lines(A=price, B=100, C=100, off=-50), *lines(A="-0.3")))
    free = back("-50", number="free", lines=(*lines(A=f"-{price}"), *cancelled(A="0.3", off=50)))

    assert [0, 1_00] == taken(after(bought, free, back("100", number="goods", time=3, lines=lines(B=-100))))


def test_a_return_that_is_worth_less_than_its_other_goods_adds_nothing_to_the_purchase():
    """A later return without lines takes everything."""
    wrong = back("50", number="wrong", lines=lines(A=-40, B=-60))

    assert [0, 2_00] == taken(after(buy("100", lines=lines(A=100)), wrong, back("100", time=3)))


def test_a_return_of_other_goods_does_not_use_the_discount_of_the_purchase():
    """A half of A comes back with a half of the discount, so a half of the points stays."""
    bought = buy("100", lines=lines(A=160, off=-60))
    wrong = back("40", number="wrong", lines=(*lines(B=-100), *cancelled(off=60)))
    half = back("50", time=3, lines=(*lines(A=-80), *cancelled(off=30)))

    assert [0, 1_00] == taken(after(bought, wrong, half))


_OTHER_GOODS = st.lists(
    st.tuples(
        *(st.sampled_from(["table", "lamp"]), st.integers(1, 100_00)),
        *(st.sampled_from(["", "discount", "milk", "other"]), st.integers(0, 200_00)),
    ),
    min_size=1,
    max_size=2,
)
"""For each return: an item and its value in cents, and a discount and its value. 0 means no discount."""


@many
@given(COMPLETE_RETURNS, _OTHER_GOODS, st.sampled_from(BASES), st.randoms(), st.booleans())
def test_returns_of_other_goods_change_nothing(invoices, others, programme, dice, is_complete):
    """They come anywhere among the purchase and its returns. The last invoice can be missing."""
    right = dice.sample(invoices, len(invoices))[: None if is_complete else -1]
    history = [*right]
    for number, (item, value, code, discount) in enumerate(others):
        off = Line(code, Decimal(discount).scaleb(-2), takes_back_discount=True)
        returned = [Line(item, -Decimal(value).scaleb(-2)), *([off] if discount else [])]
        history.insert(dice.randint(0, len(history)), invoice(f"wrong {number}", "bought", returned, 1))

    assert total(right, programme) == total(history, programme)


def total(events, programme):
    """The points after these events, which the account reads in this order."""
    account = None
    for event in events:
        account = process(account, [event], Programmes((programme,)), "card").account
    return account.total if account else 0


_AMOUNTS = st.floats(5e-324, 99999999999.99) | st.sampled_from([0.01, 0.1, 1e-7, 100.0, 4200.3, 1e10])
_PARTS = st.tuples(st.sampled_from(["A", "B", "X"]), _AMOUNTS, st.sampled_from(["", "off"]), st.sampled_from([0, 1, 2]))
"""An item, its value, the code of its discount, and how much of the value it pays: almost all, all, or a bit more."""


def _small_sum(number, parts, amount, taxable):
    """A return whose goods and discounts almost cancel each other."""
    values = []
    for item, value, code, size in parts:
        discount = [math.nextafter(value, 0), value, math.nextafter(value, math.inf)][size]
        values += [Line(item, -Decimal(repr(value))), Line(code, Decimal(repr(discount)), takes_back_discount=True)]
    fields = {"original_invoice_number": "bought", "taxable_amount": Decimal(repr(taxable))}
    return Purchase(number, f"return {number}", Decimal(repr(amount)), **fields, lines=tuple(values))


@many
@given(
    st.lists(st.tuples(st.lists(_PARTS, min_size=1, max_size=3), _AMOUNTS, _AMOUNTS), min_size=1, max_size=4),
    st.sampled_from(["", "off", "A"]),
    st.sampled_from([*BASES, replace(TAXABLE, campaigns=(Campaign("bonus", bonus=5_00),))]),
)
@example([([("X", 4200.3, "", 2)], 0.01, 3559.58)], "off", TAXABLE)
@example([([("A", 1e10, "", 0)], 0.01, 9e10)], "off", TAXABLE)
def test_no_return_stops_an_account_or_keeps_it_from_moving(returns, code, programme):
    """The purchase has A for 100.00, B for 50.00, and a discount. It lacks X."""
    bought = buy("110", lines=(*lines(A=100, B=50), Line(code, Decimal(-40))), taxable_amount=Decimal(88))
    events = [_small_sum(number, *each) for number, each in enumerate(returns, 2)]
    before, now = moved(bought, *events, programme=programme)

    assert before == now <= 7_20
