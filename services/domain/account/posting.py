"""Writes one event, or one change at a due time, into an account."""

from dataclasses import dataclass
from typing import Any

from services.domain.account import lots
from services.domain.account.lots import Lots, Terms
from services.domain.account.model import Account, Outcome
from services.domain.entries import Decision, Entry, Kind, Refusal
from services.domain.events import Command, Event, Purchase, Reserve
from services.domain.programme import Programme, Programmes


@dataclass(slots=True)
class Posting:
    """An event, or a change at a due time, that is being written into an account.

    Attributes:
        account: the posting changes it.
        programme: the version that decides at ``time``.
        outcome: receives the entries, decisions and credits.
        event: None for a change at a due time.
        card: the card of the account; empty for a change at a due time.
    """

    account: Account
    programmes: Programmes
    programme: Programme
    time: int
    outcome: Outcome
    event: Event | None = None
    card: str = ""

    def of(self, event: Event, programme: Programme) -> "Posting":
        # ``dataclasses.replace`` takes several times as long.
        return Posting(self.account, self.programmes, programme, self.time, self.outcome, event, self.card)

    def add_entry(self, kind: Kind, points: int = 0, **details: Any) -> Entry:
        """Appends an entry with the current state of the account. ``details`` are further fields of the entry."""
        account, event = self.account, self.event
        account.sequence += 1
        account.updated_time = max(account.updated_time, self.time)
        if isinstance(event, Purchase):
            details = {
                "event_id": event.event_id,
                "invoice_number": event.invoice_number,
                "total_amount": event.total_amount,
            } | details
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
            balance_details=account.balance_details,
            **details,
        )
        self.outcome.entries.append(entry)
        return entry

    def add_decision(
        self, command: Command, entry: Entry, redemption_id: str = "", refusal: Refusal | None = None
    ) -> None:
        """Appends the decision that follows from the entry of the command."""
        reserved = entry.kind is Kind.RESERVED
        self.outcome.decisions.append(
            Decision(
                command_id=command.decision_id,
                kind=command.kind,
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

    def add_points(self, added: Lots) -> None:
        """Adds points. The points that expire soonest pay the debt first."""
        account = self.account
        lots.add(account.lots, added)
        if account.debt:
            account.debt -= sum(lots.take_any(account.lots, account.debt).values())
            account.reserved_debt = min(account.reserved_debt, account.debt)

    def take_back(self, points: int, preferred: Terms | None = None, *, most_debt: int) -> int:
        """Takes points from all lots, also pending ones.

        If there are too few points, the debt of the account grows by at most ``most_debt``. The rest is not taken.
        Returns the number of points that it took, with the new debt.
        """
        account = self.account
        taken = sum(lots.take_any(account.lots, points, preferred).values())
        debt = min(points - taken, most_debt)
        account.debt += debt
        return taken + debt
