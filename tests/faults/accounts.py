"""Computes accounts from invoices and commands, and compares them with the outputs.

It shares no code with the domain. The two input topics have no common order, so it takes the order of the entries of a
customer from the output. In this order, every entry, decision and response has exactly one correct content. The rules
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


def mismatches(inputs: AuditInput, outputs: AuditOutput) -> list[Mismatch]:
    """All differences between the outputs and what follows from the inputs."""
    by_card: defaultdict[str, list[Record]] = defaultdict(list)
    for entry in outputs.entries:
        by_card[entry["CustomerCardNo"]].append(entry)
    causes = dict(_causes(inputs, outputs.entries))
    decided = {
        (entry["CustomerCardNo"], entry["EventID"]): entry for entry in outputs.entries if not _is_timer_entry(entry)
    }
    return [
        *_reused_command_ids(inputs.commands),
        *_transfers(inputs.commands, causes),
        *_lost_or_doubled_entries(causes, outputs.entries),
        *(each for card, entries in sorted(by_card.items()) for each in _wrong_entries(card, entries, causes)),
        *_decisions(causes, decided, outputs.decisions),
        *_balances(by_card, outputs.balances),
        *_answers(outputs),
    ]


Cause = tuple[str, str]
"""A card, and an invoice number or command id."""


def _causes(inputs: AuditInput, entries: Iterable[Record]) -> Iterator[tuple[Cause, Record]]:
    """Everything that must have an entry. The credit of a transfer follows from the entry of its sender."""
    for card, invoices in inputs.earned.items():
        for number, points in invoices.items():
            yield (card, number), {"Kind": "earned", "Points": points}
    for command in inputs.commands:
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
    sent = {cause: record["Points"] for cause, record in causes.items() if record["Kind"] == _RECEIVE}
    credited = {
        (each["CustomerCardNo"], each["CommandID"]): each["Points"] for each in commands if each["Kind"] == _RECEIVE
    }
    for cause in sorted({*sent, *credited}):
        if cause not in credited:
            yield Mismatch(Nature.LOST, f"transfer {cause}: {sent[cause]} points were sent, and no credit exists")
        elif sent.get(cause) != credited[cause]:
            yield Mismatch(
                Nature.WRONG, f"transfer {cause}: {sent.get(cause)} points were sent, {credited[cause]} were credited"
            )


def _lost_or_doubled_entries(causes: Mapping[Cause, Record], entries: Iterable[Record]) -> Iterator[Mismatch]:
    found = Counter((entry["CustomerCardNo"], entry["EventID"]) for entry in entries if not _is_timer_entry(entry))
    for cause in sorted({*causes, *found}):
        if not found[cause]:
            yield Mismatch(Nature.LOST, f"{causes[cause]['Kind']} {cause} has no entry")
        elif found[cause] > 1 or cause not in causes:
            yield Mismatch(Nature.DOUBLED, f"{cause} has {found[cause]} entries, expected {int(cause in causes)}")


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

    def apply(self, cause: Record, event_id: str) -> str:
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


def _wrong_entries(card: str, entries: Sequence[Record], causes: Mapping[Cause, Record]) -> Iterator[Mismatch]:
    """Compare each entry with the account that follows from all earlier entries."""
    account = _Account()
    for entry in sorted(entries, key=lambda each: (each["OpenedTime"], each["Sequence"])):
        event_id = entry["EventID"]
        if _is_timer_entry(entry):
            is_open = account.reserved.pop(event_id, None) is not None
            kind = _LAPSED if is_open else "nothing, as no reservation was open"
        elif (cause := causes.get((card, event_id))) is not None:
            kind = account.apply(cause, event_id)
        else:
            continue  # ``_lost_or_doubled_entries`` reports it
        account.sequence += 1
        expected = (account.sequence, kind, account.total, account.available, account.reserved_points)
        amounts = ("TotalLoyaltyPoints", "AvailableLoyaltyPoints", "ReservedLoyaltyPoints")
        found = (entry["Sequence"], entry["Kind"], *(entry[name] for name in amounts))
        if found != expected:
            yield Mismatch(
                Nature.WRONG, f"entry of {event_id} of {card}: expected {_joined(expected)}, found {_joined(found)}"
            )
            # Continue from the wrong entry, so that it counts as one difference.
            account.sequence, account.total = entry["Sequence"], entry["TotalLoyaltyPoints"]


def _joined(values: Iterable[object]) -> str:
    return "/".join(map(str, values))


def _decisions(
    causes: Mapping[Cause, Record], entries: Mapping[Cause, Record], decisions: Iterable[Record]
) -> Iterator[Mismatch]:
    """Every command has one decision, which can have duplicates, and the decision agrees with the entry."""
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
        elif cause in entries and (wrong := _wrong_members(contents[cause][0], entries[cause])):
            yield Mismatch(Nature.WRONG, f"decision on {cause}: {wrong}")


def _wrong_members(decision: Record, entry: Record) -> str:
    """The members of a decision that differ from its entry, as text. Empty if all agree."""
    expected = {
        "Status": _REFUSED if entry["Kind"] == _REFUSED else "done",
        "Reason": entry["Reason"] if entry["Kind"] == _REFUSED else "",
        "AccountSequence": entry["Sequence"],
        "TotalLoyaltyPoints": entry["TotalLoyaltyPoints"],
        "AvailableLoyaltyPoints": entry["AvailableLoyaltyPoints"],
    }
    return ", ".join(
        f"{name} {decision[name]}, not {value}" for name, value in expected.items() if decision[name] != value
    )


def _balances(entries: Mapping[str, Sequence[Record]], served: Mapping[str, Balance | None]) -> Iterator[Mismatch]:
    for card in sorted({*entries, *served}):
        last = max(entries.get(card, ()), key=lambda entry: (entry["OpenedTime"], entry["Sequence"]), default=None)
        expected = last and Balance(last["TotalLoyaltyPoints"], last["Sequence"])
        if served.get(card) != expected:
            yield Mismatch(Nature.WRONG, f"balance of {card}: expected {expected}, found {served.get(card)}")


def _answers(outputs: AuditOutput) -> Iterator[Mismatch]:
    """Every response agrees with the decision of its command."""
    decisions = {decision["CommandID"]: decision for decision in outputs.decisions}
    for answer in outputs.answers:
        command_id = str(answer.body.get("CommandID"))
        decision = decisions.get(command_id)
        if decision is None:
            yield Mismatch(Nature.LOST, f"{command_id} was answered {answer.status}, and was never decided")
            continue
        expected = (decision["Status"], decision["AccountSequence"], decision["TotalLoyaltyPoints"])
        total = Decimal(str(answer.body.get("TotalLoyaltyPoints")))
        found = (answer.body.get("Status"), answer.body.get("AccountSequence"), total)
        if found != expected or (answer.status == httpx.codes.CONFLICT) != (expected[0] == _REFUSED):
            yield Mismatch(Nature.WRONG, f"{command_id} was answered {answer.status} {found}, expected {expected}")
