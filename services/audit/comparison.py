"""What the events of an account make of it, against what is recorded, served and stored."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import orjson

from services.audit.facts import Facts, Source
from services.codecs.records import balance_record
from services.domain.account.processor import Account, advance
from services.domain.account.purchases import forget
from services.domain.entries import Entry, Kind
from services.domain.formats import to_datetime, to_milliseconds, to_points
from services.domain.programme import Programmes
from services.domain.recomputation import Recomputed, in_order, recompute
from services.state_stores.catalogue import balance_body

Place = tuple[int, int]
"""Opened time of the account and sequence of the entry."""

_TEXTS = ("event_id", "invoice_number", "tier", "reason", "actor", "counterparty")
_POINTS = {"points", "total", "available", "pending", "reserved", "debt", "earned_in_period", "earned_before"}


class Difference(NamedTuple):
    """Something is not as the events make it.

    Attributes:
        settles: whether it may only be that one side has not come as far as the other yet.
    """

    where: Source
    what: str
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything there is. Times are milliseconds since the epoch.

    Attributes:
        compared: the sources that could be read; with the events, those must have been processed.
        events_from: events of before may be gone from the inputs; 0: all are there.
        record_from: entries of before may be gone from all that is recorded; 0: all are there.
        topic_from: the same of the loyalty topic alone.
        now: later than everything that has been read.
        awake: time must have done all that was due by then; 0: nobody knows.
    """

    compared: frozenset[Source]
    events_from: int
    record_from: int
    topic_from: int
    now: int
    awake: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the audit finds of one customer.

    Attributes:
        entries: how many were recomputed.
        recomputed: whether all its events were there; if not, the sources are compared with each other alone.
        place: that of the last entry in the record.
    """

    entries: int
    recomputed: bool
    place: Place
    differences: list[Difference]


def verdict(
    card: str, facts: Facts, programmes: Programmes, extent: Extent, pseudonym: Callable[[str], str]
) -> Verdict:
    """Recompute the account of a customer and compare it with whatever there is of it.

    Args:
        pseudonym: of a card; of a pseudonym that one.
    """
    return compare(card, facts, programmes, extent, pseudonym)[0]


def compare(
    card: str, facts: Facts, programmes: Programmes, extent: Extent, pseudonym: Callable[[str], str]
) -> tuple[Verdict, Recomputed]:
    """The same, and what was recomputed."""
    recomputed = recompute(card, facts.events, facts.record, programmes, extent.record_from)
    record = in_order(facts.record)
    whole = _is_whole(recomputed, record, extent)
    expected = recomputed.settled.entries if whole else record
    found = [*_events(recomputed, programmes, extent)] if whole else [*_chain(record)]
    for source, since in ((Source.LOYALTY, extent.topic_from), (Source.LEDGER, 0)):
        if source in extent.compared:
            found += _entries(source, expected, facts.recorded.get(source, []), since, pseudonym)
    last = expected[-1] if expected else None
    if Source.BALANCE in extent.compared:
        found += _balance(card, facts.balance, expected, last)
    if Source.STATE in extent.compared:
        account = recomputed.settled.account if whole else None
        found += _state(facts.state, last, account, programmes, extent.now)
    place = latest(facts) or (0, 0)
    return Verdict(len(expected), whole, place, found), recomputed


def latest(facts: Facts) -> Place | None:
    """The highest place that is recorded or served."""
    places = [_place(entry) for entry in facts.record]
    if facts.balance:
        opened = facts.balance.get("OpenedTime")
        opened_time = to_milliseconds(datetime.fromisoformat(opened)) if opened else 0
        places.append((opened_time, facts.balance["Sequence"]))
    return max(places, default=None)


def _is_whole(recomputed: Recomputed, record: list[Entry], extent: Extent) -> bool:
    """Whether no event is missing that retention can have deleted."""
    if any(entry.time < extent.events_from for entry in recomputed.without_event):
        return False
    if not record or not extent.events_from or record[0].sequence == 1:
        return True
    return any(_place(entry) == _place(record[0]) for entry in recomputed.settled.entries)


def _events(recomputed: Recomputed, programmes: Programmes, extent: Extent) -> Iterator[Difference]:
    for entry in recomputed.without_event:
        yield Difference(Source.EVENT, f"no such event: {entry.event_id}, of the recorded entry {entry.sequence}")
    if Source.EVENT in extent.compared:
        for event_id in recomputed.not_processed:
            yield Difference(Source.EVENT, f"not processed: {event_id}")
    account = recomputed.settled.account
    due = account.next_due() if account else None
    if account and due is not None and due <= extent.awake and advance(account, extent.awake, programmes).entries:
        when = to_datetime(due).isoformat(timespec="seconds")
        yield Difference(Source.EVENT, f"time has not done what was due at {when}", settles=True)


def _chain(record: list[Entry]) -> Iterator[Difference]:
    """What a record can get wrong by itself."""
    for before, entry in pairwise(record):
        if entry.opened_time == before.opened_time and entry.total != before.total + entry.points:
            wrong = f"entry {entry.sequence} has the total {to_points(entry.total)}, {to_points(entry.points)} more "
            yield Difference(Source.LOYALTY, f"{wrong}than {to_points(before.total)} of the entry before")


def _entries(
    where: Source,
    expected: Iterable[Entry],
    recorded: Iterable[Entry],
    since: int,
    pseudonym: Callable[[str], str],
) -> list[Difference]:
    """Entries that are missing, too many or not as they should be; those of before ``since`` may be missing."""
    right = {_place(entry): entry for entry in expected}
    differences = []
    there: dict[Place, Entry] = {}
    for entry in in_order(recorded):
        if _place(entry) in there:
            differences.append(Difference(where, f"entry {entry.sequence} is there twice, and not the same"))
        elif _place(entry) not in right:
            what = f"entry {entry.sequence} ({entry.kind} {to_points(entry.points)}) is one too many"
            differences.append(Difference(where, what))
        elif wrong := _fields(*_veiled(where, right[_place(entry)], entry, pseudonym)):
            differences.append(Difference(where, f"entry {entry.sequence}: {wrong}"))
        there.setdefault(_place(entry), entry)
    last = max(there, default=(0, 0))
    for place, entry in right.items():
        if place not in there and entry.time >= since:
            what = f"entry {entry.sequence} ({entry.kind} {to_points(entry.points)}) is missing"
            differences.append(Difference(where, what, settles=place > last))
    return differences


def _veiled(where: Source, right: Entry, found: Entry, pseudonym: Callable[[str], str]) -> tuple[Entry, Entry]:
    """Both as they can be compared: an archive and the ledger of an erased customer have pseudonyms in place of cards.

    Nor does that ledger have what people wrote, and no ledger has zero bytes.
    """
    if right.counterparty or found.counterparty:
        right, found = (
            replace(entry, counterparty=entry.counterparty and pseudonym(entry.counterparty))
            for entry in (right, found)
        )
    if where is Source.LEDGER and right != found:
        right = replace(right, **{name: getattr(right, name).replace("\0", "\ufffd") for name in _TEXTS})
        if not found.reason and right.kind not in (Kind.REFUSED, Kind.TIER):
            right = replace(right, reason="")
        if found.actor == pseudonym(right.actor):
            right = replace(right, actor=found.actor)
    return right, found


def _balance(
    card: str, served: dict[str, Any] | None, expected: list[Entry], last: Entry | None
) -> Iterator[Difference]:
    """A served balance must be one that was true, and the last one."""
    bodies = (_body(card, entry) for entry in reversed(expected))
    if served is None:
        if last and last.kind is not Kind.ERASED:
            yield Difference(Source.BALANCE, f"there is none, but entry {last.sequence}", settles=True)
        return
    own = next((body for body in bodies if _version(body) == _version(served)), None)
    if own is None:
        yield Difference(Source.BALANCE, f"no entry has its sequence {served.get('Sequence')}", settles=True)
        return
    wrong = [f"{name} {served.get(name)} for {value}" for name, value in own.items() if served.get(name) != value]
    if wrong:
        yield Difference(Source.BALANCE, f"of sequence {served['Sequence']}: {', '.join(wrong)}")
    elif last and (last.kind is Kind.ERASED or served["Sequence"] != last.sequence):
        yield Difference(Source.BALANCE, f"is that of sequence {served['Sequence']}, not {last.sequence}", settles=True)


def _version(body: dict[str, Any]) -> tuple[Any, Any]:
    return body.get("OpenedTime"), body.get("Sequence")


def _body(card: str, entry: Entry) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(balance_body(balance_record(card, entry)))
    return body


def _state(
    state: Account | None, last: Entry | None, account: Account | None, programmes: Programmes, now: int
) -> Iterator[Difference]:
    """Spark's account after the last entry; ``account``: the recomputed one, if it could be."""
    ended = last is None or last.kind is Kind.ERASED
    if state is None or last is None or ended:
        if state is not None or not ended:
            what = "there is no account" if state is None else f"there is an account, of sequence {state.sequence}"
            yield Difference(Source.STATE, what, settles=True)
        return
    if (state.opened_time, state.sequence) != _place(last):
        yield Difference(Source.STATE, f"has sequence {state.sequence}, not {last.sequence}", settles=True)
        return
    if account is not None:
        wrong = _fields(_at(account, now, programmes), _at(state, now, programmes))
    else:
        names = ("total", "available", "pending", "reserved", "tier")
        pairs = ((name, getattr(last, name), getattr(state, name)) for name in names)
        wrong = ", ".join(_wrong(*pair) for pair in pairs if pair[1] != pair[2])
    if wrong:
        yield Difference(Source.STATE, f"at sequence {state.sequence}: {wrong}")


def _at(account: Account, now: int, programmes: Programmes) -> Account:
    """The account of a later time: what makes no entry, as forgetting what is long past, is done at different times."""
    later = advance(account, now, programmes).account
    assert later is not None  # noqa: S101  # time ends no account
    forget(later, now, programmes.at(now))
    return later


def _fields(right: Entry | Account, found: Entry | Account) -> str:
    """The fields that differ, in words."""
    pairs = ((each.name, getattr(right, each.name), getattr(found, each.name)) for each in fields(right))
    return ", ".join(_wrong(*pair) for pair in pairs if pair[1] != pair[2])


def _wrong(name: str, right: Any, found: Any) -> str:
    if name in _POINTS:
        right, found = to_points(right), to_points(found)
    return f"{name} {found} for {right}"


def _place(entry: Entry) -> Place:
    return entry.opened_time, entry.sequence
