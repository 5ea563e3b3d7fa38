"""Histories of accounts: the requests and responses of callers and clerks, and a model of possible histories.

The model has the rules without a programme file: no pending points, no expiry, no tiers. Each entry of an account has
the next sequence number, so a response with a sequence number has only one possible position in the history.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from infra.demo.comparison import Mismatch, Nature
from infra.demo.invoice_oracle import Record
from tests.faults.linearizability import Operation, first_impossible

READ, EXTERNAL, LAPSE = "read", "external", "lapse"
REFUSED = "refused"
NOTHING = Decimal(0)

_EVENTUALLY = 1e12
"""A time after all others. It is not infinity, which would mean that the operation has no response."""


class Received(NamedTuple):
    """The account directly after an operation, as a response or an entry shows it. ``status`` is that of a command."""

    sequence: int
    total: Decimal
    available: Decimal
    status: str | None = None


class Action(NamedTuple):
    """An operation on one account.

    Attributes:
        kind: the kind of a command; or READ; or EXTERNAL for a change that no clerk requested; or LAPSE for the end of
            a reservation by its timer.
        id: the id of the command. A reservation has the id of the command that created it.
        points: the points of the command, positive or negative.
        redemption_id: the reservation that a command or a lapse ends.
        possible: whether the command can ever succeed.
        received: the response; None if there was none.
    """

    kind: str
    id: str = ""
    points: Decimal = NOTHING
    redemption_id: str = ""
    possible: bool = True
    received: Received | None = None


class Account(NamedTuple):
    """The state of the model."""

    sequence: int = 0
    total: Decimal = NOTHING
    reserved: frozenset[tuple[str, Decimal]] = frozenset()

    @property
    def available(self) -> Decimal:
        return self.total - sum((points for _, points in self.reserved), NOTHING)


def step(account: Account, action: Action) -> Account | None:
    """The account after an action. None if this response is not possible for the account."""
    if action.kind == READ:
        after, status = account, None
    else:
        changed = _changed(account, action)
        status = REFUSED if changed is None else "done"
        after = (changed or account)._replace(sequence=account.sequence + 1)
    received = action.received
    if received is None:
        return after
    shown = (after.sequence, after.total, after.available, received.status and status)
    return after if shown == received else None


def _changed(account: Account, action: Action) -> Account | None:
    """The account with its new amounts. None if it refuses the command."""
    reserved = dict(account.reserved)
    points = action.points
    match action.kind:
        case "external":
            return account._replace(total=account.total + points)
        case "reserve" if account.available >= points:
            return account._replace(reserved=frozenset({*account.reserved, (action.id, points)}))
        case "capture" | "void" | "lapse" if action.redemption_id in reserved:
            spent = reserved.pop(action.redemption_id)
            total = account.total - spent if action.kind == "capture" else account.total
            return account._replace(total=total, reserved=frozenset(reserved.items()))
        case "adjust" if points > 0 or account.available >= -points:
            return account._replace(total=account.total + points)
        case "transfer" if action.possible and account.available >= points:
            return account._replace(total=account.total - points)
    return None


@dataclass
class Histories:
    """The operations of clerks and callers by card. Several threads can add to it."""

    by_card: defaultdict[str, list[Operation[Action]]] = field(default_factory=lambda: defaultdict(list))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, card: str, operation: Operation[Action]) -> None:
        with self._lock:
            self.by_card[card].append(operation)

    def add_command(self, card: str, action: Action, start: float, end: float) -> None:
        """Add a command with its response.

        After a refusal the API does not wait until the balance has its sequence number, because no points change. So
        reads after the response can still show the account before the refusal. The refusal still has an end, because
        some order must explain it.
        """
        is_refused = action.received is not None and action.received.status == REFUSED
        self.add(card, Operation(action, start, _EVENTUALLY if is_refused else end))

    def add_read(
        self, card: str, start: float, end: float, balance: Mapping[str, Any] | None, *, is_stale: bool
    ) -> None:
        """Add a read. ``balance`` is None if the customer is unknown.

        A stale response can show the account at any time before its end, so it has no start.
        """
        received = _account_of(balance, "Sequence") if balance else Received(0, NOTHING, NOTHING)
        self.add(card, Operation(Action(READ, received=received), -math.inf if is_stale else start, end))

    @property
    def count(self) -> int:
        return sum(map(len, self.by_card.values()))


def command_response(body: Mapping[str, Any]) -> Received:
    """The part of an account that the response to a command shows."""
    return _account_of(body, "AccountSequence")._replace(status=str(body["Status"]))


def _account_of(body: Mapping[str, Any], sequence: str) -> Received:
    total, available = (Decimal(str(body[name])) for name in ("TotalLoyaltyPoints", "AvailableLoyaltyPoints"))
    return Received(int(body[sequence]), total, available)


def not_linearizable(histories: Histories, entries: Iterable[Record]) -> Iterator[Mismatch]:
    """One mismatch for each card whose history no order explains.

    Args:
        entries: all records of the topic loyalty. Those that no clerk requested took effect at an unknown time.
    """
    by_card = {card: [*operations] for card, operations in histories.by_card.items()}
    asked = {operation.action.id for operations in by_card.values() for operation in operations}
    for entry in entries:
        was_not_asked = entry["EventID"] not in asked or entry["Kind"] in {"lapsed", "received"}
        if was_not_asked and entry["CustomerCardNo"] in by_card:
            by_card[entry["CustomerCardNo"]].append(Operation(_cause(entry), 0.0))
    for card, operations in sorted(by_card.items()):
        failed = first_impossible(operations, Account(), step, lambda action: action.kind == READ)
        if failed is not None:
            text = f"the history of {card} is not linearizable: no order explains {failed.action} at {failed.end:.3f} s"
            yield Mismatch(Nature.WRONG, text)


def _cause(entry: Record) -> Action:
    received = Received(entry["Sequence"], entry["TotalLoyaltyPoints"], entry["AvailableLoyaltyPoints"])
    if entry["Kind"] == "lapsed":
        return Action(LAPSE, redemption_id=entry["EventID"], received=received)
    return Action(EXTERNAL, points=entry["EarnedLoyaltyPoints"], received=received)
