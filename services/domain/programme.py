"""The rules of the loyalty programme as data. A version applies to the events that are appended while it is in force.

Points are hundredths; durations are milliseconds; times are milliseconds since the epoch. The rules follow real
programmes: accrual rules as at Square, pending points and expiry as at Talon.One, tiers by points in a period as at
Voucherify.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from functools import cached_property

from services.domain.invoice import PRIME

LOYALTY_FACTOR = Decimal("0.02")
"""Points per unit of money, as in the Java originals (``FanOutConfigs.java``)."""

MINUTE = 60_000
DAY = 24 * 60 * MINUTE


class SpentReturns(StrEnum):
    """Whether a return of spent points takes only the points that are left, or takes all and creates a debt.

    Square has the same choice for adjustments (``allow_negative_balance`` of ``AdjustLoyaltyPoints``).
    """

    WITHIN_BALANCE = "within-balance"
    NEGATIVE_ALLOWED = "negative-allowed"


class BlockedCards(StrEnum):
    """Whether purchases with a blocked card earn. A blocked card can neither reserve nor send points.

    Products differ: a card of Dynamics 365 Commerce is ``NoTender`` (it earns only) or ``Blocked``
    (``LoyaltyCardTenderType``), and a card of Talon.One is active or inactive.
    """

    EARN = "earn"
    EARN_NOTHING = "earn-nothing"


class Combining(StrEnum):
    """How several campaigns combine that apply to one invoice.

    Best: each line earns with the highest multiplier of its campaigns, and the invoice gets the largest bonus.
    All: bonuses add up, and so do the parts of the multipliers above 1 (1.5 and 2 make 2.5).
    A purchase at Square earns for one promotion only, and for the newest one if several apply.
    """

    BEST = "best"
    ALL = "all"


class Period(StrEnum):
    """The calendar period, in the time zone of the programme, in which points count towards a tier."""

    MONTH = "month"
    QUARTER = "quarter"
    HALF_YEAR = "half-year"
    YEAR = "year"


class TaxBasis(StrEnum):
    """Whether the total of an invoice earns, or its taxable amount (as ``tax_mode`` of Square's accrual rules)."""

    TOTAL = "total"
    TAXABLE = "taxable"


class TimeBasis(StrEnum):
    """Whether the rules use the broker's time of a purchase, or the time of its till (see ``receipt_time``)."""

    BROKER = "broker"
    TILL = "till"


@dataclass(frozen=True, slots=True)
class Tier:
    """A customer reaches a tier with that many points in a period, and keeps it until the end of the next period."""

    name: str
    points: int
    multiplier: Decimal = Decimal(1)


@dataclass(frozen=True, slots=True)
class Campaign:
    """Additional points. An empty set or None means no restriction.

    Attributes:
        first_day, last_day: both inclusive, in the time zone of the programme, by the clock of the till.
        weekdays: 0 is Monday.
        hours: from the first hour (0 to 23) until before the second hour (1 to 24).
        stores: StoreIDs.
        items: ItemCodes. The campaign applies to lines with these items only. Without items it applies to the invoice.
        multiplier: multiplies the points of the invoice or of the lines. With 0 they earn nothing.
        bonus: hundredths, once for each invoice.
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
    """One version of the rules. The defaults are the rules of the Java originals: 0.02 points for PRIME, for ever.

    Attributes:
        effective_time: the version applies from this time on.
        rounding: a rounding mode of ``decimal``. Points are rounded to hundredths once for each invoice.
        customer_types: in upper case.
        pending: from an invoice until its points can be spent.
        valid_for: from an invoice until its points expire, at the end of that day; None: never.
        expiry_notice: from the notice of expiry until the expiry; 0: no notice.
        reserve_for: from a reserve until it lapses.
        return_window: from an invoice until its items can no longer be returned.
        tiers: in ascending order of points.
        tax_basis: invoices without a taxable amount earn by their total.
        excluded_items: ItemCodes whose lines earn nothing, as Square's ``excluded_item_variation_ids`` and, for the
            items of categories, ``excluded_category_ids``.
        minimum_spend: an invoice earns nothing if its amount on the tax basis, without excluded lines, is less.
            Square's accrual rules for visits have such a minimum.
        cap_per_invoice: hundredths that an invoice earns at most; None: no cap.
        cap_per_day: hundredths that the invoices of a customer earn at most in a day of ``time_zone``; None: no cap.
            Open Loyalty limits the units of a member in a time frame in the same way.
        largest_backdating: the largest age of a receipt that earns by its own time.
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
    tax_basis: TaxBasis = TaxBasis.TOTAL
    excluded_items: frozenset[str] = frozenset()
    minimum_spend: Decimal = Decimal(0)
    cap_per_invoice: int | None = None
    cap_per_day: int | None = None
    time_basis: TimeBasis = TimeBasis.BROKER
    largest_backdating: int = DAY
    blocked_cards: BlockedCards = BlockedCards.EARN

    @property
    def purchase_memory(self) -> int:
        """How long an account needs a purchase, in milliseconds: for its returns, and for the cap of its day.

        A receipt of the same day can arrive a day and ``largest_backdating`` later. A day can have 25 hours.
        """
        has_late_cap = self.cap_per_day is not None and self.time_basis is TimeBasis.TILL
        return max(self.return_window, self.largest_backdating + 2 * DAY if has_late_cap else 0)

    def is_eligible(self, customer_type: str) -> bool:
        """Whether customers of this type earn points. Upper and lower case are equal, as in the Java originals."""
        return customer_type.upper() in self.customer_types

    def earns_nothing(self, *, is_blocked: bool) -> bool:
        """Whether purchases with a card in this state earn nothing."""
        return is_blocked and self.blocked_cards is BlockedCards.EARN_NOTHING

    def tier_for(self, points: int) -> str:
        """Returns the highest tier that this many points in a period reach, or an empty text."""
        return next((tier.name for tier in reversed(self.tiers) if tier.points <= points), "")

    def tier_rank(self, name: str) -> int:
        """Returns 0 for the lowest tier, and -1 for no tier and for a tier that this version does not have."""
        return next((number for number, tier in enumerate(self.tiers) if tier.name == name), -1)

    def tier_multiplier(self, name: str) -> Decimal:
        """Returns the multiplier of base points; 1 for no tier and for a tier that this version does not have."""
        return next((tier.multiplier for tier in self.tiers if tier.name == name), Decimal(1))


@dataclass(frozen=True)
class Programmes:
    """All versions of the programme, at least one."""

    versions: tuple[Programme, ...] = (Programme(),)

    @classmethod
    def of(cls, versions: Iterable[Programme]) -> "Programmes":
        """Sorts the versions by the time from which they apply."""
        return cls(tuple(sorted(versions, key=lambda programme: (programme.effective_time, programme.version))))

    def at(self, time: int) -> Programme:
        """Returns the version in force at that time. Before the first version takes effect, returns the first one."""
        in_force = (programme for programme in reversed(self.versions) if programme.effective_time <= time)
        return next(in_force, self.versions[0])

    def version(self, number: int) -> Programme:
        """Returns the version with that number. Raises LookupError if there is none."""
        try:
            return self._by_number[number]
        except KeyError:
            raise LookupError(f"the programme has no version {number}") from None

    @cached_property
    def _by_number(self) -> dict[int, Programme]:
        return {programme.version: programme for programme in self.versions}
