"""Purchases and returns in an account. Points are hundredths; amounts are in units of money."""

from collections.abc import Iterable, Mapping
from decimal import Decimal

from services.domain.account.lots import earned_terms
from services.domain.account.model import EVENT_MEMORY, LARGEST_TOTAL, RETURN_MEMORY, Account, PastPurchase, PastReturn
from services.domain.account.posting import Posting
from services.domain.accrual import accrual, base_points, earnings, spend
from services.domain.entries import RECEIPT_TOO_OLD, Kind, Refusal, ReturnReason
from services.domain.events import Forward, Line, Purchase, halves
from services.domain.local_time import end_of_day, period_of
from services.domain.programme import DAY, Programme, Programmes, SpentReturns, TaxBasis
from services.domain.receipt_time import Decided, as_decided, decided
from services.domain.returns import InvoiceKind

MOST_WAITING = 1_000
"""The largest number of returns of one account that wait for their purchases. Further ones take nothing."""

_ZERO = Decimal(0)
_SMALLEST_AMOUNT = Decimal("0.000001")


def counts(purchase: Purchase, account: Account | None, programmes: Programmes) -> bool:
    """Whether an invoice changes the account: the customer type is eligible, or a member returns something."""
    if decided(purchase, programmes).rules.is_eligible(purchase.customer_type):
        return True
    is_sale = purchase.invoice_kind is InvoiceKind.SALE
    return account is not None and not is_sale and purchase.original_invoice_number is not None


def lacks_its_sale(account: Account, event: Purchase, programmes: Programmes) -> bool:
    """Whether the account has read only the returned half of an exchange.

    An exchange with a replaced card reaches the new card in two messages, in any order: the old card sends the whole
    exchange, and the index of invoices sends the returned half.
    """
    is_sent_here = bool(event.redirect_id) and event.invoice_number not in account.purchases
    is_exchange = is_sent_here and event.invoice_kind is InvoiceKind.EXCHANGE
    return is_exchange and decided(event, programmes).rules.is_eligible(event.customer_type)


def purchase(posting: Posting, event: Purchase) -> None:
    """Adds the points of a purchase, takes back the points of a return, or both for an exchange.

    The half that adds points comes first, as it does for two events of one millisecond.
    """
    sold, returned = halves(event)
    arrival, how = posting.programme, decided(event, posting.programmes)
    if sold and how.rules.is_eligible(sold.customer_type):
        posting.event, posting.programme = sold, how.rules
        points = _earn(posting, as_decided(sold, posting.programmes), how)
        posting.programme = arrival
        # Tiers follow the time of arrival. The version of a late receipt may not know the customer's tier.
        if how.rules.tier_period:
            _count_towards_tier(posting, points)
    if returned and event.invoice_number not in posting.account.returns:
        posting.event = returned
        _return(posting, returned)
    settle(posting, event.invoice_number)


def forwarded(posting: Posting, event: Forward) -> None:
    """Takes back the points of a return that the index of invoices has forwarded."""
    sold, returned = halves(event.invoice)
    if returned:
        _return(posting, returned, is_half=sold is not None)


def expire(posting: Posting, expires_time: int, points: int) -> None:
    """Notes expired points in the purchases that earned them, so that a return does not take them once more.

    A redemption spends points of the same expiry without an order. Here it spends those of adjustments first, and then
    those of the oldest purchase.
    """
    for number, bought in reversed(posting.account.purchases.items()):
        programme = posting.programmes.version(bought.programme_version)
        if points and bought.remaining and _expired(bought, programme, expires_time):
            part = min(points, bought.remaining)
            points -= part
            posting.account.purchases[number] = bought._replace(expired=bought.expired + part)


def _expired(bought: PastPurchase, programme: Programme, expires_time: int) -> bool:
    """Whether the points of the purchase expire at that time."""
    # They expire at the end of a day. Most purchases need no calendar to know that it is another day.
    if programme.valid_for is None or not 0 <= expires_time - bought.time - programme.valid_for < 2 * DAY:
        return False
    return earned_terms(bought.time, programme).expires_time == expires_time


def forget(account: Account, now: int, programmes: Programmes) -> None:
    """Removes purchases, returns and commands that the account does not have to remember any more."""
    # The oldest are first, so these loops look at few that remain. But an account can forget a return that waits before
    # an older one that is decided. So the loop over the returns looks at all of them.
    while account.purchases:
        number = next(iter(account.purchases))
        if _is_remembered(account.purchases[number], now, programmes):
            break
        del account.purchases[number]
        if number in account.returns:
            account.returns[number] = account.returns[number]._replace(is_half=True)
    for number in [each for each, past in account.returns.items() if not _is_remembered(past, now, programmes)]:
        del account.returns[number]
    while account.commands:
        command_id, decided = next(iter(account.commands.items()))
        if decided.append_time + EVENT_MEMORY >= now:
            break
        del account.commands[command_id]


def remembers(account: Account, invoice_number: str, now: int, programmes: Programmes) -> bool:
    """Whether the account still knows the invoice at that time. ``forget`` may remove it later."""
    pasts = account.purchases.get(invoice_number), account.returns.get(invoice_number)
    return any(past is not None and _is_remembered(past, now, programmes) for past in pasts)


def _is_remembered(past: PastPurchase | PastReturn, now: int, programmes: Programmes) -> bool:
    programme = programmes.version(past.programme_version)
    if isinstance(past, PastPurchase):
        memory = max(EVENT_MEMORY, programme.purchase_memory)
    else:
        memory = max(RETURN_MEMORY, programme.return_window)
        if not past.original:
            # Its purchase may have come at the end of that time. The copy that the index forwards comes after it.
            memory += EVENT_MEMORY
    return now <= past.append_time + memory


def _is_returnable(bought: PastPurchase, now: int, programmes: Programmes) -> bool:
    """Whether the return window of the purchase is open. The version that decided the purchase says how long it is."""
    return now <= bought.append_time + programmes.version(bought.programme_version).return_window


def _earn(posting: Posting, event: Purchase, how: Decided) -> int:
    account, programme = posting.account, how.rules
    today = _earned_on_day(account, how.time, programme) if programme.cap_per_day is not None else 0
    points = accrual(event, programme, account.tier, today, is_blocked=account.is_blocked).points
    points = min(points, max(0, LARGEST_TOTAL - account.total))
    past = _past_purchase(event, programme, account.tier, points)
    account.purchases[event.invoice_number] = (
        past if how.time == event.append_time else past._replace(decided_time=how.time)
    )
    terms = earned_terms(how.time, programme)
    posting.add({terms: points})
    reason = RECEIPT_TOO_OLD if how.is_too_late else ""
    reason = str(Refusal.CARD_BLOCKED) if programme.earns_nothing(is_blocked=account.is_blocked) else reason
    posting.enter(Kind.EARNED, points, expires_time=terms.expires_time, reason=reason)
    return points


def _earned_on_day(account: Account, time: int, programme: Programme) -> int:
    """Returns the hundredths that purchases of the day have earned and not lost by returns."""
    end = end_of_day(time, programme.time_zone)
    same_day = (
        bought.earned for bought in account.purchases.values() if end_of_day(bought.time, programme.time_zone) == end
    )
    return sum(same_day)


def _past_purchase(purchase: Purchase, programme: Programme, tier: str, earned: int) -> PastPurchase:
    created_time, store_id = 0, ""
    if programme.campaigns:
        created_time = purchase.append_time if purchase.created_time is None else purchase.created_time
        store_id = purchase.store_id
    return PastPurchase(
        purchase.append_time,
        spend(purchase.total_amount, purchase.taxable_amount, programme),
        earned,
        programme.version,
        tier,
        created_time,
        store_id,
        items=_values_by_item(purchase.lines) if purchase.lines else None,
    )


def _count_towards_tier(posting: Posting, points: int) -> None:
    account, programme = posting.account, posting.programme
    if not account.period_end:
        if programme.tier_period is None:
            return
        account.period_start, account.period_end = period_of(posting.time, programme.tier_period, programme.time_zone)
    account.earned_in_period += points
    reached = programme.tier_for(account.earned_in_period)
    if programme.tier_rank(reached) > programme.tier_rank(account.tier):
        before, account.tier = account.tier, reached
        posting.enter(Kind.TIER, reason=before)


def _return(posting: Posting, event: Purchase, *, is_half: bool = False) -> None:
    account, original = posting.account, event.original_invoice_number
    if original is not None:
        items = _values_by_item(Line(line.item_code, abs(line.value)) for line in event.lines) if event.lines else None
        amounts = event.total_amount, items, event.taxable_amount
        returned = PastReturn(event.append_time, posting.programme.version, original, *amounts, is_half)
        _return_of(posting, event.invoice_number, returned)
        return
    taken = _return_without_reference(posting, event)
    account.returns[event.invoice_number] = PastReturn(event.append_time, posting.programme.version)
    posting.enter(Kind.RETURNED, -taken)


def _return_of(posting: Posting, number: str, returned: PastReturn) -> None:
    """Takes back the points of a return that names its original, refuses it, or lets it wait for its purchase.

    The account remembers every return, so that a duplicate of it does nothing.
    """
    account, original = posting.account, returned.original
    bought = account.purchases.get(original)
    kind, taken, reason = Kind.RETURNED, 0, ""
    # A return that has not been decided keeps its original, and waits.
    account.returns[number] = PastReturn(returned.append_time, returned.programme_version, is_half=returned.is_half)
    is_return = original in account.returns and not bought and not account.returns[original].is_half
    if number == original or is_return:
        kind, reason = Kind.REFUSED, str(ReturnReason.RETURN_OF_RETURN)
    elif bought and not _is_returnable(bought, returned.append_time, posting.programmes):
        reason = str(ReturnReason.WINDOW_OVER)
    elif bought:
        programme = posting.programmes.version(bought.programme_version)
        taken = _take_back(posting, original, bought, _after_return(bought, returned, programme))
    elif sum(bool(past.original) for past in account.returns.values()) < MOST_WAITING:
        account.returns[number], reason = returned, str(ReturnReason.PURCHASE_UNKNOWN)
    else:
        reason = str(ReturnReason.TOO_MANY_WAIT)
    posting.enter(kind, -taken, reason=reason, invoice_number=number, total_amount=returned.amount)


def settle(posting: Posting, original: str) -> None:
    """Decides the returns that wait for this invoice, in the order in which they came."""
    waiting = [(number, past) for number, past in posting.account.returns.items() if past.original == original]
    for number, returned in waiting:
        _return_of(posting, number, returned)


def _return_without_reference(posting: Posting, event: Purchase) -> int:
    """Takes the return from the newest purchases first. Tills name the original invoice if the purchase is old."""
    rest = abs(spend(event.total_amount, event.taxable_amount, posting.programme))
    taken = 0
    for number, bought in reversed(posting.account.purchases.items()):
        if not rest:
            break
        # A taxable amount can be negative. Such a purchase earned nothing, and a return from it would add points.
        if bought.amount <= 0 or not _is_returnable(bought, posting.time, posting.programmes):
            continue
        part = min(rest, bought.amount)
        rest -= part
        programme = posting.programmes.version(bought.programme_version)
        taken += _take_back(posting, number, bought, _after_return_of_unknown_items(bought, part, programme))
    return taken


def _take_back(posting: Posting, number: str, bought: PastPurchase, left: PastPurchase) -> int:
    """Replaces a purchase by the part that is left, and takes back the points of the returned part."""
    account = posting.account
    account.purchases[number] = left
    points = bought.earned - left.earned
    if not points:
        return 0
    # A tier that the customer has reached stays until the period ends. Earlier periods do not change, and a version
    # without tiers counted nothing.
    counted = posting.programmes.version(bought.programme_version).tier_period is not None
    if counted and account.period_end and bought.append_time >= account.period_start:
        account.earned_in_period = max(0, account.earned_in_period - points)
    points = bought.remaining - left.remaining
    # Reserved points are not spent yet. If the redemption ends without a capture, they pay the debt.
    is_negative_allowed = posting.programme.spent_returns is SpentReturns.NEGATIVE_ALLOWED
    most_debt = points if is_negative_allowed else max(0, account.reserved - account.debt)
    terms = earned_terms(bought.time, posting.programmes.version(bought.programme_version))
    before = account.debt
    taken = posting.take_back(points, terms, most_debt=most_debt)
    if not is_negative_allowed:
        account.reserved_debt += account.debt - before
    return taken


def _after_return(bought: PastPurchase, returned: PastReturn, programme: Programme) -> PastPurchase:
    """Returns the part of the purchase that is left, and the points that it earns under the purchase's version.

    It computes these points again. The rounded points of many small returns would add up to another sum.
    A customer can return an item at most as often as the invoice sold it. Other lines of the return take nothing.
    Talon.One rolls back the points of single items and units, too (``RollbackAddedLoyaltyPoints``,
    ``cartItemSubPosition``).
    """
    left = {line.item_code: line.value for line in bought.lines} if bought.items is None else bought.items
    accepted = _accepted_amount(bought, returned, programme)
    amount, named = bought.amount - accepted, _ZERO
    if returned.items:
        named = sum((min(value, left.get(item, _ZERO)) for item, value in returned.items.items()), _ZERO)
        rest = ((item, value - returned.items.get(item, _ZERO)) for item, value in left.items())
        left = {item: value for item, value in rest if value > 0}
    # Only lines that are worth the returned money show which items are left. Others can lack a value.
    names_items = bought.items is not None and returned.items and "" not in returned.items and named >= accepted
    lines = tuple(Line(*each) for each in left.items()) if names_items else _at_most(left, amount)
    if bought.items is None:
        bought = bought._replace(lines=lines)
    else:
        bought = bought._replace(items=left)
    # What an exchange sells has gross values, and its return has a net amount. So a rest can be left without items.
    is_empty = names_items and not left and named >= bought.amount and programme.tax_basis is TaxBasis.TAXABLE
    if amount <= 0 or is_empty:
        return bought._replace(amount=_ZERO, earned=0)
    again = Purchase(bought.append_time, "", amount, bought.store_id, created_time=bought.created_time, lines=lines)
    earned = earnings(again, programme, bought.tier).points
    return bought._replace(amount=amount, earned=min(bought.earned, earned))


def _accepted_amount(bought: PastPurchase, returned: PastReturn, programme: Programme) -> Decimal:
    """Returns the money of the return, without items that the purchase no longer has if both know their items."""
    amount = abs(spend(returned.amount, returned.taxable_amount, programme))
    if bought.items is None or not returned.items:
        return amount
    excess = sum(
        (
            max(_ZERO, value - max(_ZERO, bought.items.get(item, _ZERO)))
            for item, value in returned.items.items()
            if item
        ),
        _ZERO,
    )
    if not excess:
        return amount
    value = sum(returned.items.values())
    if programme.tax_basis is TaxBasis.TAXABLE and returned.taxable_amount is not None:
        # The items have their gross values. More digits could leave a tiny rest, which some programmes round up.
        excess = (excess * amount / value).quantize(_SMALLEST_AMOUNT)
    return max(_ZERO, amount - excess) if excess != value else _ZERO


def _after_return_of_unknown_items(bought: PastPurchase, amount: Decimal, programme: Programme) -> PastPurchase:
    """Returns the part that is left after a return of that amount. It takes only base points: the items are unknown."""
    left = bought.amount - amount
    worth = base_points(bought.amount, programme) - base_points(left, programme)
    return bought._replace(amount=left, earned=max(0, bought.earned - worth))


def _values_by_item(lines: Iterable[Line]) -> dict[str, Decimal]:
    values: dict[str, Decimal] = {}
    for line in lines:
        values[line.item_code] = values.get(line.item_code, _ZERO) + line.value
    return values


def _at_most(items: Mapping[str, Decimal], amount: Decimal) -> tuple[Line, ...]:
    """Returns lines that are worth at most the amount, for a return that does not name its lines."""
    rest = []
    for item, left in items.items():
        value = min(left, amount)
        amount -= value
        if value > 0:
            rest.append(Line(item, value))
    return tuple(rest)
