"""Computes in plain Python what the production code must compute. Tests compare the two results."""

from decimal import Decimal
from typing import Any

from infra.demo.invoice_oracle import COPIED_OF_ADDRESS, HADOOP_OF_INVOICE, ITEM, added_by_pipeline
from services.domain.formats import to_hundredths
from services.domain.invoice import HOME_DELIVERY, PRIME, PosInvoice
from services.domain.programme import LOYALTY_FACTOR


def is_prime(invoice: PosInvoice) -> bool:
    """Whether the customer earns points. Upper and lower case are equal, as in the Java originals."""
    return (invoice.get("CustomerType") or "").upper() == PRIME


def is_home_delivery(invoice: PosInvoice) -> bool:
    """Whether the invoice must be shipped. Upper and lower case are equal, as in the Java originals."""
    return (invoice.get("DeliveryType") or "").upper() == HOME_DELIVERY


def earned_points(total_amount: float, loyalty_factor: Decimal = LOYALTY_FACTOR) -> int:
    """Returns the hundredths of a point that an invoice earns without tiers and campaigns.

    The amount is the decimal that ``repr`` shows. The points are rounded once, half away from zero.
    """
    return to_hundredths(Decimal(repr(total_amount)) * loyalty_factor)


def flatten(invoice: PosInvoice) -> list[dict[str, Any]]:
    """Returns one HadoopRecord for each line item, in the order of the invoice."""
    invoice_values = {field: invoice.get(field) for field in HADOOP_OF_INVOICE}
    if (time := invoice.get("CreatedTime")) is not None and len(str(time)) == len("1770000000"):
        invoice_values["CreatedTime"] = time * 1000  # it was in seconds
    address = invoice.get("DeliveryAddress") or {}
    address_values = {field: address.get(field) for field in COPIED_OF_ADDRESS}
    return [
        {
            **invoice_values,
            **address_values,
            **{field: item.get(field) for field in ITEM},
            **added_by_pipeline(invoice, item),
        }
        for item in invoice.get("InvoiceLineItems") or []
    ]
