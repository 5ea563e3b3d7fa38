"""The account as state, and how entries are made in it. Points are hundredths, times milliseconds since the epoch."""

from dataclasses import dataclass, field
from typing import Any

from services.domain.account import lots as lots_
from services.domain.account.lots import Lots, Terms
from services.domain.account.returns import PastPurchase
from services.domain.entries import Credit, Decision, Entry, Kind, Refusal
from services.domain.events import Command, Event, Purchase, Reserve
from services.domain.programme import DAY, Programme, Programmes

REMEMBERED = 10 * DAY
"""For so long, at least, an event is known that has been counted. Upstream drops repeats within 9 days."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Points set aside for a redemption, until it lapses."""

    lapses_time: int
    lots: Lots

    @property
    def points(self) -> int:
        return sum(self.lots.values())


@dataclass(slots=True)
class Account:
    """What is kept of one customer. ``process`` and ``advance`` leave the account that they are given as it is.

    Attributes:
        opened_time: of the event that opened the account.
        sequence: how many entries there have been.
        updated_time: the latest time of any entry.
        debt: taken back beyond what was there; what comes next pays it. Above 0 only where there are no lots.
        lots: pending ones included, reserved points left out.
        reservations: by redemption.
        purchases: by invoice number, oldest first, until they can neither be returned nor repeated.
        commands: append times of those decided, by id, oldest first, until they cannot be repeated.
        tier: by what the period before earned, or, once that is more, the running one; empty: none.
        period_start, period_end: of the running tier period; 0: none runs.
        earned_in_period: in the running tier period, returns taken off.
    """

    opened_time: int
    sequence: int = 0
    updated_time: int = 0
    debt: int = 0
    lots: Lots = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    purchases: dict[str, PastPurchase] = field(default_factory=dict)
    commands: dict[str, int] = field(default_factory=dict)
    tier: str = ""
    period_start: int = 0
    period_end: int = 0
    earned_in_period: int = 0

    @property
    def available(self) -> int:
        """What can be spent now; negative only with debt."""
        return lots_.spendable(self.lots) - self.debt

    @property
    def pending(self) -> int:
        return sum(self.lots.values()) - lots_.spendable(self.lots)

    @property
    def reserved(self) -> int:
        return sum([reservation.points for reservation in self.reservations.values()])

    @property
    def total(self) -> int:
        return sum(self.lots.values()) + self.reserved - self.debt

    def next_due(self) -> int | None:
        """When time does the next thing to this account; None: never, unless something happens."""
        times = [time for terms in self.lots if any(terms) for time in terms if time]
        times += [reservation.lapses_time for reservation in self.reservations.values()]
        if self.period_end:
            times.append(self.period_end)
        return min(times, default=None)

    def copy(self) -> "Account":
        return Account(
            self.opened_time,
            self.sequence,
            self.updated_time,
            self.debt,
            self.lots.copy(),
            self.reservations.copy(),
            self.purchases.copy(),
            self.commands.copy(),
            self.tier,
            self.period_start,
            self.period_end,
            self.earned_in_period,
        )


@dataclass(slots=True)
class Outcome:
    """What became of an account.

    Attributes:
        account: None where there is none, or none any more.
        forgotten: ids of commands of an erased account; nothing may be left of their decisions.
    """

    account: Account | None
    entries: list[Entry] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Posting:
    """One event, or one thing that time does, being written into an account.

    Attributes:
        account: changes.
        programme: the version that decides.
        event: None where time is at work.
    """

    account: Account
    programmes: Programmes
    programme: Programme
    time: int
    outcome: Outcome
    event: Event | None = None

    def enter(self, kind: Kind, points: int = 0, **details: Any) -> Entry:
        """Append an entry on the account as it is now; ``details``: fields that do not follow from the event."""
        account, event = self.account, self.event
        account.sequence += 1
        account.updated_time = max(account.updated_time, self.time)
        if isinstance(event, Purchase):
            details |= {
                "event_id": event.invoice_number,
                "invoice_number": event.invoice_number,
                "total_amount": event.total_amount,
            }
        elif event is not None:
            details = {"event_id": event.command_id, "reason": event.reason, "actor": event.actor} | details
        available, pending, reserved = account.available, account.pending, account.reserved
        entry = Entry(
            sequence=account.sequence,
            opened_time=account.opened_time,
            kind=kind,
            points=points,
            total=available + pending + reserved,
            available=available,
            pending=pending,
            reserved=reserved,
            time=self.time,
            programme_version=self.programme.version,
            tier=account.tier,
            **details,
        )
        self.outcome.entries.append(entry)
        return entry

    def decide(self, command: Command, entry: Entry, redemption_id: str = "", refusal: Refusal | None = None) -> None:
        """Answer a command by the entry that it led to."""
        reserved = entry.kind is Kind.RESERVED
        self.outcome.decisions.append(
            Decision(
                command_id=command.command_id,
                kind=command_kind(command),
                request_hash=command.request_hash,
                refusal=refusal,
                points=command.points if isinstance(command, Reserve) and reserved else entry.points,
                redemption_id=redemption_id,
                account_sequence=entry.sequence,
                opened_time=entry.opened_time,
                total=entry.total,
                available=entry.available,
                expires_time=entry.expires_time if reserved else 0,
                time=entry.time,
            )
        )

    def put(self, more: Lots) -> None:
        """Add points; debt is paid first, by those that expire soonest."""
        account = self.account
        lots_.put(account.lots, more)
        if account.debt:
            account.debt -= sum(lots_.take_any(account.lots, account.debt).values())

    def take_back(self, points: int, preferred: Terms | None = None, *, into_debt: bool) -> int:
        """Take points wherever they are, pending too; beyond them into debt, or not at all. How many were taken."""
        account = self.account
        taken = sum(lots_.take_any(account.lots, points, preferred).values())
        if into_debt:
            account.debt += points - taken
            return points
        return taken


def command_kind(command: Command) -> str:
    """In the words of the record LoyaltyCommand."""
    return type(command).__name__.lower()
