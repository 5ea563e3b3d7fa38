"""The rules of the loyalty programme, as data; a version decides every event that the broker appended in its time.

Points are hundredths, durations and times milliseconds (since the epoch). How real programmes shape each rule: Square's
accrual rules, Talon.One's pending and expiry, Voucherify's tiers by points in a period.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum

from services.domain.invoice import PRIME

LOYALTY_FACTOR = Decimal("0.02")
"""Points per unit of money, as in the Java originals (``FanOutConfigs.java``)."""

MINUTE = 60_000
DAY = 24 * 60 * MINUTE


class SpentReturns(StrEnum):
    """What a return takes back where the points are spent already."""

    WITHIN_BALANCE = "within-balance"
    NEGATIVE_ALLOWED = "negative-allowed"


class Combining(StrEnum):
    """What several campaigns give that fit one invoice: the ones worth most to the customer, or all of them.

    Best: each line earns by the highest multiplier of those that fit it, and the invoice gets the largest bonus.
    All: bonuses add up, and so does what multipliers give beyond 1 (1.5 and 2 make 2.5).
    """

    BEST = "best"
    ALL = "all"


class Period(StrEnum):
    """How long points earned count towards a tier, by the calendar of the programme's time zone."""

    MONTH = "month"
    QUARTER = "quarter"
    HALF_YEAR = "half-year"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class Tier:
    """Reached with so many points earned in a period; kept until the end of the next one."""

    name: str
    points: int
    multiplier: Decimal = Decimal(1)


@dataclass(frozen=True, slots=True)
class Campaign:
    """Points beyond the usual ones. An empty set or None means: any.

    Attributes:
        first_day, last_day: inclusive, in the programme's time zone, by the till's clock (else the broker's).
        weekdays: 0 is Monday.
        hours: from the first hour (0 to 23) until before the second (1 to 24).
        stores: StoreIDs.
        items: ItemCodes; with them the campaign concerns those lines alone, else the whole invoice.
        multiplier: of the points that what it concerns earns.
        bonus: hundredths an invoice, once.
    """

    name: str
    first_day: date | None = None
    last_day: date | None = None
    weekdays: frozenset[int] = frozenset()
    hours: tuple[int, int] | None = None
    stores: frozenset[str] = frozenset()
    items: frozenset[str] = frozenset()
    multiplier: Decimal = Decimal(1)
    bonus: int = 0


@dataclass(frozen=True, slots=True)
class Programme:
    """One version of the rules; with nothing said, those of the Java originals: 0.02 points for PRIME, for ever.

    Attributes:
        effective_time: from then on it decides.
        rounding: a rounding mode of ``decimal``, applied once per invoice to hundredths.
        pending: after an invoice, until its points can be spent.
        valid_for: after the invoice, until its points expire at the end of that day; None: never.
        expiry_notice: so long before they expire, their expiry is announced; 0: not at all.
        reserve_for: after a reserve, until it lapses.
        return_window: after an invoice, until its items can no longer be returned.
        tiers: by points, ascending.
    """

    version: int = 0
    effective_time: int = 0
    loyalty_factor: Decimal = LOYALTY_FACTOR
    rounding: str = ROUND_HALF_UP
    customer_types: frozenset[str] = frozenset({PRIME})
    time_zone: str = "UTC"
    pending: int = 0
    valid_for: int | None = None
    expiry_notice: int = 0
    reserve_for: int = 15 * MINUTE
    return_window: int = 90 * DAY
    spent_returns: SpentReturns = SpentReturns.WITHIN_BALANCE
    tier_period: Period | None = None
    tiers: tuple[Tier, ...] = ()
    combining: Combining = Combining.BEST
    campaigns: tuple[Campaign, ...] = ()


@dataclass(frozen=True)
class Programmes:
    """All versions; never empty."""

    versions: tuple[Programme, ...] = field(default=(Programme(),))

    @classmethod
    def of(cls, versions: Iterable[Programme]) -> "Programmes":
        """Programmes in the order in which they take effect."""
        return cls(tuple(sorted(versions, key=lambda programme: (programme.effective_time, programme.version))))

    def at(self, time: int) -> Programme:
        """The version that decides an event appended at that time; before the first one takes effect, the first."""
        in_force = (programme for programme in reversed(self.versions) if programme.effective_time <= time)
        return next(in_force, self.versions[0])

    def version(self, number: int) -> Programme:
        """The version of that number; raises LookupError."""
        for programme in self.versions:
            if programme.version == number:
                return programme
        raise LookupError(f"no version {number} of the programme")
