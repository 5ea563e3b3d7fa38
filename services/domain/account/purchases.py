"""Purchases and returns in an account. Points are hundredths; amounts are in units of money."""

from collections.abc import Iterable
from decimal import Decimal

from services.domain.account.lots import earned_terms
from services.domain.account.model import EVENT_MEMORY, LARGEST_TOTAL, Account, PastPurchase
from services.domain.account.posting import Posting
from services.domain.accrual import accrual, base_points, earnings
from services.domain.entries import Kind
from services.domain.events import Line, Purchase
from services.domain.local_time import period_of
from services.domain.programme import Programme, Programmes, SpentReturns
from services.domain.returns import InvoiceKind

_ZERO = Decimal(0)


def counts(purchase: Purchase, account: Account | None, programmes: Programmes) -> bool:
    """Whether a purchase changes the account: the customer type is eligible, or it returns a remembered purchase."""
    if programmes.at(purchase.append_time).is_eligible(purchase.customer_type):
        return True
    bought = account.purchases.get(purchase.original_invoice_number or "") if account else None
    return bought is not None and _is_returnable(bought, purchase.append_time, programmes)


def purchase(posting: Posting, event: Purchase) -> None:
    """Adds the points of a purchase, or takes back the points of a return."""
    if event.invoice_kind is InvoiceKind.RETURN:
        _return(posting, event)
    else:
        _earn(posting, event)


def forget(account: Account, now: int, programmes: Programmes) -> None:
    """Removes purchases and commands that the account does not have to remember any more."""
    # The oldest are first, so the loops look at few that remain.
    while account.purchases:
        number = next(iter(account.purchases))
        if remembers(account, number, now, programmes):
            break
        del account.purchases[number]
    while account.commands:
        command_id, decided = next(iter(account.commands.items()))
        if decided.append_time + EVENT_MEMORY >= now:
            break
        del account.commands[command_id]


def remembers(account: Account, invoice_number: str, now: int, programmes: Programmes) -> bool:
    """Whether the account still knows the invoice at that time. ``forget`` may remove it later."""
    bought = account.purchases.get(invoice_number)
    if bought is None:
        return False
    window = programmes.version(bought.programme_version).return_window
    return now <= bought.append_time + max(window, EVENT_MEMORY)


def _is_returnable(bought: PastPurchase, now: int, programmes: Programmes) -> bool:
    """Whether the return window of the purchase is open. The version that decided the purchase says how long it is."""
    return now <= bought.append_time + programmes.version(bought.programme_version).return_window


def _earn(posting: Posting, event: Purchase) -> None:
    account, programme = posting.account, posting.programme
    points = min(accrual(event, programme, account.tier).points, max(0, LARGEST_TOTAL - account.total))
    account.purchases[event.invoice_number] = _past_purchase(event, programme, account.tier, points)
    terms = earned_terms(event.append_time, programme)
    posting.add({terms: points})
    posting.enter(Kind.EARNED, points, expires_time=terms.expires_time)
    if programme.tier_period:
        _count_towards_tier(posting, points)


def _past_purchase(purchase: Purchase, programme: Programme, tier: str, earned: int) -> PastPurchase:
    if not programme.campaigns:
        return PastPurchase(purchase.append_time, purchase.total_amount, earned, programme.version, tier)
    created_time = purchase.append_time if purchase.created_time is None else purchase.created_time
    items = frozenset[str]().union(*(campaign.items for campaign in programme.campaigns))
    values = _values_by_item(line for line in purchase.lines if line.item_code in items)
    return PastPurchase(
        purchase.append_time,
        purchase.total_amount,
        earned,
        programme.version,
        tier,
        created_time,
        purchase.store_id,
        tuple(Line(item, value) for item, value in values.items()),
    )


def _count_towards_tier(posting: Posting, points: int) -> None:
    account, programme = posting.account, posting.programme
    if not account.period_end and programme.tier_period:
        account.period_start, account.period_end = period_of(posting.time, programme.tier_period, programme.time_zone)
    account.earned_in_period += points
    reached = programme.tier_for(account.earned_in_period)
    if programme.tier_rank(reached) > programme.tier_rank(account.tier):
        before, account.tier = account.tier, reached
        posting.enter(Kind.TIER, reason=before)


def _return(posting: Posting, event: Purchase) -> None:
    account = posting.account
    taken = 0
    original = account.purchases.get(event.original_invoice_number or "")
    if event.original_invoice_number is None:
        taken = _return_without_reference(posting, event)
    elif original and _is_returnable(original, posting.time, posting.programmes):
        programme = posting.programmes.version(original.programme_version)
        left = _after_return(original, event, programme)
        taken = _take_back(posting, event.original_invoice_number, original, left)
    # The account remembers the return too, so that a duplicate of it does nothing.
    account.purchases[event.invoice_number] = PastPurchase(event.append_time, _ZERO, 0, posting.programme.version)
    posting.enter(Kind.RETURNED, -taken)


def _return_without_reference(posting: Posting, event: Purchase) -> int:
    """Returns the newest purchases first. Tills name the original invoice if the purchase is long ago."""
    rest = abs(event.total_amount)
    taken = 0
    for number, bought in reversed(posting.account.purchases.items()):
        if not rest:
            break
        if not bought.amount or not _is_returnable(bought, posting.time, posting.programmes):
            continue
        part = min(rest, bought.amount)
        rest -= part
        programme = posting.programmes.version(bought.programme_version)
        taken += _take_back(posting, number, bought, _after_return_of_unknown_items(bought, part, programme))
    return taken


def _take_back(posting: Posting, number: str, bought: PastPurchase, left: PastPurchase) -> int:
    """Replaces a purchase by what is left of it, and takes back the points of the rest."""
    account = posting.account
    account.purchases[number] = left
    points = bought.earned - left.earned
    if not points:
        return 0
    # A tier that the customer has reached stays until the period ends. Earlier periods do not change.
    if account.period_end and bought.append_time >= account.period_start:
        account.earned_in_period = max(0, account.earned_in_period - points)
    into_debt = posting.programme.spent_returns is SpentReturns.NEGATIVE_ALLOWED
    terms = earned_terms(bought.append_time, posting.programmes.version(bought.programme_version))
    return posting.take_back(points, terms, into_debt=into_debt)


def _after_return(bought: PastPurchase, returned: Purchase, programme: Programme) -> PastPurchase:
    """Returns what is left of the purchase, with the points that the rest earns under the version of the purchase.

    It computes the points of the rest again. The rounded points of many small returns would add up to another sum.
    """
    amount = bought.amount - abs(returned.total_amount)
    if amount <= 0:
        return bought._replace(amount=_ZERO, earned=0, lines=())
    lines = _without(bought.lines, returned.lines) if returned.lines else _at_most(bought.lines, amount)
    rest = Purchase(bought.append_time, "", amount, bought.store_id, created_time=bought.created_time, lines=lines)
    earned = earnings(rest, programme, bought.tier).points
    return bought._replace(amount=amount, earned=min(bought.earned, earned), lines=lines)


def _after_return_of_unknown_items(bought: PastPurchase, amount: Decimal, programme: Programme) -> PastPurchase:
    """Returns what is left after a return of that amount. Only base points are lost, because the items are unknown."""
    left = bought.amount - amount
    worth = base_points(bought.amount, programme) - base_points(left, programme)
    return bought._replace(amount=left, earned=max(0, bought.earned - worth))


def _values_by_item(lines: Iterable[Line]) -> dict[str, Decimal]:
    values: dict[str, Decimal] = {}
    for line in lines:
        values[line.item_code] = values.get(line.item_code, _ZERO) + line.value
    return values


def _without(lines: tuple[Line, ...], returned: Iterable[Line]) -> tuple[Line, ...]:
    values = _values_by_item(Line(line.item_code, abs(line.value)) for line in returned)
    rest = (Line(line.item_code, line.value - values.get(line.item_code, _ZERO)) for line in lines)
    return tuple(line for line in rest if line.value > 0)


def _at_most(lines: tuple[Line, ...], amount: Decimal) -> tuple[Line, ...]:
    """Returns lines that are worth at most the amount. A return without line items does not say which are left."""
    rest = []
    for line in lines:
        value = min(line.value, amount)
        amount -= value
        if value > 0:
            rest.append(Line(line.item_code, value))
    return tuple(rest)
