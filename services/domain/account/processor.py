"""A customer's loyalty account: state and events in, new state and entries out. No clock, no I/O.

The total is the sum of all entries' points, and it is what is in lots and reservations, less the debt. Points are
hundredths, times milliseconds since the epoch; "now" is the time at which the broker appended an event.
"""

from collections.abc import Iterable

from services.domain.account import commands, purchases
from services.domain.account.model import REMEMBERED, Account, Outcome, Posting, Reservation
from services.domain.account.timers import apply_due_changes
from services.domain.events import Adjust, Capture, Erase, Event, Purchase, Receive, Reserve, Transfer, Void
from services.domain.programme import Programme, Programmes
from services.domain.tiers import tier_for

__all__ = ["REMEMBERED", "Account", "Outcome", "Reservation", "advance", "process"]

_RANKS: dict[type, int] = {
    Purchase: 0,
    # A return, ranked 1, may come in the millisecond of its purchase; what gives points goes before what takes them.
    Receive: 2,
    Adjust: 3,
    Reserve: 4,
    Capture: 5,
    Void: 6,
    Transfer: 7,
    Erase: 8,
}


def process(account: Account | None, events: Iterable[Event], programmes: Programmes, card: str) -> Outcome:
    """What the events make of the account, whatever order they arrive in; before each, what time has done by then.

    An event that has been counted, and is remembered, does nothing. An account opens with its first event and ends
    with its erasure; ``card`` is whose it is.
    """
    outcome = Outcome(account.copy() if account else None)
    erased_time = now = 0
    for event in _in_order(events):
        now = event.append_time
        programme = programmes.at(now)
        if outcome.account:
            apply_due_changes(outcome.account, now, programmes, outcome)
            purchases.forget(outcome.account, now, programme)
        if _is_new(event, outcome.account, programme):
            # Sequences begin anew after an erasure, so the accounts must differ by their times.
            opened = outcome.account or _opened(max(now, erased_time + 1), programme)
            _post(Posting(opened, programmes, programme, now, outcome, event), card)
            if outcome.account is None:
                erased_time = max(now, opened.opened_time)
    if outcome.account:
        apply_due_changes(outcome.account, now, programmes, outcome)
    return outcome


def advance(account: Account, until: int, programmes: Programmes) -> Outcome:
    """What time does to the account, each thing that is due until then (inclusive) in its turn."""
    passing = account.copy()
    outcome = Outcome(passing)
    apply_due_changes(passing, until, programmes, outcome)
    return outcome


def _in_order(events: Iterable[Event]) -> list[Event]:
    """By append time; what gives points before what takes them."""
    first: dict[tuple[int, int, str], Event] = {}
    for event in events:
        rank = 1 if isinstance(event, Purchase) and event.is_return else _RANKS[type(event)]
        order = (event.append_time, rank, event.event_id)
        # Of two that claim one identity in one millisecond one counts, and it is always the same one.
        if order not in first or repr(event) < repr(first[order]):
            first[order] = event
    return [first[order] for order in sorted(first)]


def _is_new(event: Event, account: Account | None, programme: Programme) -> bool:
    """Whether it concerns this account, and has not been counted."""
    if isinstance(event, Purchase):
        if account and event.invoice_number in account.purchases:
            return False
        return purchases.counts(event, account, programme)
    return account is None or not (event.command_id in account.commands or event.command_id in account.reservations)


def _opened(time: int, programme: Programme) -> Account:
    return Account(time, tier=tier_for(0, programme))


def _post(posting: Posting, card: str) -> None:
    posting.outcome.account = posting.account
    event = posting.event
    if not isinstance(event, Purchase) and event is not None:
        posting.account.commands[event.command_id] = event.append_time
    match event:
        case Purchase():
            purchases.purchase(posting, event)
        case Reserve():
            commands.reserve(posting, event)
        case Capture():
            commands.capture(posting, event)
        case Void():
            commands.void(posting, event)
        case Adjust():
            commands.adjust(posting, event)
        case Transfer():
            commands.transfer(posting, event, card)
        case Receive():
            commands.receive(posting, event)
        case Erase():
            commands.erase(posting, event)
