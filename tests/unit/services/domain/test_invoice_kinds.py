"""Which invoices are sales, returns and exchanges."""

from dataclasses import replace
from decimal import Decimal

import pytest

from services.domain.events import Line, Purchase, halves
from services.domain.returns import InvoiceKind, kind_of

SALE, RETURN, EXCHANGE = InvoiceKind


@pytest.mark.parametrize(
    ("total", "original", "values", "kind"),
    [
        pytest.param(300, None, [300], SALE, id="sale"),
        pytest.param(300, "1", [300], RETURN, id="positive invoice that names its original"),
        pytest.param(-300, "1", [-300], RETURN, id="negative invoice that names its original"),
        pytest.param(-300, None, [-300], RETURN, id="negative invoice without an original"),
        pytest.param(300, "1", [], RETURN, id="return without lines"),
        pytest.param(0, "1", [0.0], RETURN, id="return of nothing"),
        pytest.param(50, "1", [-100, 150], EXCHANGE, id="exchange for something dearer"),
        pytest.param(-50, "1", [-100, 50, 0], EXCHANGE, id="exchange for something cheaper"),
        pytest.param(270, None, [300, -30], SALE, id="sale with a discount"),
        pytest.param(300, " \t", [300], SALE, id="blank original"),
        pytest.param(0, "", [], SALE, id="nothing"),
    ],
)
def test_kind_of_an_invoice(total, original, values, kind):
    assert kind is kind_of(total, original, values)


def test_the_halves_of_an_exchange_have_the_amounts_of_their_lines():
    """Nobody knows how the tax of the whole divides. A line without a value is in neither half."""
    lines = back, bed, _ = (Line("A", Decimal(-118)), Line("bed", Decimal(236)), Line("gift", Decimal(0)))
    exchange = Purchase(1, "X", Decimal(118), original_invoice_number="P", lines=lines, taxable_amount=Decimal(100))

    sold = replace(exchange, total_amount=Decimal(236), lines=(bed,), taxable_amount=None, original_invoice_number=None)
    returned = replace(exchange, total_amount=Decimal(-118), lines=(back,), taxable_amount=None)
    assert (sold, returned) == halves(exchange)
