"""Purchases as an account remembers them, and what is left of them after returns. Points are hundredths."""

from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

from services.domain.accrual import base_points, earnings
from services.domain.events import Line, Purchase
from services.domain.programme import Programme

_NOTHING = Decimal(0)


class PastPurchase(NamedTuple):
    """What is left of a purchase, as far as returns depend on it. Tuples, as all of them are made at every visit.

    Attributes:
        created_time, store_id: 0 and empty where the programme has no campaigns.
        amount: not returned yet, in units of money.
        earned: and not taken back.
        tier: the customer's when it was made.
        lines: those that campaigns of the programme may concern, one an item, with the value not returned yet.
    """

    append_time: int
    amount: Decimal
    earned: int
    programme_version: int
    tier: str = ""
    created_time: int = 0
    store_id: str = ""
    lines: tuple[Line, ...] = ()


def past(purchase: Purchase, programme: Programme, tier: str, earned: int) -> PastPurchase:
    """A purchase to remember."""
    if not programme.campaigns:
        return PastPurchase(purchase.append_time, purchase.total_amount, earned, programme.version, tier)
    created_time = purchase.append_time if purchase.created_time is None else purchase.created_time
    items = frozenset[str]().union(*(campaign.items for campaign in programme.campaigns))
    lines = _by_item(line for line in purchase.lines if line.item_code in items)
    return PastPurchase(
        purchase.append_time,
        purchase.total_amount,
        earned,
        programme.version,
        tier,
        created_time,
        purchase.store_id,
        tuple(Line(item, value) for item, value in lines.items()),
    )


def past_return(purchase: Purchase, programme: Programme) -> PastPurchase:
    """A return to remember, so that it counts once."""
    return PastPurchase(purchase.append_time, _NOTHING, 0, programme.version)


def returned(bought: PastPurchase, back: Purchase, programme: Programme) -> PastPurchase:
    """What is left of the purchase; its points anew for that, by the programme's version that it was made under.

    Anew, as the sum of what many small returns would take by themselves is not what the whole is worth, once rounded.
    """
    amount = bought.amount - abs(back.total_amount)
    if amount <= 0:
        return bought._replace(amount=_NOTHING, earned=0, lines=())
    lines = _without(bought.lines, back.lines) if back.lines else _at_most(bought.lines, amount)
    rest = Purchase(bought.append_time, "", amount, bought.store_id, created_time=bought.created_time, lines=lines)
    earned = earnings(rest, programme, bought.tier).points
    return bought._replace(amount=amount, earned=min(bought.earned, earned), lines=lines)


def returned_without_reference(bought: PastPurchase, amount: Decimal, programme: Programme) -> PastPurchase:
    """The same for so much money (at most the amount left) of nobody knows which items: base points alone go."""
    left = bought.amount - amount
    worth = base_points(bought.amount, programme) - base_points(left, programme)
    return bought._replace(amount=left, earned=max(0, bought.earned - worth))


def _by_item(lines: Iterable[Line]) -> dict[str, Decimal]:
    values: dict[str, Decimal] = {}
    for line in lines:
        values[line.item_code] = values.get(line.item_code, _NOTHING) + line.value
    return values


def _without(lines: tuple[Line, ...], back: Iterable[Line]) -> tuple[Line, ...]:
    gone = _by_item(Line(line.item_code, abs(line.value)) for line in back)
    rest = (Line(line.item_code, line.value - gone.get(line.item_code, _NOTHING)) for line in lines)
    return tuple(line for line in rest if line.value > 0)


def _at_most(lines: tuple[Line, ...], amount: Decimal) -> tuple[Line, ...]:
    """A return that names no items leaves lines that are worth at most what is left of the invoice."""
    rest = []
    for line in lines:
        value = min(line.value, amount)
        amount -= value
        if value > 0:
            rest.append(Line(line.item_code, value))
    return tuple(rest)
