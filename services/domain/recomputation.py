"""Recomputes an account from its events, in the order of its recorded entries. No clock, no input or output.

Topics and partitions have no common order. So the order of the recorded entries shows in which order the processor
applied the events, and when timers ran. The code of the processor computes all other values again: points, totals,
lots, refusals and sequence numbers. They must be equal to the recorded values. Only the limit of open reservations does
not apply to a recorded reservation: earlier versions had no such limit.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from services.domain.account.model import EVENT_MEMORY, RETURN_MEMORY, Account, AccountState, Outcome
from services.domain.account.processor import process
from services.domain.account.timers import apply_next_change
from services.domain.entries import Entry, Kind
from services.domain.events import Absorb, Erase, Event, Forward, Import, Purchase, Replace, Reserve, Unreadable
from services.domain.programme import Programmes
from services.domain.receipt_time import is_eligible
from services.domain.returns import InvoiceKind


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The result of a recomputation.

    Attributes:
        settled: the result of the events with recorded entries, and of the timers between them.
        late: the result of the events without recorded entries. They are applied last, in the order of their append
            times. So this result contains the final account of the customer.
        without_event: recorded entries whose event is missing. The account lacks their effect, but the entries after
            them keep their sequence numbers.
        not_processed: ids of events that must change the account and have no recorded entry.
    """

    settled: Outcome
    late: Outcome
    without_event: list[Entry]
    not_processed: list[str]


def recompute(
    card: str, events: Iterable[Event], recorded: Iterable[Entry], programmes: Programmes, complete_from: int = 0
) -> Recomputed:
    """Applies the events of a customer again.

    Args:
        events: all events of the account, in any order, with duplicates.
        recorded: the entries that the processor wrote, in any order, with duplicates.
        complete_from: older entries may be missing (milliseconds since the epoch). Older events without an entry are
            applied first, in the order of their append times.
    """
    entries = in_order(recorded)
    copies, memory = _Copies(events, entries), _longest_memory(programmes)
    unrecorded = copies.unrecorded(memory)
    settled, without_event = Outcome(None), list[Entry]()
    if old := [event for event in unrecorded if event.append_time < complete_from]:
        _add(settled, process(None, old, programmes, card))
    applied, absorbed = set(), []
    for entry in entries:
        if without_event:
            settled.account = _numbered(settled.account, entry, entry.sequence - 1)
        if is_from_timer(entry):
            _apply_due_changes(settled, entry, programmes)
        elif (entry.event_id, entry.time) not in applied:  # an event can have several entries
            applied.add((entry.event_id, entry.time))
            if event := copies.take(entry, memory):
                if isinstance(event, Absorb) and entry.kind is Kind.MOVED_IN:
                    absorbed += [(number, entry) for number in event.part.returns]
                    unrecorded = [each for each in unrecorded if not _came_with(event.part, each, memory)]
                if isinstance(event, Replace) and entry.kind is Kind.MOVED_OUT:
                    state, time = settled.state, event.append_time
                    unrecorded = [each for each in unrecorded if not _was_known(each, state, time, programmes, card)]
                    absorbed = []  # The account has moved, and forwards every later message.
                outcome = process(settled.state, [event], programmes, card)
                _add(settled, outcome if settled.account else _opened_as(entry, outcome))
            else:
                without_event.append(entry)
    new = [event for event in unrecorded if event.append_time >= complete_from]
    decided = [(entry.invoice_number, entry) for entry in entries if entry.kind is not Kind.FORWARDED]
    new = _without_ignored(new, entries, [*decided, *absorbed], settled.account, programmes)
    state = settled.state
    if without_event:
        last = entries[-1]
        state = _numbered(settled.account, last, 0 if last.kind is Kind.ERASED else last.sequence) or settled.marker
    late = process(state, new, programmes, card)
    effective = {entry.event_id for entry in late.entries if not is_from_timer(entry)}
    not_processed = [each.event_id for each in new if each.event_id in effective and _must_count(each, programmes)]
    return Recomputed(settled, late, without_event, not_processed)


def _numbered(account: Account | None, entry: Entry, sequence: int) -> Account | None:
    """Returns an account that lacks events, with the opened time of the entry and this sequence number.

    Returns None if ``sequence`` is 0, because the account is not open then.
    """
    if not sequence:
        return None
    account = account or Account(entry.opened_time, tier=entry.tier)
    return replace(account, opened_time=entry.opened_time, sequence=sequence)


def _longest_memory(programmes: Programmes) -> int:
    """Returns a time after which every account has forgotten an invoice, in milliseconds."""
    return max(RETURN_MEMORY, *(each.purchase_memory for each in programmes.versions)) + EVENT_MEMORY


def _without_ignored(
    events: Iterable[Event],
    entries: Iterable[Entry],
    decided: Iterable[tuple[str, Entry]],
    account: Account | None,
    programmes: Programmes,
) -> list[Event]:
    """Returns the events without an entry, except those that the processor has read and ignored.

    Args:
        entries: the recorded entries.
        decided: each invoice number with an entry that decides it, or with the entry of a move that brought the return.
        account: the account after the events with entries.
    """
    opened_time = account.opened_time if account else None
    of_account = [entry for entry in entries if entry.opened_time == opened_time]
    known = {number for entry in of_account for number in (entry.event_id, entry.invoice_number)}
    known |= {number for number, entry in decided if entry.opened_time == opened_time}
    erased_times = [entry.time for entry in entries if entry.kind is Kind.ERASED]
    opener = min(of_account, key=lambda entry: entry.sequence, default=None)
    ignored_until = opened_time or 0
    if opener and opener.time == opened_time and not opener.invoice_number and opener.kind is not Kind.MOVED_IN:
        ignored_until += 1  # In one millisecond, the processor applies a purchase before a command.
    # A late event can have opened the account, after the processor had ignored newer events of the erased card.
    opened_until = max([opened_time or 0, *(time + EVENT_MEMORY for time in erased_times)])
    decided_times: defaultdict[str, list[int]] = defaultdict(list)
    for number, entry in decided:
        decided_times[number].append(entry.time)
    return [
        event
        for event in events
        if not _is_second_copy(event, known)
        and not _is_second_message(event, decided_times, programmes)
        and not _came_after_an_erasure(event, erased_times, ignored_until)
        and not (event.append_time <= opened_until and _needs_account(event, account, programmes))
    ]


def _came_with(part: Account, event: Event, memory: int) -> bool:
    """Whether an account that moved here knew this import or this invoice number. Then this account ignored it."""
    if isinstance(event, Import):
        return event.decision_id in part.imports
    past = part.purchases.get(event.event_id) or part.returns.get(event.event_id)
    return isinstance(event, Purchase) and past is not None and event.append_time <= past.append_time + memory


def _was_known(event: Event, state: AccountState | None, moved_time: int, programmes: Programmes, card: str) -> bool:
    """Whether the account ignored this message before it moved to another card. Now it would forward the message.

    The message is an invoice from a replaced card or from the index of invoices. The account ignored it because it
    already knew the invoice. Such messages and the replacement are commands to one card, and these keep their order.
    """
    is_message = isinstance(event, Forward) or (isinstance(event, Purchase) and bool(event.redirect_id))
    if not is_message or event.append_time > moved_time:
        return False
    return all(entry.event_id != event.event_id for entry in process(state, [event], programmes, card).entries)


def _is_second_copy(event: Event, known: Collection[str]) -> bool:
    """Whether the index forwarded a return that this account already had, or that came with another account.

    The processor ignored the copy while the account remembered the return. The account can have forgotten it since.
    """
    return isinstance(event, Forward) and event.invoice.invoice_number in known


def _is_second_message(event: Event, decided_times: Mapping[str, Sequence[int]], programmes: Programmes) -> bool:
    """Whether a replaced card sent a return that the index had forwarded too, and that an entry already decides.

    The account ignored the second message. Since then it may have forgotten the return, or the customer was erased.

    Args:
        decided_times: by invoice number, the times of the entries that decide it.
    """
    if not isinstance(event, Purchase) or not event.redirect_id or event.invoice_kind is InvoiceKind.SALE:
        return False
    if event.invoice_kind is InvoiceKind.EXCHANGE and _must_count(event, programmes):
        return False  # The entry may decide its returned half only.
    return any(abs(event.append_time - time) <= RETURN_MEMORY for time in decided_times.get(event.invoice_number, ()))


def _came_after_an_erasure(event: Event, erased_times: Iterable[int], ignored_until: int) -> bool:
    """Whether a replaced card sent an invoice after an erasure of this card, and before the next account was opened.

    The processor ignores such an invoice while it has the marker of the erasure: until the next account opens.
    """
    return (
        isinstance(event, Purchase)
        and bool(event.redirect_id)
        and any(time <= event.append_time < min(ignored_until, time + EVENT_MEMORY) for time in erased_times)
    )


def _needs_account(event: Event, account: Account | None, programmes: Programmes) -> bool:
    """Whether the processor ignores the event if the card has no account when it arrives.

    If the event has no entry and the account was opened later, the event does not concern the account. The index of
    invoices forwards returns of a purchase after the account has it, so these returns are not such events.
    """
    match event:
        case Purchase():
            return not _must_count(event, programmes)
        case Erase():
            return bool(event.counterparty)
        case Forward():
            return account is None or event.invoice.original_invoice_number not in account.purchases
    return False


def _add(settled: Outcome, outcome: Outcome) -> None:
    """Adds the next result to all results before it."""
    settled.account, settled.marker = outcome.account, outcome.marker
    settled.entries += outcome.entries
    settled.decisions += outcome.decisions
    settled.credits += outcome.credits
    settled.forgotten += outcome.forgotten
    settled.commands += outcome.commands


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries in the order in which the account wrote them, without duplicates."""
    return sorted(dict.fromkeys(entries), key=lambda entry: entry.version)


def is_from_timer(entry: Entry) -> bool:
    """Whether a timer made the entry. The entry of a lapse has an event id, the id of the reserve."""
    return not entry.event_id or entry.kind is Kind.LAPSED


def _must_count(event: Event, programmes: Programmes) -> bool:
    """Whether the event must change an account.

    A return of an ineligible customer need not: the card may have had no account when the return arrived.
    """
    return not isinstance(event, Purchase) or is_eligible(event, programmes)


def _apply_due_changes(settled: Outcome, entry: Entry, programmes: Programmes) -> None:
    """Applies due changes up to this entry. It stops at the entry: a late event may come before the next change."""
    if account := settled.account:
        outcome = Outcome(account := account.copy())
        while account.sequence < entry.sequence and apply_next_change(account, entry.time, programmes, outcome):
            pass
        if outcome.entries:
            _add(settled, outcome)


def _opened_as(first: Entry, outcome: Outcome) -> Outcome:
    """Gives an account the opened time of its first entry, if release 0.1 wrote the entry.

    Release 0.1 always used the time of the first event.
    """
    opened_time = first.opened_time
    if opened_time != first.time:
        return outcome
    return replace(
        outcome,
        account=outcome.account and replace(outcome.account, opened_time=opened_time),
        entries=[replace(entry, opened_time=opened_time) for entry in outcome.entries],
        decisions=[replace(decision, opened_time=opened_time) for decision in outcome.decisions],
    )


class _Copies:
    """Events by id. A till or a caller may send an event several times.

    Args:
        entries: in the order of their versions.
    """

    def __init__(self, events: Iterable[Event], entries: Iterable[Entry]) -> None:
        self._recorded = [entry for entry in entries if not is_from_timer(entry)]
        self._decided = {(entry.event_id, entry.time) for entry in self._recorded}
        self._waiting: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            self._waiting[event.event_id].append(event)

    def unrecorded(self, memory: int) -> Sequence[Event]:
        """Returns the first event of each id without an entry.

        If an entry names an id, a till may use it again for another purchase. This event counts after the accounts have
        forgotten the id.

        Args:
            memory: how long accounts remember an id, in milliseconds.
        """
        # A message about an invoice has an id of its own, so the number of the invoice counts, too.
        last_times = dict(
            sorted((id_, each.time) for each in self._recorded for id_ in (each.event_id, each.invoice_number))
        )

        first = []
        for event_id, copies in self._waiting.items():
            candidates = copies
            if event_id in last_times:
                forgotten_time = last_times[event_id] + memory
                candidates = [
                    each for each in copies if isinstance(each, Purchase) and each.append_time > forgotten_time
                ]
            first += sorted(candidates, key=lambda event: event.append_time)[:1]
        return first

    def take(self, entry: Entry, memory: int) -> Event | None:
        """Removes and returns the event of the entry: the copy with the time of the entry, or else the first copy.

        The event gets the time of the entry, which is the append time of the copy that counted. An archive can lack
        this copy: it drops duplicates by itself, and may have kept another one. A copy with the time of another entry
        is the event of that entry: a rebuild has sent a lost command again. A ``Reserve`` says whether the entry shows
        that it was accepted.

        Args:
            memory: how long accounts remember an id, in milliseconds. A copy outside of this time is another event.
        """
        copies = [
            copy
            for copy in self._waiting.get(entry.event_id, ())
            if copy.append_time == entry.time
            or (
                (copy.event_id, copy.append_time) not in self._decided
                and entry.time - EVENT_MEMORY <= copy.append_time <= entry.time + memory
            )
        ]
        if not copies:
            return None
        event = min(copies, key=lambda copy: (copy.append_time != entry.time, copy.append_time))
        self._waiting[entry.event_id].remove(event)
        event = replace(event, append_time=entry.time)
        if isinstance(event, Unreadable) and entry.kind is Kind.MOVED_IN:
            return None  # a newer release could read the part
        if isinstance(event, Reserve) and entry.kind is Kind.RESERVED:
            return replace(event, was_accepted=True)
        return event
