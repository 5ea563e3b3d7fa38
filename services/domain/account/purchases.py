"""Applies purchases and returns to an account. Points are hundredths; amounts are in units of money."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from services.domain.account.lots import earned_terms
from services.domain.account.memory import is_remembered
from services.domain.account.model import LARGEST_TOTAL, Account, PastPurchase, PastReturn
from services.domain.account.partial_returns import after_return, after_return_of_unknown_items, values_by_item
from services.domain.account.posting import Posting
from services.domain.accrual import accrual, spend
from services.domain.entries import RECEIPT_TOO_OLD, Kind, Refusal, ReturnReason
from services.domain.events import Forward, Line, Purchase, halves
from services.domain.local_time import ZONES_APART, end_of_day, end_of_period
from services.domain.programme import DAY, Programme, Programmes, SpentReturns
from services.domain.receipt_time import ApplicableRules, applicable_rules, is_eligible, with_campaign_time
from services.domain.returns import InvoiceKind

MOST_WAITING = 1_000
"""The largest number of returns of one account that wait for their purchases. Further returns take no points."""


def counts(purchase: Purchase, account: Account | None, programmes: Programmes) -> bool:
    """Whether an invoice changes the account: the customer type is eligible, or a member returns something."""
    if is_eligible(purchase, programmes):
        return True
    return account is not None and purchase.original_invoice_number is not None


def lacks_its_sale(account: Account, event: Purchase, programmes: Programmes) -> bool:
    """Whether the account has read only the returned half of an exchange.

    An exchange with a replaced card reaches the new card in two messages, in any order: the old card sends the whole
    exchange, and the index of invoices sends the returned half.
    """
    bought = account.purchases.get(event.invoice_number)
    is_sale_known = bought is not None and is_remembered(bought, event.append_time, programmes)
    is_exchange = bool(event.redirect_id) and event.invoice_kind is InvoiceKind.EXCHANGE
    return is_exchange and not is_sale_known and is_eligible(event, programmes)


def process_purchase(posting: Posting, event: Purchase) -> None:
    """Adds the points of a purchase, takes back the points of a return, or both for an exchange.

    The sold half of an exchange comes first, as purchases come before returns of the same millisecond.
    """
    sold, returned = halves(event)
    rules = applicable_rules(event, posting.programmes)
    if sold and rules.programme.is_eligible(sold.customer_type):
        sale = posting.of(sold, rules.programme)
        points = _earn(sale, with_campaign_time(sold, posting.programmes), rules)
        if rules.programme.tier_period:
            # Tiers follow the time of arrival. The version of a late receipt may not know the customer's tier.
            _count_towards_tier(posting.of(sold, posting.programme), sold.invoice_number, points)
    if returned and event.invoice_number not in posting.account.returns:
        _process_return(posting.of(returned, posting.programme), returned)
    settle(posting, event.invoice_number)


def process_forwarded_return(posting: Posting, event: Forward) -> None:
    """Takes back the points of a return that the index of invoices has forwarded."""
    sold, returned = halves(event.invoice)
    if returned:
        _process_return(posting, returned, is_half=sold is not None)


def note_expired_points(posting: Posting, expires_time: int, points: int) -> None:
    """Notes expired points in the purchases that earned them, so that a return does not take them once more.

    Points that expire at the same time are one lot, so it is not known which of them a redemption has spent. This
    function assumes that points of adjustments were spent first, and then points of the oldest purchases. So it notes
    the expired points in the newest purchases first.
    """
    purchases = posting.account.purchases
    expired = [each for each in purchases.items() if _expired(each[1], posting.programmes, expires_time)]
    for number, bought in _newest_first(expired):
        part = min(points, bought.remaining)
        points -= part
        purchases[number] = bought._replace(expired=bought.expired + part)


def _newest_first(purchases: Iterable[tuple[str, PastPurchase]]) -> list[tuple[str, PastPurchase]]:
    """Sorts purchases by append time. The account has them in the order in which the query read them."""
    return sorted(purchases, key=lambda item: (item[1].append_time, item[0]), reverse=True)


def _expired(bought: PastPurchase, programmes: Programmes, expires_time: int) -> bool:
    programme = programmes.version(bought.programme_version)
    # Points expire at the end of a day. This comparison excludes most purchases without the slow calendar.
    if programme.valid_for is None or not 0 <= expires_time - bought.time - programme.valid_for < 2 * DAY:
        return False
    return earned_terms(bought.time, programme).expires_time == expires_time


def _is_returnable(bought: PastPurchase, now: int, programmes: Programmes) -> bool:
    """Whether the return window of the purchase is open. The version that applies to the purchase sets its length."""
    return now <= bought.append_time + programmes.version(bought.programme_version).return_window


def _earn(posting: Posting, event: Purchase, rules: ApplicableRules) -> int:
    """Adds the points of a purchase, and returns their number."""
    account, programme = posting.account, rules.programme
    today = _earned_on_day(account, rules.time, programme) if programme.cap_per_day is not None else 0
    points = accrual(event, programme, account.tier, today, is_blocked=account.is_blocked).points
    points = min(points, max(0, LARGEST_TOTAL - account.total))
    past = _past_purchase(event, programme, account.tier, points)
    # A till can use a number again before the account forgets its purchase. The new purchase is the newest one.
    account.purchases.pop(event.invoice_number, None)
    account.purchases[event.invoice_number] = (
        past if rules.time == event.append_time else past._replace(decided_time=rules.time)
    )
    terms = earned_terms(rules.time, programme)
    posting.add_points({terms: points})
    if programme.earns_nothing(is_blocked=account.is_blocked):
        reason = str(Refusal.CARD_BLOCKED)
    else:
        reason = RECEIPT_TOO_OLD if rules.is_too_late else ""
    posting.add_entry(Kind.EARNED, points, expires_time=terms.expires_time, reason=reason)
    return points


def _earned_on_day(account: Account, time: int, programme: Programme) -> int:
    """Returns the hundredths that purchases of the day have earned and not lost by returns."""
    end = end_of_day(time, programme.time_zone)
    # No day has 48 hours. The first comparison excludes most purchases without the slow calendar.
    same_day = (
        bought.earned
        for bought in account.purchases.values()
        if abs(bought.time - time) < 2 * DAY and end_of_day(bought.time, programme.time_zone) == end
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
        items=values_by_item(purchase.lines) if purchase.lines else None,
    )


def _count_towards_tier(posting: Posting, number: str, points: int) -> None:
    account, programme = posting.account, posting.programme
    if programme.tier_period and (not account.period_end or posting.time < account.period_start):
        period_end = end_of_period(posting.time, programme.tier_period, programme.time_zone)
        if account.period_end in {0, period_end}:
            account.period_start, account.period_end = posting.time, period_end
    if not account.period_end:
        return
    if posting.time < account.period_start:
        account.purchases[number] = account.purchases[number]._replace(counted_until=account.period_end)
    account.earned_in_period += points
    reached = programme.tier_for(account.earned_in_period)
    if programme.tier_rank(reached) > programme.tier_rank(account.tier):
        before, account.tier = account.tier, reached
        posting.add_entry(Kind.TIER, reason=before)


def _is_of_period(bought: PastPurchase, account: Account) -> bool:
    """Whether the purchase counts in the current tier period."""
    # A merged account can have another time zone.
    is_late = abs(bought.counted_until - account.period_end) < ZONES_APART
    return is_late or bought.append_time >= account.period_start


def _process_return(posting: Posting, event: Purchase, *, is_half: bool = False) -> None:
    account, original = posting.account, event.original_invoice_number
    if original is not None:
        amounts = event.total_amount, _returned_items(event.lines), event.taxable_amount
        returned = PastReturn(event.append_time, posting.programme.version, original, *amounts, is_half)
        _decide_return(posting, event.invoice_number, returned)
        return
    taken = _return_without_reference(posting, event)
    account.returns[event.invoice_number] = PastReturn(event.append_time, posting.programme.version)
    posting.add_entry(Kind.RETURNED, -taken)


def _returned_items(lines: Sequence[Line]) -> dict[str, Decimal] | None:
    """Returns the value of each returned item. It is negative if the return only takes back a discount of the item.

    Some tills send returns as positive amounts.
    """
    sign = -1 if any(line.value < 0 for line in lines) else 1
    return values_by_item(replace(line, value=sign * line.value) for line in lines) if lines else None


def _decide_return(posting: Posting, number: str, returned: PastReturn) -> None:
    """Takes back the points of a return that names its original, refuses it, or lets it wait for its purchase.

    The account remembers every return, so that a duplicate of it does nothing.
    """
    account, original = posting.account, returned.original
    bought = account.purchases.get(original)
    kind, taken, reason = Kind.RETURNED, 0, ""
    # Remember the return as decided, which means without its original. The branch below lets it wait instead.
    account.returns[number] = PastReturn(returned.append_time, returned.programme_version, is_half=returned.is_half)
    is_original_a_return = original in account.returns and not bought and not account.returns[original].is_half
    if number == original or is_original_a_return:
        kind, reason = Kind.REFUSED, str(ReturnReason.RETURN_OF_RETURN)
    elif bought and _is_returnable(bought, returned.append_time, posting.programmes):
        programme = posting.programmes.version(bought.programme_version)
        taken = _take_back(posting, original, bought, after_return(bought, returned, programme))
    elif bought and is_remembered(bought, returned.append_time, posting.programmes):
        reason = str(ReturnReason.WINDOW_OVER)
    elif sum(bool(past.original) for past in account.returns.values()) < MOST_WAITING:
        account.returns[number], reason = returned, str(ReturnReason.PURCHASE_UNKNOWN)
    else:
        reason = str(ReturnReason.TOO_MANY_WAIT)
    posting.add_entry(kind, -taken, reason=reason, invoice_number=number, total_amount=returned.amount)


def settle(posting: Posting, original: str) -> None:
    """Decides the returns that wait for this invoice, in the order in which they came."""
    waiting = [(number, past) for number, past in posting.account.returns.items() if past.original == original]
    for number, returned in waiting:
        _decide_return(posting, number, returned)


def _return_without_reference(posting: Posting, event: Purchase) -> int:
    """Takes back the points of a return that names no original. Returns their number.

    It takes the newest purchases first, because tills name the original invoice if the purchase is old.
    """
    rest = abs(spend(event.total_amount, event.taxable_amount, posting.programme))
    taken = 0
    for number, bought in _newest_first(posting.account.purchases.items()):
        if not rest:
            break
        # A taxable amount can be negative. Such a purchase has earned nothing, and a return of it would add points.
        if bought.amount <= 0 or not _is_returnable(bought, posting.time, posting.programmes):
            continue
        part = min(rest, bought.amount)
        rest -= part
        programme = posting.programmes.version(bought.programme_version)
        taken += _take_back(posting, number, bought, after_return_of_unknown_items(bought, part, programme))
    return taken


def _take_back(posting: Posting, number: str, bought: PastPurchase, left: PastPurchase) -> int:
    """Replaces a purchase by the part that is left, and takes back the points of the returned part.

    Returns how many points it took.
    """
    account, programme = posting.account, posting.programmes.version(bought.programme_version)
    account.purchases[number] = left
    no_longer_earned = bought.earned - left.earned
    if not no_longer_earned:
        return 0
    # A tier that the customer has reached stays until the period ends. Earlier periods do not change, and a version
    # without tiers counted nothing.
    is_counted = programme.tier_period is not None
    if is_counted and account.period_end and _is_of_period(bought, account):
        account.earned_in_period = max(0, account.earned_in_period - no_longer_earned)
    points = bought.remaining - left.remaining
    # Reserved points are not spent yet. If the redemption ends without a capture, they pay the debt.
    is_negative_allowed = programme.spent_returns is SpentReturns.NEGATIVE_ALLOWED
    most_debt = points if is_negative_allowed else max(0, account.reserved - account.debt)
    terms = earned_terms(bought.time, programme)
    before = account.debt
    taken = posting.take_back(points, terms, most_debt=most_debt)
    if not is_negative_allowed:
        account.reserved_debt += account.debt - before
    return taken
