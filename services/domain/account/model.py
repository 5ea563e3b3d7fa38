"""The state of one account. Points are hundredths; times are milliseconds since the epoch."""

from dataclasses import dataclass, field, fields
from decimal import Decimal
from operator import attrgetter
from typing import NamedTuple

from services.domain.account.lots import Lots, next_expiry, spendable
from services.domain.entries import BalanceDetails, Credit, Decision, Entry
from services.domain.events import Command, Line, Purchase
from services.domain.programme import DAY

EVENT_MEMORY = 10 * DAY
"""An account remembers each event for at least this long. The loyalty query drops duplicates for longer."""

RETURN_MEMORY = 18 * DAY
"""An account remembers each return for at least this long, and a decided one for ``EVENT_MEMORY`` longer. A return can
come a week before its purchase, and the copy that the index of invoices then forwards can come another week later: the
topics keep events for seven days.
"""

LARGEST_TOTAL = 10**17
"""Hundredths. Purchases, adjustments and transfers do not lift a total above it."""

LARGEST_RETURNED_TOTAL = 9 * LARGEST_TOTAL
"""Hundredths. Points of a refused transfer that come back do not lift a total above it: the records have 18 digits."""


class Reservation(NamedTuple):
    """Points that are reserved for a redemption until it lapses."""

    lapses_time: int
    lots: Lots

    @property
    def points(self) -> int:
        return sum(self.lots.values())


class PastPurchase(NamedTuple):
    """The part of a purchase that can still be returned. It is a tuple, because each micro-batch decodes many.

    Attributes:
        amount: the money that is not returned yet, on the tax basis of that version.
        earned: the points of the part that is not returned yet.
        programme_version: the version that applies to the purchase and to its returns.
        tier: the tier of the customer at the time of the purchase.
        created_time: 0 if that version has no campaigns.
        store_id: empty if that version has no campaigns.
        lines: the lines that the amount can still pay, if a return did not show which items are left; otherwise empty.
            Release 0.1 kept the items that a campaign names here, and had no ``items``.
        items: for each item code the value that is not returned yet; None if the till sent no lines, and in purchases
            of release 0.1.
        decided_time: the time of the receipt; 0 if the rules used the append time.
        expired: the part of the points that has expired. A return does not take it back.
        counted_until: the end of the tier period in which the points count, if the query read the purchase after that
            period had begun, and the purchase is older than the period; otherwise 0.
    """

    append_time: int
    amount: Decimal
    earned: int
    programme_version: int
    tier: str = ""
    created_time: int = 0
    store_id: str = ""
    lines: tuple[Line, ...] = ()
    items: dict[str, Decimal] | None = None
    decided_time: int = 0
    expired: int = 0
    counted_until: int = 0

    @property
    def remaining(self) -> int:
        """The points that later returns can take back."""
        return max(0, self.earned - self.expired)

    @property
    def time(self) -> int:
        """The time that the rules used: the time of the receipt or the append time."""
        return self.decided_time or self.append_time


class PastReturn(NamedTuple):
    """A return that the account has read. Release 0.1 kept returns as purchases of 0.

    Attributes:
        original: the invoice number for which the return waits; empty if the return is decided.
        amount: the total amount as the till sent it; 0 if the return is decided.
        items: for each item code the returned value, negative for a discount that the return takes back; None if the
            till sent no lines.
        taxable_amount: as the till sent it; None if it did not, or if the return is decided.
        is_half: whether the account can lack the sold half of this exchange. Either the index of invoices has forwarded
            the return, or the account has forgotten the sold half, or it comes in a later part of a moved account.
    """

    append_time: int
    programme_version: int
    original: str = ""
    amount: Decimal = Decimal(0)
    items: dict[str, Decimal] | None = None
    taxable_amount: Decimal | None = None
    is_half: bool = False


class PastCommand(NamedTuple):
    """A decided command. ``request_hash`` and ``kind`` are empty for commands that release 0.1 decided."""

    append_time: int
    request_hash: str = ""
    kind: str = ""


@dataclass(slots=True)
class Account:
    """The state of one customer's account. ``process`` and ``advance`` do not change the account that they are given.

    Attributes:
        opened_time: append time of the event that opened the account.
        sequence: number of entries.
        updated_time: the latest time of any entry.
        debt: points that were taken back after they were spent. The next points pay it. With a debt there are no lots.
        reserved_debt: the part of the debt that returns took from reserved points. The next points pay the rest first.
        lots: spendable and pending points, without reserved points.
        reservations: by redemption id.
        purchases: by invoice number, in the order in which the query read them. The module ``memory`` decides how long
            they stay.
        returns: by invoice number, as ``purchases``. An exchange is in both.
        is_blocked: whether the card is blocked. Points of a blocked card cannot be reserved or sent.
        moved_to: the card to which everything has moved; empty if it has not. The account then forwards its events.
        former_cards: the cards whose accounts have moved here.
        imports: the ids of the imports that the account has taken. It remembers them for ever.
        commands: by command id, oldest first, as long as their events are remembered.
        tier: empty without a tier. The points of the previous period determine it, or those of this period if they are
            more.
        period_start: purchases with this append time or a later one count in the current tier period; 0 without one.
            A purchase with ``counted_until`` is an exception.
            The period of the calendar can begin earlier. Release 0.1 kept the start of the calendar's period.
        period_end: the end of the current tier period; 0 without one.
        earned_in_period: points earned in the current tier period, without returned ones.
    """

    opened_time: int
    sequence: int = 0
    updated_time: int = 0
    debt: int = 0
    lots: Lots = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    purchases: dict[str, PastPurchase] = field(default_factory=dict)
    commands: dict[str, PastCommand] = field(default_factory=dict)
    tier: str = ""
    period_start: int = 0
    period_end: int = 0
    earned_in_period: int = 0
    returns: dict[str, PastReturn] = field(default_factory=dict)
    is_blocked: bool = False
    moved_to: str = ""
    former_cards: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    reserved_debt: int = 0

    @property
    def available(self) -> int:
        """The points that can be spent now; negative only with a debt."""
        return spendable(self.lots) - self.debt

    @property
    def pending(self) -> int:
        return sum(self.lots.values()) - spendable(self.lots)

    @property
    def reserved(self) -> int:
        return sum([reservation.points for reservation in self.reservations.values()])

    @property
    def total(self) -> int:
        return sum(self.lots.values()) + self.reserved - self.debt

    @property
    def balance_details(self) -> BalanceDetails:
        return BalanceDetails(*next_expiry(self.lots), self.is_blocked, self.moved_to)

    def next_due(self) -> int | None:
        """Returns the time of the next change without an event, or None if there is none."""
        times = [time for terms in self.lots if any(terms) for time in terms if time]
        times += [reservation.lapses_time for reservation in self.reservations.values()]
        if self.period_end:
            times.append(self.period_end)
        return min(times, default=None)

    def copy(self) -> "Account":
        # ``dataclasses.replace`` takes several times as long. Each micro-batch and each timer copies an account.
        copied = Account(*_fields_of(self))
        copied.lots, copied.reservations = self.lots.copy(), self.reservations.copy()
        copied.purchases, copied.returns = self.purchases.copy(), self.returns.copy()
        copied.commands = self.commands.copy()
        return copied


_fields_of = attrgetter(*(each.name for each in fields(Account)))


@dataclass(frozen=True, slots=True)
class ErasureMarker:
    """The only trace of an erased account: the next account of the card must open after ``time``.

    Events of the card may arrive late, with append times before the erasure. Without the marker they would open an
    account with an earlier opened time than the erased one. But readers order the accounts of a card by these times.
    """

    time: int

    def next_due(self) -> int:
        """Returns the time at which the marker ends. No event from before ``time`` can arrive after it."""
        return self.time + EVENT_MEMORY


AccountState = Account | ErasureMarker
"""The state of one card in the state store. A card without a state has no account."""


class ForgottenCommand(NamedTuple):
    """A command of an erased account. A record without the card replaces its decision."""

    command_id: str
    kind: str
    request_hash: str


@dataclass(slots=True)
class Outcome:
    """The result of events or of timers for one card.

    Attributes:
        account: None if the card has no account.
        marker: the trace of an erased account; None if the card has an account.
        forgotten: the commands of an erased account.
        next_due: the time at which ``advance`` must be called next; None if there is none.
        commands: commands for other accounts, each with the card of the account.
        forgotten_invoices: the invoice numbers of an erased account. The index of invoices must forget them.
    """

    account: Account | None
    entries: list[Entry] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    forgotten: list[ForgottenCommand] = field(default_factory=list)
    marker: ErasureMarker | None = None
    next_due: int | None = None
    commands: list[tuple[str, Command | Purchase]] = field(default_factory=list)
    forgotten_invoices: list[str] = field(default_factory=list)

    @property
    def state(self) -> AccountState | None:
        """The new state of the card; None if the state store must not contain the card."""
        return self.account or self.marker

    @property
    def sent(self) -> list[str]:
        """The ids of the commands to other accounts, also of those that bring points."""
        return [each.command_id for each in self.credits] + [each.event_id for _, each in self.commands]
