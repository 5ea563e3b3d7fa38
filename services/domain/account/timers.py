"""What time does to an account: release, notice and expiry of lots, lapse of reservations, the end of a tier period."""

from services.domain.account.lots import Terms, soonest_first
from services.domain.account.model import Account, Outcome, Posting
from services.domain.entries import Kind
from services.domain.formats import to_points
from services.domain.local_time import period_of
from services.domain.programme import Programmes
from services.domain.tiers import tier_for


def apply_due_changes(account: Account, until: int, programmes: Programmes, outcome: Outcome) -> None:
    """All that is due by then, in the order of due times."""
    while (due := account.next_due()) is not None and due <= until:
        # What came back late, as from a void reservation, is due by a time that has passed.
        time = max(due, account.updated_time)
        _do(Posting(account, programmes, programmes.at(time), time, outcome), due)


def _do(posting: Posting, due: int) -> None:
    """One thing that is due at that very time."""
    account = posting.account
    if lots := soonest_first(terms for terms in account.lots if due in terms):
        _change_lot(posting, lots[0], due)
        return
    for redemption_id, reservation in account.reservations.items():
        if reservation.lapses_time == due:
            del account.reservations[redemption_id]
            posting.put(reservation.lots)
            posting.enter(Kind.LAPSED, event_id=redemption_id)
            return
    _end_period(posting)


def _change_lot(posting: Posting, terms: Terms, due: int) -> None:
    points = posting.account.lots.pop(terms)
    if terms.expires_time == due:
        posting.enter(Kind.EXPIRED, -points, expires_time=due)
    elif terms.available_time == due:
        posting.put({terms._replace(available_time=0): points})
        posting.enter(Kind.RELEASED, expires_time=terms.expires_time)
    else:
        posting.put({terms._replace(notice_time=0): points})
        posting.enter(Kind.EXPIRES_SOON, expires_time=terms.expires_time, reason=str(to_points(points)))


def _end_period(posting: Posting) -> None:
    """The tier goes by the period that ends now. After one in which nothing was earned, nothing is left to end."""
    account, programme = posting.account, posting.programme
    start, earned = account.period_end, account.earned_in_period
    account.period_start = account.period_end = account.earned_in_period = 0
    if earned and programme.tier_period:
        account.period_start = start
        account.period_end = period_of(start, programme.tier_period, programme.time_zone)[1]
    tier = tier_for(earned, programme)
    if tier != account.tier:
        before, account.tier = account.tier, tier
        posting.enter(Kind.TIER, reason=before)
