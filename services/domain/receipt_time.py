"""The time by which the rules decide a purchase. Times are milliseconds since the epoch.

A till that was offline sends its receipts late. With the time basis ``till`` they earn as if they had come in time, as
purchases do in Open Loyalty by the date of their transaction (``purchasedAt``). The clock of a till can be wrong, and
whoever sets it back could buy under an old campaign. So the programme says how old a receipt may be.
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
        is_too_late: whether the time of the broker decides because the receipt is older than the limit.
    """

    rules: Programme
    time: int
    is_too_late: bool = False


def decided(purchase: Purchase, programmes: Programmes) -> Decided:
    """Returns how to decide a purchase. The version that is in force when it arrives sets time basis and limit.

    A receipt from the future, or without a time, counts by the time of the broker.
    """
    arrived = purchase.append_time
    rules, written = programmes.at(arrived), purchase.created_time
    if rules.time_basis is TimeBasis.BROKER or written is None or written >= arrived:
        return Decided(rules, arrived)
    if arrived - written > rules.largest_backdating:
        return Decided(rules, arrived, is_too_late=True)
    return Decided(programmes.at(written), written)


def as_decided(purchase: Purchase, programmes: Programmes) -> Purchase:
    """Returns the purchase with the time for campaigns. The time basis broker leaves them the clock of the till."""
    if programmes.at(purchase.append_time).time_basis is TimeBasis.BROKER:
        return purchase
    return replace(purchase, created_time=decided(purchase, programmes).time)
