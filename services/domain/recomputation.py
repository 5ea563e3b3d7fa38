"""An account decided anew from its events, in the order of the record. No clock, no I/O.

One thing is taken from the record: the order in which the processor took events, and when time did something. Two
topics and several partitions have no order of their own. Everything else (points, totals, lots, refusals, sequences) is
decided again, by the domain code that decided it the first time, and must come out as recorded.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from services.domain.account.processor import Account, Outcome, advance, process
from services.domain.accrual import eligible
from services.domain.entries import Credit, Decision, Entry, Kind
from services.domain.events import Event, Purchase
from services.domain.programme import Programmes


@dataclass(slots=True)
class History:
    """What became of an account, step by step; the fields of Outcome."""

    account: Account | None = None
    entries: list[Entry] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.account = outcome.account
        self.entries += outcome.entries
        self.decisions += outcome.decisions
        self.credits += outcome.credits
        self.forgotten += outcome.forgotten


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What the events of one customer make.

    Attributes:
        settled: what the events that the record knows have made, and what time did between them.
        late: what those without a record make, taken last in the order of their append times; its account is the
            customer's in the end.
        without_event: entries of the record that name an event which is not there.
        not_processed: ids of events that must have an effect and have no record.
    """

    settled: History
    late: Outcome
    without_event: list[Entry]
    not_processed: list[str]


def recompute(
    card: str, events: Iterable[Event], recorded: Iterable[Entry], programmes: Programmes, complete_from: int = 0
) -> Recomputed:
    """Decide a customer's events again.

    Args:
        events: all that the account was given, in any order; the same one may come several times.
        recorded: the entries that the processor wrote, in any order; the same one may come several times.
        complete_from: entries of before may be missing from the record (milliseconds since the epoch). Events of before
            that have no entry are then taken first, in the order of their append times.
    """
    record = in_order(recorded)
    copies = _Copies(events)
    unknown = copies.without({entry.event_id for entry in record if not is_times(entry)})
    history, without_event, taken = History(), [], set()
    if old := [event for event in unknown if event.append_time < complete_from]:
        history.add(process(None, old, programmes, card))
    for entry in record:
        if is_times(entry):
            _apply_due_changes(history, entry, programmes)
        elif (entry.event_id, entry.time) not in taken:  # else a further entry of an event that has been taken
            taken.add((entry.event_id, entry.time))
            if event := copies.take(entry):
                outcome = process(history.account, [event], programmes, card)
                history.add(outcome if history.account else _opened_as(entry, outcome, history.entries))
            else:
                without_event.append(entry)
    new = [event for event in unknown if event.append_time >= complete_from]
    late = process(history.account, new, programmes, card)
    effective = {entry.event_id for entry in late.entries if not is_times(entry)}
    not_processed = [each.event_id for each in new if each.event_id in effective and _must_count(each, programmes)]
    return Recomputed(history, late, without_event, not_processed)


def _must_count(event: Event, programmes: Programmes) -> bool:
    """Other types of customers return only what was known when the return was taken: theirs may have had no effect."""
    return not isinstance(event, Purchase) or eligible(event, programmes.at(event.append_time))


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Entries as the account wrote them, without those that came again unchanged."""
    return sorted(dict.fromkeys(entries), key=lambda entry: entry.version)


def is_times(entry: Entry) -> bool:
    """Whether time made the entry; the lapse of a reservation names the reserve that it ends."""
    return not entry.event_id or entry.kind is Kind.LAPSED


def _apply_due_changes(history: History, entry: Entry, programmes: Programmes) -> None:
    """What time did up to this entry, one due time after the other.

    Not all that is due by the entry's time at once: an event that came late may have been taken in between.
    """
    while (account := history.account) is not None and account.sequence < entry.sequence:
        due = account.next_due()
        if due is None or due > entry.time:
            return
        history.add(advance(account, due, programmes))


def _opened_as(first: Entry, outcome: Outcome, before: Sequence[Entry]) -> Outcome:
    """An account opens with its first event, but later than another of the card that was erased in the same batch.

    Before 2026-11 nobody wrote down when; such accounts go on with 0.
    """
    opened_time = first.opened_time
    after_erasure = max(before[-1].time, before[-1].opened_time) + 1 if before else 0
    if opened_time not in {0, after_erasure}:
        return outcome
    account = replace(outcome.account, opened_time=opened_time) if outcome.account else None
    return Outcome(
        account,
        [replace(entry, opened_time=opened_time) for entry in outcome.entries],
        [replace(decision, opened_time=opened_time) for decision in outcome.decisions],
        outcome.credits,
        outcome.forgotten,
    )


class _Copies:
    """Events by their ids: a till or a caller may send one again."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._waiting: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            self._waiting[event.event_id].append(event)

    def without(self, known: set[str]) -> Sequence[Event]:
        """The first of each id that is not among the known ones."""
        unknown = (copies for event_id, copies in self._waiting.items() if event_id not in known)
        return [min(copies, key=lambda event: event.append_time) for copies in unknown]

    def take(self, entry: Entry) -> Event | None:
        """The event that the entry is about: of those with its id that of its time, else the first."""
        copies = self._waiting.get(entry.event_id)
        if not copies:
            return None
        event = min(copies, key=lambda copy: (copy.append_time != entry.time, copy.append_time))
        copies.remove(event)
        return event
