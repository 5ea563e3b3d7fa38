"""The time by which the rules decide a purchase. Times are milliseconds since the epoch.

A till that was offline sends its receipts late. With the time basis ``till`` they earn by the time of the receipt. Open
Loyalty does the same with the date of the transaction (``purchasedAt``). The clock of a till can be wrong. Somebody
could set it back to buy under an old campaign. So the programme limits the age of a receipt.
"""

from dataclasses import replace
from typing import NamedTuple

from services.domain.events import Purchase
from services.domain.programme import Programme, Programmes, TimeBasis


class Decided(NamedTuple):
    """How to decide a purchase.

    Attributes:
        rules: the version that was in force at ``time``.
        time: of the receipt, or of the broker.
        is_too_late: whether the receipt is older than the limit. Then the append time decides.
    """

    rules: Programme
    time: int
    is_too_late: bool = False


def decided(purchase: Purchase, programmes: Programmes) -> Decided:
    """Returns how to decide a purchase. The version at its append time sets the time basis and the limit.

    The append time decides a receipt from the future, and a receipt without a time.
    """
    arrived = purchase.append_time
    rules, written = programmes.at(arrived), purchase.created_time
    if rules.time_basis is TimeBasis.BROKER or written is None or written >= arrived:
        return Decided(rules, arrived)
    if arrived - written > rules.largest_backdating:
        return Decided(rules, arrived, is_too_late=True)
    return Decided(programmes.at(written), written)


def as_decided(purchase: Purchase, programmes: Programmes) -> Purchase:
    """Returns the purchase with the time for campaigns. With the time basis broker it is still the till's clock."""
    if programmes.at(purchase.append_time).time_basis is TimeBasis.BROKER:
        return purchase
    return replace(purchase, created_time=decided(purchase, programmes).time)
