"""Recomputes a customer's account from its events, and compares it with the entries, the balance and the state."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any, NamedTuple

import orjson

from services.audit.facts import Facts, Source
from services.audit.missing_entries import MissingEntries, find_missing, without_repeated
from services.audit.wording import wrong_field, wrong_fields, wrong_of
from services.codecs.events import ARCHIVED
from services.codecs.records import balance_record
from services.domain.account.memory import forget, remembers
from services.domain.account.model import Account, Outcome, PastPurchase
from services.domain.account.processor import advance
from services.domain.account.timers import apply_due_changes
from services.domain.entries import BEARER_ACTOR, AccountVersion, Entry, Kind
from services.domain.events import Absorb, Command, Erase, Event, Receive, Replace, Transfer, Unreadable
from services.domain.formats import seconds_text, short_time_text, to_points
from services.domain.programme import Programmes
from services.domain.recomputation import Recomputed, in_order, is_from_timer, recompute
from services.state_stores.catalogue import balance_body

_TEXTS = ("event_id", "invoice_number", "tier", "reason", "actor", "counterparty")

_Named = Transfer | Receive | Replace | Absorb | Unreadable | Erase
"""The events that name another card."""

_DETAILS = ("NextExpiryTime", "NextExpiryPoints", "Blocked", "MovedTo")
"""The members of a balance that come from ``Entry.balance_details``."""


class Difference(NamedTuple):
    """A fact differs from the recomputed account.

    Attributes:
        where: the source of the fact.
        what: the difference, as text.
        settles: whether the difference may disappear, because one side may not have processed the newest records yet.
    """

    where: Source
    what: str
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which facts the sources still have. Times are milliseconds since the epoch.

    Attributes:
        compared: the sources that could be read. If it has the events, each event must have been processed.
        events_from: the inputs may lack events before this time; 0 if they have all events.
        record_from: loyalty topic and ledger together may lack entries before this time; 0 if they have all entries.
        topic_from: the same for the loyalty topic alone.
        now: a time later than everything that was read.
        timers_until: all timers up to this time must have run; 0 if that is not known.
        first_invoice, first_command: the times of the first records of pos-invoices and loyalty-commands, see
            ``TopicExtent.first_time``. An older entry without an event shows that the topic was created again.
        first_entry: the same for the loyalty topic. An older served balance without an entry shows that this
            topic was created again.
    """

    compared: frozenset[Source]
    events_from: int
    record_from: int
    topic_from: int
    now: int
    timers_until: int = 0
    first_invoice: int = 0
    first_command: int = 0
    first_entry: int = 0


@dataclass(frozen=True, slots=True)
class CustomerResult:
    """The result of the audit of one customer.

    Attributes:
        entries: the number of entries that the account should have.
        recomputed: whether all events and entries were available. If not, the audit compares the sources with each
            other only.
        lacks_entries: whether the loyalty topic and the ledger lack entries.
        version: the highest version that is recorded or served.
    """

    entries: int
    recomputed: bool
    lacks_entries: bool
    version: AccountVersion
    differences: list[Difference]


def compare(
    card: str, facts: Facts, programmes: Programmes, coverage: Coverage, pseudonym: Callable[[str], str]
) -> tuple[CustomerResult, Recomputed]:
    """Recompute the account of a customer and compare it with all facts. Returns the recomputed account too.

    Args:
        pseudonym: turns a card into its pseudonym, and returns a pseudonym unchanged.
    """
    has_ledger = Source.LEDGER in coverage.compared
    if not has_ledger:
        facts = without_repeated(facts, coverage.topic_from)
    record = in_order(facts.record)
    recomputed = recompute(card, _as_sent(facts.events, record, pseudonym), record, programmes, coverage.record_from)
    missing = MissingEntries()
    if has_ledger:  # without it, ``record_from`` says which entries may be missing
        missing = find_missing(facts, record, recomputed.late, coverage.topic_from, coverage.first_entry)
    has_events = _has_events(recomputed, record, facts, coverage)
    complete = has_events and not missing
    expected = recomputed.settled.entries if complete else record
    differences = [Difference(Source.LOYALTY, str(gap)) for gap in missing.gaps if gap.after >= coverage.topic_from]
    if has_events:
        differences += [
            Difference(Source.EVENT, f"no such event: {entry.event_id}, of the recorded entry {entry.sequence}")
            for entry in recomputed.without_event
        ]
        differences += _compare_times(recomputed, facts.events)
    differences += _compare_events(recomputed, programmes, coverage) if complete else _compare_totals(record)
    for source, since in ((Source.LOYALTY, coverage.topic_from), (Source.LEDGER, 0)):
        if source in coverage.compared:
            differences += _compare_entries(source, expected, facts.recorded.get(source, []), since, pseudonym)
    last = expected[-1] if expected else None
    if Source.BALANCE in coverage.compared and not missing.at_end:
        differences += _compare_balance(card, facts.balance, expected, last)
    if Source.STATE in coverage.compared and not missing.at_end:
        account = recomputed.settled.account if complete else None
        differences += _compare_state(facts.state, last, account, programmes, coverage.now)
    version = facts.latest_version or AccountVersion(0, 0)
    return CustomerResult(len(expected), complete, bool(missing), version, differences), recomputed


def _as_sent(events: Iterable[Event], record: Sequence[Entry], pseudonym: Callable[[str], str]) -> Iterator[Event]:
    """The events as they were sent. An archive has no cards and no texts of commands. The entries have the texts.

    Entries and other events have the cards.
    """
    events = list(events)
    # Kafka's records have the cards of a customer who is erased today, and the ledger no longer has them.
    names = {each.counterparty for each in (*record, *events) if isinstance(each, Entry | _Named) and each.counterparty}
    cards = {hidden: name for name in names if (hidden := pseudonym(name)) != name}
    # The first entry of an event counts: a later one can come from a timer. A refusal does not use the reason.
    texts = {entry.event_id: (entry.reason, entry.actor) for entry in reversed(record)}
    for event in events:
        if isinstance(event, _Named):
            event = replace(event, counterparty=cards.get(event.counterparty, event.counterparty))  # noqa: PLW2901
        if isinstance(event, Command) and event.actor == ARCHIVED:
            reason, actor = texts.get(event.event_id, ("", ""))
            event = replace(event, reason=reason, actor=actor)  # noqa: PLW2901
        yield event


def _has_events(recomputed: Recomputed, record: list[Entry], facts: Facts, coverage: Coverage) -> bool:
    """Whether the sources have all events of the account. Retention and a topic that was created again lose events."""
    for entry in recomputed.without_event:
        first = coverage.first_invoice if entry.event_id == entry.invoice_number else coverage.first_command
        if entry.time < max(coverage.events_from, first):
            return False
    if not coverage.events_from or (record and record[0].sequence == 1):
        return True
    if record:
        return any(entry.version == record[0].version for entry in recomputed.settled.entries)
    # Without a recorded entry, the events must lead to what is served.
    versions = {entry.version for entry in (*recomputed.settled.entries, *recomputed.late.entries)}
    return versions.issuperset(version for version, _ in facts.served_versions)


def _compare_times(recomputed: Recomputed, events: Iterable[Event]) -> Iterator[Difference]:
    """Compare the times of entries with the append times of their events.

    The recomputation takes the time from the entry. An archive can have another copy of a repeated event.
    """
    times = {(event.event_id, event.append_time) for event in events}
    for entry in recomputed.settled.entries:
        if not is_from_timer(entry) and (entry.event_id, entry.time) not in times:
            time = seconds_text(entry.time)
            what = f"no copy of the event {entry.event_id} has the time of the recorded entry {entry.sequence}, {time}"
            yield Difference(Source.EVENT, what)


def _compare_events(recomputed: Recomputed, programmes: Programmes, coverage: Coverage) -> Iterator[Difference]:
    if Source.EVENT in coverage.compared:
        for event_id in recomputed.not_processed:
            yield Difference(Source.EVENT, f"not processed: {event_id}")
    account, until = recomputed.settled.account, coverage.timers_until
    due = account.next_due() if account else None
    if account and due is not None and due <= until and advance(account, until, programmes).entries:
        yield Difference(Source.EVENT, f"a timer that was due at {seconds_text(due)} has not run", settles=True)


def _compare_totals(record: list[Entry]) -> Iterator[Difference]:
    """Compare the total of each entry with the total and points of the entry before it."""
    for before, entry in pairwise(record):
        is_next = entry.version == (before.opened_time, before.sequence + 1)
        if is_next and entry.total != before.total + entry.points:
            what = (
                f"entry {entry.sequence} has the total {to_points(entry.total)}, but the entry before it has "
                f"{to_points(before.total)} and this one adds {to_points(entry.points)}"
            )
            yield Difference(Source.LOYALTY, what)


def _compare_entries(
    where: Source,
    expected: Iterable[Entry],
    recorded: Iterable[Entry],
    since: int,
    pseudonym: Callable[[str], str],
) -> list[Difference]:
    """Compare entries by version. The source may lack entries before the time ``since``."""
    expected_by_version = {entry.version: entry for entry in expected}
    erased = max((entry.version for entry in expected_by_version.values() if entry.kind is Kind.ERASED), default=(0, 0))
    differences = []
    found: dict[AccountVersion, Entry] = {}
    for entry in in_order(recorded):
        if entry.version in found:
            differences.append(Difference(where, f"there are two different entries {entry.sequence}"))
        elif entry.version not in expected_by_version:
            what = f"entry {entry.sequence} ({entry.kind} {to_points(entry.points)}) is one too many"
            differences.append(Difference(where, what))
        else:
            is_erased = entry.version <= erased
            pair = _comparable(where, expected_by_version[entry.version], entry, pseudonym, is_erased=is_erased)
            if wrong := wrong_fields(*pair):
                differences.append(Difference(where, f"entry {entry.sequence}: {wrong}"))
        found.setdefault(entry.version, entry)
    last = max(found, default=AccountVersion(0, 0))
    for version, entry in expected_by_version.items():
        if version not in found and entry.time >= since:
            what = f"entry {entry.sequence} ({entry.kind} {to_points(entry.points)}) is missing"
            differences.append(Difference(where, what, settles=version > last))
    return differences


def _comparable(
    where: Source, expected: Entry, found: Entry, pseudonym: Callable[[str], str], *, is_erased: bool
) -> tuple[Entry, Entry]:
    """Both entries without the parts that may differ.

    Records have the total amount as a double, and the exact sum of the lines of an exchange can have more digits. An
    archive, and the ledger for an erased customer, have pseudonyms instead of cards. The ledger has no zero characters.
    It has no free text and no subject of a token if the account is erased, or if it names an erased customer.
    """
    names = (found.actor, found.counterparty)
    expected = replace(expected, total_amount=Decimal(repr(float(expected.total_amount))))
    if found.counterparty:
        expected, found = (
            replace(entry, counterparty=entry.counterparty and pseudonym(entry.counterparty))
            for entry in (expected, found)
        )
    if expected.kind is Kind.RETURNED and not found.reason:
        expected = replace(expected, reason="")  # release 0.1 did not record why a return took no points
    if where is Source.LEDGER and expected != found:
        expected = replace(expected, **{name: getattr(expected, name).replace("\0", "\ufffd") for name in _TEXTS})
        if is_erased or any(name and name == pseudonym(name) for name in names):
            if not found.reason and expected.kind not in (Kind.REFUSED, Kind.TIER):
                expected = replace(expected, reason="")
            subject = expected.actor.removeprefix(BEARER_ACTOR)
            if found.actor == pseudonym(subject) or (found.actor == BEARER_ACTOR and subject != expected.actor):
                expected = replace(expected, actor=found.actor)
    return expected, found


def _compare_balance(
    card: str, served: dict[str, Any] | None, expected: list[Entry], last: Entry | None
) -> Iterator[Difference]:
    """Compare the served balance with the entry of its version. ``last`` is the last expected entry."""
    if served is None:
        if last and last.kind is not Kind.ERASED:
            yield Difference(Source.BALANCE, f"there is no balance, but entry {last.sequence}", settles=True)
        return
    served_version = served.get("OpenedTime"), served.get("Sequence")
    for entry in reversed(expected):
        body = orjson.loads(balance_body(balance_record(card, entry)))
        if (body.get("OpenedTime"), body.get("Sequence")) == served_version:
            break
    else:
        yield Difference(Source.BALANCE, f"no entry has its sequence {served.get('Sequence')}", settles=True)
        return
    # Balances of release 0.1, and balances that are computed from recorded entries, do not have these members.
    lacks_details = None in {body["NextExpiryPoints"], served.get("NextExpiryPoints")}
    left_out = _DETAILS if lacks_details else ()
    wrong = [
        wrong_field(name, value, served.get(name))
        for name, value in body.items()
        if name not in left_out and served.get(name) != value
    ]
    if wrong:
        yield Difference(Source.BALANCE, f"of sequence {served['Sequence']}: {', '.join(wrong)}")
    elif last and last.kind is Kind.ERASED:
        what = f"has sequence {served['Sequence']}, but entry {last.sequence} erased the account"
        yield Difference(Source.BALANCE, what, settles=True)
    elif last and entry.version != last.version:
        yield Difference(Source.BALANCE, f"is that of {_versions(entry.version, last.version)}", settles=True)


def _compare_state(
    state: Account | None, last: Entry | None, account: Account | None, programmes: Programmes, now: int
) -> Iterator[Difference]:
    """Compare Spark's account with the recomputed one, or with the last entry if ``account`` is None."""
    if last is None or last.kind is Kind.ERASED:
        if state is not None:
            what = f"there is an account, of sequence {state.sequence}"
            yield Difference(Source.STATE, what, settles=True)
    elif state is None:
        yield Difference(Source.STATE, "there is no account", settles=True)
    elif (version := AccountVersion(state.opened_time, state.sequence)) != last.version:
        yield Difference(Source.STATE, f"has {_versions(version, last.version)}", settles=True)
    else:
        if account is None:
            wrong = wrong_of(("total", "available", "pending", "reserved", "tier"), last, state)
        else:
            recomputed = _as_stored(account, state)
            wrong = wrong_fields(_advanced(recomputed, now, programmes), _advanced(state, now, programmes))
        if wrong:
            yield Difference(Source.STATE, f"at sequence {state.sequence}: {wrong}")


def _versions(found: AccountVersion, expected: AccountVersion) -> str:
    """Names two different versions. After an erasure, the next account of the card has the same sequence numbers."""
    if found.opened_time == expected.opened_time:
        return f"sequence {found.sequence}, not {expected.sequence}"
    opened = short_time_text(found.opened_time)
    return (
        f"sequence {found.sequence} of the account that was opened at {opened}, not {expected.sequence} of the account "
        f"that was opened at {short_time_text(expected.opened_time)}"
    )


def _as_stored(account: Account, state: Account) -> Account:
    """The recomputed account, without the data that release 0.1 did not keep.

    These are the items of purchases, returns, the first purchase of a tier period, and the period of late purchases.
    """
    account = account.copy()
    account.period_start = min(account.period_start, state.period_start)
    for number, stored in state.purchases.items():
        if stored.items is not None:
            continue
        if number in account.purchases:
            bought = account.purchases[number]._replace(lines=stored.lines, items=None)
            account.purchases[number] = bought if stored.counted_until else bought._replace(counted_until=0)
        elif number in account.returns and number not in state.returns:
            past = account.returns.pop(number)
            account.purchases[number] = PastPurchase(past.append_time, Decimal(0), 0, past.programme_version)
    return account


def _advanced(account: Account, now: int, programmes: Programmes) -> Account:
    """A copy of the account, advanced to this time.

    Changes without an entry, such as the removal of old purchases, have no fixed time. After this they are the same in
    both accounts.
    """
    later = account.copy()
    apply_due_changes(later, now, programmes, Outcome(later))
    forget(later, now, programmes)
    # Release 0.1 forgot a purchase ten days earlier.
    known = [number for number in later.purchases if remembers(later, number, now, programmes)]
    later.purchases = {number: later.purchases[number] for number in known}
    return later
