"""Recomputes an account from its events, in the order of its recorded entries. No clock, no input or output.

The order of the entries says in which order the processor took the events, and when timers ran. The topics and their
partitions have no common order. The same code decides all other values (points, totals, lots, refusals, sequence
numbers) again, and they must be equal to the recorded ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from services.domain.account.model import Account, Outcome
from services.domain.account.processor import advance, process
from services.domain.entries import Credit, Decision, Entry, Kind
from services.domain.events import Event, Purchase
from services.domain.programme import Programmes


@dataclass(slots=True)
class History:
    """The account after some steps, and all that the steps produced. The fields are those of Outcome."""

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
    """The result of a recomputation.

    Attributes:
        settled: the result of the events with recorded entries, and of the timers between them.
        late: the result of the events without recorded entries. They are applied last, in the order of their append
            times. Its account is the final account of the customer.
        without_event: recorded entries whose event is missing.
        not_processed: ids of events that must change the account and have no recorded entry.
    """

    settled: History
    late: Outcome
    without_event: list[Entry]
    not_processed: list[str]


def recompute(
    card: str, events: Iterable[Event], recorded: Iterable[Entry], programmes: Programmes, complete_from: int = 0
) -> Recomputed:
    """Decides the events of a customer again.

    Args:
        events: all events of the account, in any order, with duplicates.
        recorded: the entries that the processor wrote, in any order, with duplicates.
        complete_from: older entries may be missing (milliseconds since the epoch). Older events without an entry are
            applied first, in the order of their append times.
    """
    record = in_order(recorded)
    copies = _Copies(events)
    unknown = copies.without({entry.event_id for entry in record if not is_from_timer(entry)})
    history, without_event, taken = History(), [], set()
    if old := [event for event in unknown if event.append_time < complete_from]:
        history.add(process(None, old, programmes, card))
    for entry in record:
        if is_from_timer(entry):
            _apply_due_changes(history, entry, programmes)
        elif (entry.event_id, entry.time) not in taken:  # an event can have several entries
            taken.add((entry.event_id, entry.time))
            if event := copies.take(entry):
                outcome = process(history.account, [event], programmes, card)
                history.add(outcome if history.account else _opened_as(entry, outcome, history.entries))
            else:
                without_event.append(entry)
    new = [event for event in unknown if event.append_time >= complete_from]
    late = process(history.account, new, programmes, card)
    effective = {entry.event_id for entry in late.entries if not is_from_timer(entry)}
    not_processed = [each.event_id for each in new if each.event_id in effective and _must_count(each, programmes)]
    return Recomputed(history, late, without_event, not_processed)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries in the order in which the account wrote them, without duplicates."""
    return sorted(dict.fromkeys(entries), key=lambda entry: entry.version)


def is_from_timer(entry: Entry) -> bool:
    """Whether a timer made the entry. The entry of a lapse has an event id, the id of the reserve."""
    return not entry.event_id or entry.kind is Kind.LAPSED


def _must_count(event: Event, programmes: Programmes) -> bool:
    """Whether the event must change an account. The return of an ineligible customer may have found no purchase."""
    return not isinstance(event, Purchase) or programmes.at(event.append_time).is_eligible(event.customer_type)


def _apply_due_changes(history: History, entry: Entry, programmes: Programmes) -> None:
    """Applies due changes up to this entry, one due time after the other.

    It stops at this entry, because the processor may have taken a late event between two changes.
    """
    while (account := history.account) is not None and account.sequence < entry.sequence:
        due = account.next_due()
        if due is None or due > entry.time:
            return
        history.add(advance(account, due, programmes))


def _opened_as(first: Entry, outcome: Outcome, before: Sequence[Entry]) -> Outcome:
    """Gives the account the opened time of its first entry, if the first event alone does not determine it.

    An account that opens in the batch that erased another account of the card opens later than its first event.
    Accounts from before November 2026 have the opened time 0.
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
    """Events by id. A till or a caller may send an event several times."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._waiting: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            self._waiting[event.event_id].append(event)

    def without(self, known: set[str]) -> Sequence[Event]:
        """Returns the first event of each id that is not known."""
        unknown = (copies for event_id, copies in self._waiting.items() if event_id not in known)
        return [min(copies, key=lambda event: event.append_time) for copies in unknown]

    def take(self, entry: Entry) -> Event | None:
        """Removes and returns the event of the entry: the copy with the time of the entry, or else the first copy."""
        copies = self._waiting.get(entry.event_id)
        if not copies:
            return None
        event = min(copies, key=lambda copy: (copy.append_time != entry.time, copy.append_time))
        copies.remove(event)
        return event
