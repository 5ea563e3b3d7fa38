"""What a return is. Sales, the history for analysts and the accounts use this one definition.

An invoice that names its original is a return, whatever sign its amounts have: some tills send returns as positive
amounts. If its lines have both signs, it is an exchange: the negative lines are returned, the positive lines are sold.
An invoice without an original is a return if its total is negative. Its negative lines alone are discounts.
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


def kind_of(total_amount: Amount, original_invoice_number: str | None, values: Collection[Amount]) -> InvoiceKind:
    """Returns the kind of an invoice. ``values`` are the amounts of its lines, as far as they are known."""
    if not (original_invoice_number or "").strip(BLANKS):
        return InvoiceKind.RETURN if total_amount < 0 else InvoiceKind.SALE
    mixed = any(value < 0 for value in values) and any(value > 0 for value in values)
    return InvoiceKind.EXCHANGE if mixed else InvoiceKind.RETURN
