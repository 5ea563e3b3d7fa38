"""Applies changes at due times: points become available, are announced, expire; reservations lapse; periods end."""

from services.domain.account import purchases
from services.domain.account.lots import Terms, soonest_first
from services.domain.account.model import Account, Outcome
from services.domain.account.posting import Posting
from services.domain.entries import Kind
from services.domain.formats import points_text
from services.domain.local_time import ZONES_APART, end_of_period
from services.domain.programme import Programmes


def apply_due_changes(account: Account, until: int, programmes: Programmes, outcome: Outcome) -> None:
    """Applies all changes that are due at or before that time, in the order of their due times."""
    while apply_next_change(account, until, programmes, outcome):
        pass


def apply_next_change(account: Account, until: int, programmes: Programmes, outcome: Outcome) -> bool:
    """Applies the first change that is due at or before that time, which creates at most one entry.

    Returns whether there was such a change.
    """
    due = account.next_due()
    if due is None or due > until:
        return False
    # A voided reservation can return points whose due time has already passed.
    time = max(due, account.updated_time)
    _apply(Posting(account, programmes, programmes.at(time), time, outcome), due)
    return True


def _apply(posting: Posting, due: int) -> None:
    """Applies one change that is due at exactly that time."""
    account = posting.account
    if lots := soonest_first(terms for terms in account.lots if due in terms):
        _change_lot(posting, lots[0], due)
        return
    for redemption_id, reservation in account.reservations.items():
        if reservation.lapses_time == due:
            del account.reservations[redemption_id]
            posting.add_points(reservation.lots)
            posting.add_entry(Kind.LAPSED, event_id=redemption_id)
            return
    _end_period(posting)


def _change_lot(posting: Posting, terms: Terms, due: int) -> None:
    points = posting.account.lots.pop(terms)
    if terms.expires_time == due:
        purchases.note_expired_points(posting, due, points)
        posting.add_entry(Kind.EXPIRED, -points, expires_time=due)
    elif terms.available_time == due:
        posting.add_points({terms._replace(available_time=0): points})
        posting.add_entry(Kind.RELEASED, expires_time=terms.expires_time)
    else:
        posting.add_points({terms._replace(notice_time=0): points})
        posting.add_entry(Kind.EXPIRES_SOON, expires_time=terms.expires_time, reason=points_text(points))


def _end_period(posting: Posting) -> None:
    """Sets the tier from the points of the period that ends. No new period begins if these are 0."""
    account, programme = posting.account, posting.programme
    start, earned = account.period_end, account.earned_in_period
    account.period_start = account.period_end = account.earned_in_period = 0
    if earned and programme.tier_period:
        account.period_start = start
        # ``start`` is midnight in the time zone of an earlier version. In a zone further west this is the day before.
        account.period_end = end_of_period(start + ZONES_APART, programme.tier_period, programme.time_zone)
    tier = programme.tier_for(earned)
    if tier != account.tier:
        before, account.tier = account.tier, tier
        posting.add_entry(Kind.TIER, reason=before)
