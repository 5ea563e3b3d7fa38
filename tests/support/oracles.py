"""Computes in plain Python what the production code must compute. Tests compare the results."""

from decimal import ROUND_HALF_UP, Decimal
from string import whitespace
from typing import Any

from services.domain.invoice import HOME_DELIVERY, PRIME, LineItem, PosInvoice
from services.domain.programme import LOYALTY_FACTOR


def is_prime(invoice: PosInvoice) -> bool:
    """Whether the customer earns points. Case does not matter, as in the original Java program."""
    return (invoice.get("CustomerType") or "").upper() == PRIME


def is_home_delivery(invoice: PosInvoice) -> bool:
    """Whether the invoice must be shipped. Case does not matter, as in the original Java program."""
    return (invoice.get("DeliveryType") or "").upper() == HOME_DELIVERY


def earned_points(total_amount: float, loyalty_factor: Decimal = LOYALTY_FACTOR) -> int:
    """The points of an invoice in hundredths, without tiers and campaigns.

    The amount counts as the decimal that ``repr`` shows. The points are rounded once, half away from zero.
    """
    return int((Decimal(repr(total_amount)) * loyalty_factor * 100).quantize(Decimal(1), ROUND_HALF_UP))


_OF_INVOICE = ("InvoiceNumber", "CreatedTime", "StoreID", "PosID", "CustomerType", "PaymentMethod", "DeliveryType")
_OF_ADDRESS = ("City", "State", "PinCode")
_OF_ITEM = ("ItemCode", "ItemDescription", "ItemPrice", "ItemQty", "TotalValue")
_LONGEST_ORIGINAL = 128


def flatten(invoice: PosInvoice) -> list[dict[str, Any]]:
    """One HadoopRecord for each line item, in the order of the invoice."""
    invoice_values: dict[str, Any] = {field: invoice.get(field) for field in _OF_INVOICE}
    if (time := invoice.get("CreatedTime")) is not None and len(str(time)) == len("1770000000"):
        invoice_values["CreatedTime"] = time * 1000  # it was in seconds
    address = invoice.get("DeliveryAddress") or {}
    address_values = {field: address.get(field) for field in _OF_ADDRESS}
    original = _original(invoice)
    return [
        {
            **invoice_values,
            **address_values,
            **{field: item.get(field) for field in _OF_ITEM},
            "LineKind": "return" if _is_returned(invoice, item) else "sale",
            "OriginalInvoiceNumber": original if 0 < len(original) <= _LONGEST_ORIGINAL else None,
            "TotalAmount": invoice["TotalAmount"],
        }
        for item in invoice.get("InvoiceLineItems") or []
    ]


def _original(invoice: PosInvoice) -> str:
    """The number of the invoice that this one returns. Empty if it is no return."""
    number = invoice.get("OriginalInvoiceNumber") or ""
    return number if number.strip(whitespace) else ""


def _is_returned(invoice: PosInvoice, item: LineItem) -> bool:
    """Whether a line item is returned.

    An invoice without an original number is a return if its total is negative. In an exchange, whose lines have both
    signs, the sign of the line decides. All lines of other invoices with an original number are returned.
    """
    if not _original(invoice):
        return (invoice.get("TotalAmount") or 0) < 0
    values = [line.get("TotalValue") or 0 for line in invoice.get("InvoiceLineItems") or []]
    is_exchange = min(values) < 0 < max(values)
    return not is_exchange or (item.get("TotalValue") or 0) < 0
