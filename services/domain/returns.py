"""What a return is. Sales, the history for analysts and the accounts follow this one definition.

An invoice that names its original is a return, whatever sign its amounts have: some tills send returns as positive
amounts. It is an exchange if some of its lines are returned and others are sold. A negative line is returned. A
positive line is sold, except if it takes back a discount of the original: then it belongs to the returned lines.
An invoice without an original is a return if its total is negative. Its negative lines alone are discounts.

``pipelines.columns.returns`` has this definition as Spark columns, and tests/spark/test_parity.py compares both.
"""

from collections.abc import Collection
from decimal import Decimal
from enum import StrEnum

from services.domain.validation import BLANKS

Amount = float | Decimal
"""In units of money."""


class InvoiceKind(StrEnum):
    """The kind of an invoice. Each line of an exchange is a sale or a return."""

    SALE = "sale"
    RETURN = "return"
    EXCHANGE = "exchange"


def takes_back_discount(value: Amount | None, price: Amount | None, quantity: int | None) -> bool:
    """Whether a line of an invoice that names an original takes back a discount.

    Its value is positive, because the customer loses the discount. No till sells something for a negative price or in a
    negative quantity.
    """
    return (value or 0) > 0 and ((price or 0) < 0 or (quantity or 0) < 0)


def kind_of(total_amount: Amount, original_invoice_number: str | None, returned: Collection[bool] = ()) -> InvoiceKind:
    """Returns the kind of an invoice.

    Args:
        returned: for each line whose value is known and not 0, whether it is returned.
    """
    if not (original_invoice_number or "").strip(BLANKS):
        return InvoiceKind.RETURN if total_amount < 0 else InvoiceKind.SALE
    return InvoiceKind.EXCHANGE if len({*returned}) > 1 else InvoiceKind.RETURN
