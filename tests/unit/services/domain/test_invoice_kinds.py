"""Which invoices are sales, returns and exchanges."""

import pytest

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
