"""Tills add prices as doubles. The last digit of such a sum decides nothing: the points are those of the exact sum."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.domain.account.processor import process
from services.domain.events import Line, Purchase
from services.domain.programme import Campaign, Combining, Programme, Programmes, TaxBasis
from tests.support.return_histories import many

BONUS = Campaign("bonus", bonus=50_00)
MILK = Campaign("milk", items=frozenset({"milk"}), multiplier=Decimal(3), bonus=50_00)
ONE_POINT = Decimal(1)
RULES = [
    Programme(campaigns=(BONUS,)),
    Programme(campaigns=(BONUS, MILK), combining=Combining.ALL),
    Programme(campaigns=(BONUS,), excluded_items=frozenset({"milk"})),
    Programme(campaigns=(BONUS, MILK), tax_basis=TaxBasis.TAXABLE),
    Programme(minimum_spend=Decimal(20)),
    Programme(campaigns=(MILK,), loyalty_factor=ONE_POINT, rounding=ROUND_CEILING),
    Programme(campaigns=(MILK,), loyalty_factor=ONE_POINT, rounding=ROUND_FLOOR),
    Programme(tax_basis=TaxBasis.TAXABLE, loyalty_factor=ONE_POINT, rounding=ROUND_CEILING),
]

_PRICES = st.sampled_from([10, 20, 1_10, 2_05, 5_15, 19_99])
_LINES = st.lists(st.tuples(st.sampled_from(["milk", "bread", "tea"]), st.integers(1, 3), _PRICES), min_size=1)
"""Item, units and price in cents."""
_RETURNS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 3)), _LINES | st.just([])), max_size=3)
"""Whether it names the purchase, the units of each line that come back, and the lines that are sold in exchange."""


def events(sale, returns, money):
    """The purchase and its returns. ``money`` converts cents."""
    yield invoice("sale", 1, sale, [], None, money)
    for number, (names_original, units, sold) in enumerate(returns, 2):
        back = [(item, -some, price) for (item, _, price), some in zip(sale, units, strict=False) if some]
        if back:
            original = "sale" if names_original else None
            yield invoice(f"back {number}", number, sold if names_original else [], back[::-1], original, money)


def invoice(number, time, sold, back, original, money):
    """The till adds the lines. A sixth of each price is tax."""
    lines = [(item, units * money(price)) for item, units, price in [*sold, *back]]
    taxable = sum(units * money(price * 5 // 6) for _, units, price in [*sold, *back])
    return Purchase(
        time,
        number,
        decimal(sum(value for _, value in lines)),
        original_invoice_number=original,
        lines=[Line(item, decimal(value)) for item, value in lines],
        taxable_amount=decimal(taxable),
    )


def decimal(amount):
    """The shortest decimal of a double, as the pipeline reads it."""
    return Decimal(str(amount))


def points(events, programme):
    return [entry.points for entry in process(None, events, Programmes((programme,)), "card").entries]


@many
@given(programme=st.sampled_from(RULES), sale=_LINES, returns=_RETURNS)
@example(
    programme=RULES[3],
    sale=[("tea", 3, 10), ("bread", 2, 5_15), ("bread", 1, 2_05)],
    returns=[(True, [2, 0, 3], []), (True, [1, 2, 1], [])],
)
@example(
    programme=RULES[2],
    sale=[("tea", 1, 10), ("bread", 1, 5_15), ("milk", 3, 5_15)],
    returns=[(False, [2, 0, 1], [("bread", 1, 10)]), (True, [2, 0, 1], [])],
)
def test_sums_of_doubles_earn_and_return_the_points_of_exact_sums(programme, sale, returns):
    exact = events(sale, returns, lambda cents: Decimal(cents).scaleb(-2))
    doubles = events(sale, returns, lambda cents: cents / 100)

    assert points(exact, programme) == points(doubles, programme)


@pytest.mark.parametrize("three", ["0.3", str(3 * 0.1)])
def test_the_return_of_all_items_of_an_exchange_takes_the_bonus(three):
    """The customer brings milk back and buys three teas, and later returns each tea in a line of its own."""
    bought = Purchase(1, "bought", Decimal(1), lines=[Line("milk", Decimal(1))], taxable_amount=Decimal(1))
    sold = [Line("milk", Decimal(-1)), Line("tea", Decimal(three))]
    exchange = Purchase(
        2,
        "exchange",
        Decimal(three) - 1,
        original_invoice_number="bought",
        lines=sold,
        taxable_amount=Decimal(three) - Decimal("1.05"),
    )
    teas = [Line("tea", Decimal("-0.1"))] * 3
    back = Purchase(
        3, "back", Decimal("-0.3"), original_invoice_number="exchange", lines=teas, taxable_amount=Decimal("-0.25")
    )

    assert 0 == sum(points([bought, exchange, back], RULES[3]))
