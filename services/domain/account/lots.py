"""Points in lots. Points are hundredths; times are milliseconds since the epoch."""

from collections.abc import Iterable
from typing import NamedTuple

from services.domain.local_time import end_of_day
from services.domain.programme import Programme


class Terms(NamedTuple):
    """The times at which a lot changes. A time is 0 if the change never happens, or has happened.

    The release of points sets their available time to 0. So points of ten years that never expire are one lot.

    Attributes:
        expires_time: the points are lost at this time.
        available_time: the points are pending until this time.
        notice_time: an entry announces the expiry at this time.
    """

    expires_time: int = 0
    available_time: int = 0
    notice_time: int = 0


Lots = dict[Terms, int]
"""Points by their terms, always above 0. The order of the dictionary has no meaning."""

_NEVER = 2**63


def earned_terms(time: int, programme: Programme) -> Terms:
    """Returns the terms of points that a purchase earns at that time."""
    if programme.valid_for is None and not programme.pending:
        return Terms()
    expires_time = 0 if programme.valid_for is None else end_of_day(time + programme.valid_for, programme.time_zone)
    available_time = time + programme.pending if programme.pending else 0
    return Terms(expires_time, available_time, notice_time(expires_time, programme))


def notice_time(expires_time: int, programme: Programme) -> int:
    """Returns the time of the notice of expiry, or 0 for no notice."""
    return expires_time - programme.expiry_notice if expires_time and programme.expiry_notice else 0


def spendable(lots: Lots) -> int:
    return sum([points for terms, points in lots.items() if not terms.available_time])


def next_expiry(lots: Lots) -> tuple[int, int]:
    """Returns when the next points expire, and how many. Pending points count. Returns zeros if none expire."""
    time = min([terms.expires_time for terms in lots if terms.expires_time], default=0)
    return time, sum([points for terms, points in lots.items() if time and terms.expires_time == time])


def add(lots: Lots, added: Lots) -> None:
    """Adds points to the lots of the same terms."""
    for terms, points in added.items():
        if points:
            lots[terms] = lots.get(terms, 0) + points


def soonest_first(lots: Iterable[Terms]) -> list[Terms]:
    """Sorts terms in the order of spending: points that expire soonest are first, points that never expire are last."""
    return sorted(lots, key=lambda terms: (terms.expires_time or _NEVER, *terms[1:]))


def take(lots: Lots, points: int, order: Iterable[Terms]) -> Lots:
    """Removes points from the lots in that order, and returns them. It takes fewer if the lots do not have enough."""
    taken = {}
    for terms in order:
        if not points:
            break
        found = lots.pop(terms)
        taken[terms] = part = min(found, points)
        points -= part
        if part < found:
            lots[terms] = found - part
    return taken


def take_spendable(lots: Lots, points: int) -> Lots:
    """Removes points that are not pending, and returns them. It starts with the points that expire soonest."""
    return take(lots, points, soonest_first(terms for terms in lots if not terms.available_time))


def take_any(lots: Lots, points: int, preferred: Terms | None = None) -> Lots:
    """Removes points, pending points included, and returns them.

    It takes the lot with the preferred terms first (pending or released), then the lots that expire soonest.
    """
    order = soonest_first(lots)
    if preferred:
        order.sort(key=lambda terms: _distance(terms, preferred))
    return take(lots, points, order)


def _distance(terms: Terms, preferred: Terms) -> int:
    """Returns 0 for the preferred terms, 1 for these terms after their release, and 2 for all others.

    It ignores the time of the notice.
    """
    if terms.expires_time != preferred.expires_time:
        return 2
    if terms.available_time == preferred.available_time:
        return 0
    return 1 if not terms.available_time else 2
