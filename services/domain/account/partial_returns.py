"""Computes what is left of a purchase after a return. Points are hundredths; amounts are in units of money."""

from collections.abc import Iterable, Mapping
from decimal import Decimal

from services.domain.account.model import PastPurchase, PastReturn
from services.domain.accrual import base_points, earnings, rounded_amount, spend
from services.domain.events import Line, Purchase
from services.domain.programme import Programme, TaxBasis
from services.domain.validation import LARGEST_AMOUNT

_ZERO = Decimal(0)

_LARGEST = Decimal(LARGEST_AMOUNT)
"""The amounts of all invoices are smaller. Only the sold half of an exchange can have a larger one."""

_ROUNDING = Decimal("0.01")
"""The till rounds each taxable amount. If two returns bring everything back, this much of the purchase can be left."""


def after_return(bought: PastPurchase, returned: PastReturn, programme: Programme) -> PastPurchase:
    """Returns the part of the purchase that is left, with the points that this part earns.

    It computes these points again, because the rounded points of many small returns could add up to another sum. A
    customer can return an item at most as often as the invoice sold it. Other lines of the return take nothing.
    Talon.One also rolls back the points of single items and units (``RollbackAddedLoyaltyPoints``,
    ``cartItemSubPosition``).

    Args:
        programme: the version that applies to the purchase.
    """
    if _returns_other_goods(bought, returned):
        return bought
    items_left = {line.item_code: line.value for line in bought.lines} if bought.items is None else bought.items
    accepted_amount = _accepted_amount(bought, returned, programme)
    # If a return takes back a discount, the rest can be larger than before. The purchase alone decides how large it can
    # become. So no number of returns makes an amount that the rules cannot round, or that a new card would refuse.
    amount_left = min(bought.amount - accepted_amount, max(bought.amount, _LARGEST))
    returned_value = _ZERO
    if returned.items:
        accepted = {item: _accepted(value, items_left.get(item, _ZERO)) for item, value in returned.items.items()}
        returned_value = sum(accepted.values(), _ZERO)
        values = ((item, value - accepted.get(item, _ZERO)) for item, value in items_left.items())
        # If a line without a code sold something, later returns must know which codes the purchase had.
        keeps_codes = bought.items is not None and _sold_without_code(bought.items)
        items_left = {item: value for item, value in values if keeps_codes or rounded_amount(value)}
    # A line can lack a value. So lines show which items are left only if they are worth the money of the return.
    # If one return does not show it, later ones do not show it either. Otherwise the order of the returns would matter.
    are_items_known = (
        bought.items is not None
        and not bought.lines
        and returned.items
        and returned.items.get("", _ZERO) <= 0
        and rounded_amount(returned_value - accepted_amount) >= 0
    )
    lines = tuple(Line(*each) for each in items_left.items()) if are_items_known else _at_most(items_left, amount_left)
    if not are_items_known:
        bought = bought._replace(lines=lines)
    if bought.items is not None:
        bought = bought._replace(items=items_left)
    # The items of an exchange have gross values, and the amount of its return is net. So an amount can be left although
    # no item is left.
    is_all_returned = (
        are_items_known
        and not any(value > 0 for value in items_left.values())
        and rounded_amount(returned_value - bought.amount) >= 0
        and programme.tax_basis is TaxBasis.TAXABLE
    )
    nothing = _ROUNDING if programme.tax_basis is TaxBasis.TAXABLE else _ZERO
    if rounded_amount(amount_left) <= nothing or is_all_returned:
        return bought._replace(amount=_ZERO, earned=0)
    rest = Purchase(bought.append_time, "", amount_left, bought.store_id, created_time=bought.created_time, lines=lines)
    earned = earnings(rest, programme, bought.tier).points
    return bought._replace(amount=amount_left, earned=min(bought.earned, earned))


def _returns_other_goods(bought: PastPurchase, returned: PastReturn) -> bool:
    """Whether the purchase has none of the returned goods, or no longer has them.

    The discounts of such a return are not those of the purchase. If they counted, the purchase would become larger.
    """
    goods = [item for item, value in (returned.items or {}).items() if rounded_amount(value) > 0]
    left = bought.items
    if not goods or left is None:
        return False
    return not any(_can_be_any(item, left) or rounded_amount(left.get(item, _ZERO)) for item in goods)


def _accepted_amount(bought: PastPurchase, returned: PastReturn, programme: Programme) -> Decimal:
    """Returns the money of the return.

    It is negative if the customer pays more for a discount than the goods are worth. If both name their items, items
    that the purchase no longer has do not count. An item whose code the purchase never had counts if the purchase sold
    something without a code.
    """
    amount = abs(spend(returned.amount, returned.taxable_amount, programme))
    if bought.items is None or not returned.items:
        return amount
    value = sum(returned.items.values(), _ZERO)
    if value < 0:
        amount = -amount  # The customer pays, because the return takes back a discount.
    excess = sum(
        (
            value - _accepted(value, bought.items.get(item, _ZERO))
            for item, value in returned.items.items()
            if not _can_be_any(item, bought.items)
        ),
        _ZERO,
    )
    if excess == value:
        return _ZERO
    if programme.tax_basis is TaxBasis.TAXABLE and returned.taxable_amount is not None and abs(amount) < abs(value):
        # Items have gross values. The excess never grows here, also if the value is almost 0.
        excess = excess * amount / value
    return max(amount - excess, min(_ZERO, value - excess))


def _accepted(value: Decimal, left: Decimal) -> Decimal:
    """Returns the part of a returned value that the purchase still has. The values of discounts are negative."""
    return max(_ZERO, min(value, left)) if value > 0 else min(_ZERO, max(value, left))


def _can_be_any(item: str, left: Mapping[str, Decimal]) -> bool:
    """Whether the code of a returned item does not show which item of the purchase it is.

    If the purchase sold something without a code, a code that the purchase never had can name this item.
    """
    return not item or (item not in left and _sold_without_code(left))


def _sold_without_code(left: Mapping[str, Decimal]) -> bool:
    """Whether a line without an item code sold something. A return can then name a code that the purchase lacks.

    A discount can also have no code, but its value is negative. After a return of everything without a code, the value
    of the code "" is 0.
    """
    return left.get("", Decimal(-1)) >= 0


def after_return_of_unknown_items(bought: PastPurchase, amount: Decimal, programme: Programme) -> PastPurchase:
    """Returns the part that is left after a return of that amount, whose items are not known.

    The purchase loses only the base points of the amount.
    """
    amount_left = bought.amount - amount
    lost = base_points(bought.amount, programme) - base_points(amount_left, programme)
    return bought._replace(amount=amount_left, earned=max(0, bought.earned - lost))


def values_by_item(lines: Iterable[Line]) -> dict[str, Decimal]:
    """Returns the sum of the values of the lines of each item code."""
    values: dict[str, Decimal] = {}
    for line in lines:
        values[line.item_code] = values.get(line.item_code, _ZERO) + line.value
    return values


def _at_most(items: Mapping[str, Decimal], amount: Decimal) -> tuple[Line, ...]:
    """Returns lines that are worth at most the amount, for a return that does not name its lines."""
    lines = []
    for item, left in items.items():
        value = min(max(_ZERO, left), amount)
        amount -= value
        if value > 0:
            lines.append(Line(item, value))
    return tuple(lines)
