"""Which invoices are sales, returns and exchanges."""

from dataclasses import replace
from decimal import Decimal

import pytest

from services.domain.events import Line, Purchase, halves
from services.domain.returns import InvoiceKind, takes_back_discount

SALE, RETURN, EXCHANGE = InvoiceKind


@pytest.mark.parametrize(
    ("total", "original", "values", "kind"),
    [
        pytest.param(300, None, [300], SALE, id="sale"),
        pytest.param(300, "1", [300], RETURN, id="positive invoice that names its original"),
        pytest.param(-300, "1", [-300, 0], RETURN, id="negative invoice that names its original"),
        pytest.param(-300, None, [-300], RETURN, id="negative invoice without an original"),
        pytest.param(300, "1", [], RETURN, id="return without lines"),
        pytest.param(0, "1", [0.0], RETURN, id="return of nothing"),
        pytest.param(50, "1", [-100, 150], EXCHANGE, id="exchange for something dearer"),
        pytest.param(-50, "1", [-100, 50, 0], EXCHANGE, id="exchange for something cheaper"),
        pytest.param(270, None, [300, -30], SALE, id="sale with a discount"),
        pytest.param(300, " \t\u200b", [300], SALE, id="blank original"),
        pytest.param(0, "", [], SALE, id="nothing"),
    ],
)
def test_kind_of_an_invoice(total, original, values, kind):
    lines = tuple(Line("A", Decimal(value)) for value in values)

    assert kind is Purchase(1, "X", Decimal(total), original_invoice_number=original, lines=lines).invoice_kind


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        pytest.param([(-100, 100, -1), (10, -10, -1)], RETURN, id="quantities of the till have the opposite sign"),
        pytest.param([(-100, 100, 1), (10, -10, 1)], RETURN, id="only the values have the opposite sign"),
        pytest.param([(-100, 100, 1), (10, 10, -1)], RETURN, id="a discount with a negative quantity"),
        pytest.param([(-100, 100, -1), (10, -10, None)], RETURN, id="without quantity"),
        pytest.param([(-100, None, -1), (10, None, -1)], RETURN, id="without price"),
        pytest.param([(10, -10, -1)], RETURN, id="only the discount comes back"),
        pytest.param([(1000, 1000, -1)], RETURN, id="a positive return with a negative quantity"),
        pytest.param([(-100, 100, -1), (10, -10, -1), (150, 150, 1)], EXCHANGE, id="exchange of a discounted item"),
        pytest.param([(10, -10, -1), (150, 150, 1)], EXCHANGE, id="a discount comes back, and something is sold"),
        pytest.param([(-100, 100, -1), (10, 10, 1)], EXCHANGE, id="nothing shows that the line is a discount"),
        pytest.param([(-100, -100, 1), (-10, -10, 1)], RETURN, id="negative prices of returned items"),
        pytest.param([(-100, -100, 1), (150, 150, 1)], EXCHANGE, id="exchange with a negative price"),
        pytest.param([(-100, None, None), (150, None, None)], EXCHANGE, id="exchange without prices and quantities"),
        pytest.param([(0, -10, -1), (150, 150, 1)], RETURN, id="a line of nothing"),
    ],
)
def test_a_line_that_takes_back_a_discount_is_not_sold(lines, kind):
    """A line is its value, price and quantity. The invoice names its original."""
    found = tuple(Line("A", Decimal(line[0]), takes_back_discount(*line)) for line in lines)

    assert kind is Purchase(1, "X", Decimal(1), original_invoice_number="P", lines=found).invoice_kind


def test_the_halves_of_an_exchange_have_the_amounts_of_their_lines():
    """Nobody knows how the tax of the whole divides. A line without a value is in neither half."""
    lines = back, bed, _ = (Line("A", Decimal(-118)), Line("bed", Decimal(236)), Line("gift", Decimal(0)))
    exchange = Purchase(1, "X", Decimal(118), original_invoice_number="P", lines=lines, taxable_amount=Decimal(100))

    sold = replace(exchange, total_amount=Decimal(236), lines=(bed,), taxable_amount=None, original_invoice_number=None)
    returned = replace(exchange, total_amount=Decimal(-118), lines=(back,), taxable_amount=None)
    assert (sold, returned) == halves(exchange)
