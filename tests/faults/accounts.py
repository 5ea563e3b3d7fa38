"""The truth about accounts, for the auditor: what invoices and commands make of them, worked out a second time.

Nothing is shared with the domain. Two input topics have no order between them, so one thing is taken from the record:
in which order a customer's entries stand. From there on every entry, decision and answer has one right content. The
rules are those without a programme file: nothing is pending, nothing expires, there are no tiers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import httpx

from infra.demo.comparison import Balance, Mismatch, Nature
from infra.demo.oracle import Record

NOTHING = Decimal(0)
_RECEIVE, _LAPSED, _REFUSED = "receive", "lapsed", "refused"


class Answer(NamedTuple):
    """What a command was answered with in the end; ``body`` has the decision's members."""

    status: int
    body: Mapping[str, str | int | None]


@dataclass(frozen=True)
class Given:
    """What came in: points by invoice by card, and the records of loyalty-commands."""

    earned: Mapping[str, Mapping[str, Decimal]]
    commands: Sequence[Record]


@dataclass(frozen=True)
class Came:
    """What came of it.

    Attributes:
        entries: records of the loyalty topic, each id once.
        decisions: records of loyalty-decisions that decide, however often each stands there.
        balances: served, by card.
        answers: that callers have got.
    """

    entries: Sequence[Record]
    decisions: Sequence[Record]
    balances: Mapping[str, Balance | None]
    answers: Sequence[Answer] = ()


def mismatches(given: Given, came: Came) -> list[Mismatch]:
    """Every difference; empty if all agree."""
    by_card: defaultdict[str, list[Record]] = defaultdict(list)
    for entry in came.entries:
        by_card[entry["CustomerCardNo"]].append(entry)
    causes = dict(_causes(given, came.entries))
    decided = {(entry["CustomerCardNo"], entry["EventID"]): entry for entry in came.entries if not _is_times(entry)}
    return [
        *_one_content_an_id(given.commands),
        *_sent_is_received(given.commands, causes),
        *_each_once(causes, came.entries),
        *(each for card, entries in sorted(by_card.items()) for each in _play(card, entries, causes)),
        *_decisions(causes, decided, came.decisions),
        *_balances(by_card, came.balances),
        *_answers(came),
    ]


Cause = tuple[str, str]
"""A card, and the number of its invoice or the id of its command."""


def _causes(given: Given, entries: Iterable[Record]) -> Iterator[tuple[Cause, Record]]:
    """What must have an entry. The other end of a transfer follows from its entry, and not from what the topic says."""
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


def _is_times(entry: Record) -> bool:
    return bool(entry["Kind"] == _LAPSED)


def _one_content_an_id(commands: Iterable[Record]) -> Iterator[Mismatch]:
    first: dict[str, Record] = {}
    for command in commands:
        same = {name: value for name, value in command.items() if name != "IssuedTime"}
        if first.setdefault(command["CommandID"], same) != same:
            yield Mismatch(Nature.WRONG, f"two commands have the id {command['CommandID']}")


def _sent_is_received(commands: Iterable[Record], causes: Mapping[Cause, Record]) -> Iterator[Mismatch]:
    due = {cause: record["Points"] for cause, record in causes.items() if record["Kind"] == _RECEIVE}
    there = {
        (each["CustomerCardNo"], each["CommandID"]): each["Points"] for each in commands if each["Kind"] == _RECEIVE
    }
    for cause in sorted({*due, *there}):
        if cause not in there:
            yield Mismatch(Nature.LOST, f"transfer {cause}: {due[cause]} points were sent and are on no way")
        elif due.get(cause) != there[cause]:
            yield Mismatch(Nature.WRONG, f"transfer {cause}: {due.get(cause)} points were sent, {there[cause]} came")


def _each_once(causes: Mapping[Cause, Record], entries: Iterable[Record]) -> Iterator[Mismatch]:
    found = Counter((entry["CustomerCardNo"], entry["EventID"]) for entry in entries if not _is_times(entry))
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
    def set_aside(self) -> Decimal:
        return sum(self.reserved.values(), NOTHING)

    @property
    def available(self) -> Decimal:
        return self.total - self.set_aside

    def play(self, cause: Record, event_id: str) -> str:
        """Do what an invoice or a command says; returns the kind of its entry."""
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
    """Every entry against the account as those before it have left it."""
    account = _Account()
    for entry in sorted(entries, key=lambda each: (each["OpenedTime"], each["Sequence"])):
        event_id = entry["EventID"]
        if _is_times(entry):
            is_open = account.reserved.pop(event_id, None) is not None
            kind = _LAPSED if is_open else "nothing, as no reservation was open"
        elif (cause := causes.get((card, event_id))) is not None:
            kind = account.play(cause, event_id)
        else:
            continue  # it has been named as one too many
        account.sequence += 1
        due = (account.sequence, kind, account.total, account.available, account.set_aside)
        amounts = ("TotalLoyaltyPoints", "AvailableLoyaltyPoints", "ReservedLoyaltyPoints")
        said = (entry["Sequence"], entry["Kind"], *(entry[name] for name in amounts))
        if said != due:
            yield Mismatch(Nature.WRONG, f"entry of {event_id} of {card}: {_words(said)} where {_words(due)} is right")
            # One wrong entry is one difference; the next is judged by what this one says.
            account.sequence, account.total = entry["Sequence"], entry["TotalLoyaltyPoints"]


def _words(values: Iterable[object]) -> str:
    return "/".join(map(str, values))


def _decisions(
    causes: Mapping[Cause, Record], entries: Mapping[Cause, Record], decisions: Iterable[Record]
) -> Iterator[Mismatch]:
    """Every command has one decision, whatever is written twice, and it says what the entry says."""
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
            yield Mismatch(Nature.DOUBLED, f"{cause} was decided {len(contents[cause])} times, and not the same")
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


def _answers(came: Came) -> Iterator[Mismatch]:
    """What a caller was told must have been decided so; nobody may be told of points that were then not moved."""
    decisions = {decision["CommandID"]: decision for decision in came.decisions}
    for answer in came.answers:
        command_id = str(answer.body.get("CommandID"))
        decision = decisions.get(command_id)
        if decision is None:
            yield Mismatch(Nature.LOST, f"{command_id} was answered {answer.status}, and was never decided")
            continue
        due = (decision["Status"], decision["AccountSequence"], decision["TotalLoyaltyPoints"])
        total = Decimal(str(answer.body.get("TotalLoyaltyPoints")))
        told = (answer.body.get("Status"), answer.body.get("AccountSequence"), total)
        if told != due or (answer.status == httpx.codes.CONFLICT) != (due[0] == _REFUSED):
            yield Mismatch(Nature.WRONG, f"{command_id} was answered {answer.status} {told}, where {due} is right")
