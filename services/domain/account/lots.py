"""Points in lots: how many there are of the same terms. Points are hundredths, times milliseconds since the epoch."""

from collections.abc import Iterable
from typing import NamedTuple

from services.domain.local_time import end_of_day
from services.domain.programme import Programme


class Terms(NamedTuple):
    """What time does to points; each is 0 once it has done so, or where it never does.

    As what has been released has no time of release any more, points of ten years that never expire are one lot.

    Attributes:
        expires_time: when they are lost.
        available_time: from when they can be spent; until then they are pending.
        notice_time: when their expiry is announced.
    """

    expires_time: int = 0
    available_time: int = 0
    notice_time: int = 0


Lots = dict[Terms, int]
"""Points by their terms, always above 0. The order of the dictionary has no meaning."""

_NEVER = 2**63


def earned_terms(time: int, programme: Programme) -> Terms:
    """Those of points earned at that time."""
    if programme.valid_for is None and not programme.pending:
        return Terms()
    expires_time = 0 if programme.valid_for is None else end_of_day(time + programme.valid_for, programme.time_zone)
    available_time = time + programme.pending if programme.pending else 0
    return Terms(expires_time, available_time, notice_time(expires_time, programme))


def given_terms(time: int, programme: Programme) -> Terms:
    """Those of points given by hand at that time: never pending."""
    return earned_terms(time, programme)._replace(available_time=0)


def notice_time(expires_time: int, programme: Programme) -> int:
    """When the expiry is announced; 0: not at all."""
    return expires_time - programme.expiry_notice if expires_time and programme.expiry_notice else 0


def spendable(lots: Lots) -> int:
    return sum([points for terms, points in lots.items() if not terms.available_time])


def put(lots: Lots, more: Lots) -> None:
    """Add points to those of the same terms."""
    for terms, points in more.items():
        if points:
            lots[terms] = lots.get(terms, 0) + points


def soonest_first(lots: Iterable[Terms]) -> list[Terms]:
    """The order of spending: what expires soonest first, what never expires last."""
    return sorted(lots, key=_soonest)


def take(lots: Lots, points: int, order: Iterable[Terms]) -> Lots:
    """Remove so many points, or all there are, from the lots in that order; what was taken."""
    taken = {}
    for terms in order:
        if not points:
            break
        here = lots.pop(terms)
        taken[terms] = part = min(here, points)
        points -= part
        if part < here:
            lots[terms] = here - part
    return taken


def take_spendable(lots: Lots, points: int) -> Lots:
    """Spend: soonest to expire first."""
    return take(lots, points, soonest_first(terms for terms in lots if not terms.available_time))


def take_any(lots: Lots, points: int, preferred: Terms | None = None) -> Lots:
    """Take back: from the lot of those terms, pending or released, then soonest to expire first, pending ones too."""
    order = soonest_first(lots)
    if preferred:
        order.sort(key=lambda terms: _distance(terms, preferred))
    return take(lots, points, order)


def _soonest(terms: Terms) -> tuple[int, ...]:
    return (terms.expires_time or _NEVER, *terms[1:])


def _distance(terms: Terms, preferred: Terms) -> int:
    if terms.expires_time != preferred.expires_time:
        return 2
    if terms.available_time == preferred.available_time:
        return 0
    return 1 if not terms.available_time else 2
