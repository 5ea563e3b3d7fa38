"""Computes in plain Python what the production code must compute. Tests compare the results."""

from decimal import ROUND_HALF_UP, Decimal

from services.domain.invoice import HOME_DELIVERY, PRIME, PosInvoice
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
