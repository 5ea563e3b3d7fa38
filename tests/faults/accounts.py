"""The auditor's own computation of accounts from invoices and commands.

It shares no code with the domain. The two input topics have no common order, so it takes the order of the entries of
a customer from the output. In this order, every entry, decision and response has exactly one right content. The rules
are those without a programme file: no pending points, no expiry, no tiers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import httpx

from infra.demo.comparison import Balance, Mismatch, Nature
from infra.demo.invoice_oracle import Record

NOTHING = Decimal(0)
_RECEIVE, _LAPSED, _REFUSED = "receive", "lapsed", "refused"


class Answer(NamedTuple):
    """The final response to a command. ``body`` has the members of the decision."""

    status: int
    body: Mapping[str, str | int | None]


@dataclass(frozen=True)
class AuditInput:
    """The input: earned points by card and invoice, and the records of loyalty-commands."""

    earned: Mapping[str, Mapping[str, Decimal]]
    commands: Sequence[Record]


@dataclass(frozen=True)
class AuditOutput:
    """The output.

    Attributes:
        entries: records of the topic loyalty, without duplicates.
        decisions: decided records of loyalty-decisions, including duplicates.
        balances: served balances by card.
        answers: responses that callers received.
    """

    entries: Sequence[Record]
    decisions: Sequence[Record]
    balances: Mapping[str, Balance | None]
    answers: Sequence[Answer] = ()


def mismatches(given: AuditInput, came: AuditOutput) -> list[Mismatch]:
    """All differences between input and output. Empty if they agree."""
    by_card: defaultdict[str, list[Record]] = defaultdict(list)
    for entry in came.entries:
        by_card[entry["CustomerCardNo"]].append(entry)
    causes = dict(_causes(given, came.entries))
    decided = {
        (entry["CustomerCardNo"], entry["EventID"]): entry for entry in came.entries if not _is_timer_entry(entry)
    }
    return [
        *_reused_command_ids(given.commands),
        *_transfers(given.commands, causes),
        *_lost_or_doubled_entries(causes, came.entries),
        *(each for card, entries in sorted(by_card.items()) for each in _play(card, entries, causes)),
        *_decisions(causes, decided, came.decisions),
        *_balances(by_card, came.balances),
        *_answers(came),
    ]


Cause = tuple[str, str]
"""A card, and an invoice number or command id."""


def _causes(given: AuditInput, entries: Iterable[Record]) -> Iterator[tuple[Cause, Record]]:
    """Everything that must have an entry. The credit of a transfer follows from the entry of its sender."""
    for card, invoices in given.earned.items():
        for number, points in invoices.items():
            yield (card, number), {"Kind": "earned", "Points": points}
    for command in given.commands:
        if command["Kind"] != _RECEIVE:
            yield (command["CustomerCardNo"], command["CommandID"]), command
    for entry in entries:
        if entry["Kind"] == "sent":
            received = {"Kind": _RECEIVE, "Points": -entry["EarnedLoyaltyPoints"]}
            yield (entry["Counterparty"], f"{entry['EventID']}/in"), received


def _is_timer_entry(entry: Record) -> bool:
    return bool(entry["Kind"] == _LAPSED)


def _reused_command_ids(commands: Iterable[Record]) -> Iterator[Mismatch]:
    first: dict[str, Record] = {}
    for command in commands:
        same = {name: value for name, value in command.items() if name != "IssuedTime"}
        if first.setdefault(command["CommandID"], same) != same:
            yield Mismatch(Nature.WRONG, f"two commands have the id {command['CommandID']}")


def _transfers(commands: Iterable[Record], causes: Mapping[Cause, Record]) -> Iterator[Mismatch]:
    due = {cause: record["Points"] for cause, record in causes.items() if record["Kind"] == _RECEIVE}
    there = {
        (each["CustomerCardNo"], each["CommandID"]): each["Points"] for each in commands if each["Kind"] == _RECEIVE
    }
    for cause in sorted({*due, *there}):
        if cause not in there:
            yield Mismatch(Nature.LOST, f"transfer {cause}: {due[cause]} points were sent, and no credit exists")
        elif due.get(cause) != there[cause]:
            yield Mismatch(
                Nature.WRONG, f"transfer {cause}: {due.get(cause)} points were sent, {there[cause]} were credited"
            )


def _lost_or_doubled_entries(causes: Mapping[Cause, Record], entries: Iterable[Record]) -> Iterator[Mismatch]:
    found = Counter((entry["CustomerCardNo"], entry["EventID"]) for entry in entries if not _is_timer_entry(entry))
    for cause in sorted({*causes, *found}):
        if not found[cause]:
            yield Mismatch(Nature.LOST, f"{causes[cause]['Kind']} {cause} has no entry")
        elif found[cause] > 1 or cause not in causes:
            yield Mismatch(Nature.DOUBLED, f"{cause} has {found[cause]} entries, {int(cause in causes)} would be right")


@dataclass
class _Account:
    sequence: int = 0
    total: Decimal = NOTHING
    reserved: dict[str, Decimal] = field(default_factory=dict)

    @property
    def reserved_points(self) -> Decimal:
        return sum(self.reserved.values(), NOTHING)

    @property
    def available(self) -> Decimal:
        return self.total - self.reserved_points

    def play(self, cause: Record, event_id: str) -> str:
        """Apply an invoice or a command. Returns the kind of its entry."""
        points = cause["Points"] or NOTHING
        kind = _REFUSED
        match cause["Kind"]:
            case "earned" | "receive":
                kind = "earned" if cause["Kind"] == "earned" else "received"
                self.total += points
            case "reserve" if self.available >= points:
                kind, self.reserved[event_id] = "reserved", points
            case "capture" if cause["RedemptionID"] in self.reserved:
                kind = "redeemed"
                self.total -= self.reserved.pop(cause["RedemptionID"])
            case "void" if cause["RedemptionID"] in self.reserved:
                kind = "voided"
                del self.reserved[cause["RedemptionID"]]
            case "adjust" if points > 0 or cause["AllowNegative"] or self.available >= -points:
                kind = "adjusted"
                self.total += points
            case "transfer" if self.available >= points and cause["Counterparty"] != cause["CustomerCardNo"]:
                kind = "sent"
                self.total -= points
        return kind


def _play(card: str, entries: Sequence[Record], causes: Mapping[Cause, Record]) -> Iterator[Mismatch]:
    """Compare every entry with the account after all earlier entries."""
    account = _Account()
    for entry in sorted(entries, key=lambda each: (each["OpenedTime"], each["Sequence"])):
        event_id = entry["EventID"]
        if _is_timer_entry(entry):
            is_open = account.reserved.pop(event_id, None) is not None
            kind = _LAPSED if is_open else "nothing, as no reservation was open"
        elif (cause := causes.get((card, event_id))) is not None:
            kind = account.play(cause, event_id)
        else:
            continue  # already reported as doubled
        account.sequence += 1
        due = (account.sequence, kind, account.total, account.available, account.reserved_points)
        amounts = ("TotalLoyaltyPoints", "AvailableLoyaltyPoints", "ReservedLoyaltyPoints")
        said = (entry["Sequence"], entry["Kind"], *(entry[name] for name in amounts))
        if said != due:
            yield Mismatch(Nature.WRONG, f"entry of {event_id} of {card}: {_words(said)} where {_words(due)} is right")
            # Continue from the wrong entry, so that it counts as one difference.
            account.sequence, account.total = entry["Sequence"], entry["TotalLoyaltyPoints"]


def _words(values: Iterable[object]) -> str:
    return "/".join(map(str, values))


def _decisions(
    causes: Mapping[Cause, Record], entries: Mapping[Cause, Record], decisions: Iterable[Record]
) -> Iterator[Mismatch]:
    """Every command has one decision, apart from duplicates, and it agrees with the entry."""
    contents: defaultdict[Cause, list[Record]] = defaultdict(list)
    for decision in decisions:
        known = contents[decision["CustomerCardNo"], decision["CommandID"]]
        if decision not in known:
            known.append(decision)
    commanded = {cause for cause, record in causes.items() if record["Kind"] not in ("earned", _RECEIVE)}
    for cause in sorted({*commanded, *contents}):
        if cause not in contents:
            yield Mismatch(Nature.LOST, f"{causes[cause]['Kind']} {cause} has no decision")
        elif len(contents[cause]) > 1 or cause not in commanded:
            yield Mismatch(Nature.DOUBLED, f"{cause} has {len(contents[cause])} different decisions")
        elif cause in entries and (wrong := _differs(contents[cause][0], entries[cause])):
            yield Mismatch(Nature.WRONG, f"decision on {cause}: {wrong}")


def _differs(decision: Record, entry: Record) -> str:
    due = {
        "Status": _REFUSED if entry["Kind"] == _REFUSED else "done",
        "Reason": entry["Reason"] if entry["Kind"] == _REFUSED else "",
        "AccountSequence": entry["Sequence"],
        "TotalLoyaltyPoints": entry["TotalLoyaltyPoints"],
        "AvailableLoyaltyPoints": entry["AvailableLoyaltyPoints"],
    }
    return ", ".join(f"{name} {decision[name]}, not {value}" for name, value in due.items() if decision[name] != value)


def _balances(entries: Mapping[str, Sequence[Record]], served: Mapping[str, Balance | None]) -> Iterator[Mismatch]:
    for card in sorted({*entries, *served}):
        last = max(entries.get(card, ()), key=lambda entry: (entry["OpenedTime"], entry["Sequence"]), default=None)
        due = last and Balance(last["TotalLoyaltyPoints"], last["Sequence"])
        if served.get(card) != due:
            yield Mismatch(Nature.WRONG, f"balance of {card}: {served.get(card)} where {due} is right")


def _answers(came: AuditOutput) -> Iterator[Mismatch]:
    """Every response agrees with the decision of its command."""
    decisions = {decision["CommandID"]: decision for decision in came.decisions}
    for answer in came.answers:
        command_id = str(answer.body.get("CommandID"))
        decision = decisions.get(command_id)
        if decision is None:
            yield Mismatch(Nature.LOST, f"{command_id} was answered {answer.status}, and was never decided")
            continue
        due = (decision["Status"], decision["AccountSequence"], decision["TotalLoyaltyPoints"])
        total = Decimal(str(answer.body.get("TotalLoyaltyPoints")))
        observations = (answer.body.get("Status"), answer.body.get("AccountSequence"), total)
        if observations != due or (answer.status == httpx.codes.CONFLICT) != (due[0] == _REFUSED):
            yield Mismatch(
                Nature.WRONG, f"{command_id} was answered {answer.status} {observations}, where {due} is right"
            )
