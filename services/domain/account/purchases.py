"""Purchases and returns in an account. Points are hundredths."""

from services.domain.account.lots import Terms, earned_terms
from services.domain.account.model import REMEMBERED, Account, Posting
from services.domain.account.returns import PastPurchase, past, past_return, returned, returned_without_reference
from services.domain.accrual import accrual, eligible
from services.domain.entries import Kind
from services.domain.events import Purchase
from services.domain.local_time import period_of
from services.domain.programme import Programme, SpentReturns
from services.domain.tiers import rank, tier_for


def counts(purchase: Purchase, account: Account | None, programme: Programme) -> bool:
    """Whether a purchase concerns the account: of a customer who takes part, or a return of something that did."""
    if eligible(purchase, programme):
        return True
    return account is not None and purchase.original_invoice_number in account.purchases


def purchase(posting: Posting, event: Purchase) -> None:
    """A purchase earns; a return takes back."""
    if event.is_return:
        _return(posting, event)
    else:
        _earn(posting, event)


def forget(account: Account, now: int, programme: Programme) -> None:
    """Purchases that can neither be returned nor repeated, and commands that cannot be repeated."""
    window = max(programme.return_window, REMEMBERED)
    # Few are outdated at a time, and the oldest are first.
    while account.purchases and account.purchases[number := next(iter(account.purchases))].append_time + window < now:
        del account.purchases[number]
    while account.commands and account.commands[command_id := next(iter(account.commands))] + REMEMBERED < now:
        del account.commands[command_id]


def _earn(posting: Posting, event: Purchase) -> None:
    account, programme = posting.account, posting.programme
    points = accrual(event, programme, account.tier).points
    account.purchases[event.invoice_number] = past(event, programme, account.tier, points)
    terms = earned_terms(event.append_time, programme)
    posting.put({terms: points})
    posting.enter(Kind.EARNED, points, expires_time=terms.expires_time)
    if programme.tier_period:
        _count_towards_tier(posting, points)


def _count_towards_tier(posting: Posting, points: int) -> None:
    account, programme = posting.account, posting.programme
    if not account.period_end and programme.tier_period:
        account.period_start, account.period_end = period_of(posting.time, programme.tier_period, programme.time_zone)
    account.earned_in_period += points
    reached = tier_for(account.earned_in_period, programme)
    if rank(reached, programme) > rank(account.tier, programme):
        before, account.tier = account.tier, reached
        posting.enter(Kind.TIER, reason=before)


def _return(posting: Posting, event: Purchase) -> None:
    account = posting.account
    taken = 0
    original = account.purchases.get(event.original_invoice_number or "")
    if original is not None and event.original_invoice_number is not None:
        left = returned(original, event, posting.programmes.version(original.programme_version))
        taken = _take_back(posting, event.original_invoice_number, original, left)
    elif event.original_invoice_number is None:
        taken = _return_without_reference(posting, event)
    account.purchases[event.invoice_number] = past_return(event, posting.programme)
    posting.enter(Kind.RETURNED, -taken)


def _return_without_reference(posting: Posting, event: Purchase) -> int:
    """The newest purchases first, as tills name the original of what has been bought long ago."""
    back = abs(event.total_amount)
    taken = 0
    for number, bought in reversed(posting.account.purchases.items()):
        if not back:
            break
        part = min(back, bought.amount)
        back -= part
        if part:
            programme = posting.programmes.version(bought.programme_version)
            taken += _take_back(posting, number, bought, returned_without_reference(bought, part, programme))
    return taken


def _take_back(posting: Posting, number: str, bought: PastPurchase, left: PastPurchase) -> int:
    """Replace a purchase by what is left of it, and take the points of the rest."""
    account = posting.account
    account.purchases[number] = left
    points = bought.earned - left.earned
    if not points:
        return 0
    _count_against_tier(posting, bought.append_time, points)
    into_debt = posting.programme.spent_returns is SpentReturns.NEGATIVE_ALLOWED
    return posting.take_back(points, _terms_of(posting, bought), into_debt=into_debt)


def _terms_of(posting: Posting, bought: PastPurchase) -> Terms:
    return earned_terms(bought.append_time, posting.programmes.version(bought.programme_version))


def _count_against_tier(posting: Posting, bought_time: int, points: int) -> None:
    """A tier that is reached stays until the running period ends; what earlier periods were worth is settled."""
    account = posting.account
    if account.period_end and bought_time >= account.period_start:
        account.earned_in_period = max(0, account.earned_in_period - points)
