"""Points: exact decimals with two places, counted in hundredths wherever they are stored."""

from decimal import ROUND_HALF_UP, Decimal

LOYALTY_FACTOR = Decimal("0.02")
"""Points per unit of money, as in the Java originals (``FanOutConfigs.java``)."""

_HUNDREDTH = Decimal("0.01")


def earned_points(total_amount: float, loyalty_factor: Decimal = LOYALTY_FACTOR) -> int:
    """Hundredths of a point that an invoice earns, rounded half up (away from zero) once per invoice.

    The amount counts as the decimal that its shortest notation shows, not as the binary fraction behind it,
    and a negative amount takes back exactly what the positive one earned.
    """
    return to_hundredths(Decimal(repr(total_amount)) * loyalty_factor)


def to_hundredths(points: Decimal, rounding: str = ROUND_HALF_UP) -> int:
    return int(points.quantize(_HUNDREDTH, rounding).scaleb(2))


def to_points(hundredths: int) -> Decimal:
    return Decimal(hundredths).scaleb(-2)
