"""Chooses the time by which the rules apply to a purchase. Times are milliseconds since the epoch.

A till that was offline sends its receipts late. With the time basis ``till``, such a purchase earns by the rules of the
time of its receipt. Open Loyalty does the same with the date of the transaction (``purchasedAt``). But the clock of a
till can be wrong, or somebody sets it back to buy under an old campaign. So the programme limits the age of a receipt.
"""

from dataclasses import replace
from typing import NamedTuple

from services.domain.events import Purchase
from services.domain.programme import Programme, Programmes, TimeBasis


class ApplicableRules(NamedTuple):
    """The rules that apply to a purchase.

    Attributes:
        programme: the version that was in force at ``time``.
        time: the time of the receipt, or the append time.
        is_too_late: whether the receipt is older than the programme allows. Then ``time`` is the append time.
    """

    programme: Programme
    time: int
    is_too_late: bool = False


def applicable_rules(purchase: Purchase, programmes: Programmes) -> ApplicableRules:
    """Returns the rules that apply to a purchase.

    The version at the append time sets the time basis and the largest age of a receipt. If the receipt has no time, or
    a time in the future, the append time counts.
    """
    append_time, receipt_time = purchase.append_time, purchase.created_time
    programme = programmes.at(append_time)
    if programme.time_basis is TimeBasis.BROKER or receipt_time is None or receipt_time >= append_time:
        return ApplicableRules(programme, append_time)
    if append_time - receipt_time > programme.largest_backdating:
        return ApplicableRules(programme, append_time, is_too_late=True)
    return ApplicableRules(programmes.at(receipt_time), receipt_time)


def is_eligible(purchase: Purchase, programmes: Programmes) -> bool:
    """Whether the customer type of the purchase earns points under the rules that apply to the purchase."""
    return applicable_rules(purchase, programmes).programme.is_eligible(purchase.customer_type)


def with_campaign_time(purchase: Purchase, programmes: Programmes) -> Purchase:
    """Returns the purchase with the time for campaigns as its ``created_time``.

    With the time basis ``broker`` this is the unchanged clock of the till.
    """
    if programmes.at(purchase.append_time).time_basis is TimeBasis.BROKER:
        return purchase
    return replace(purchase, created_time=applicable_rules(purchase, programmes).time)
