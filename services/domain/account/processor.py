"""Applies events and timers to one account. Pure functions: no clock, no input or output.

The total of an account is the sum of the points of all its entries. It is also the sum of lots and reservations, minus
the debt. Points are hundredths; times are milliseconds since the epoch. "Now" is the append time of the event.
"""

from collections.abc import Iterable

from services.domain.account import commands, purchases
from services.domain.account.model import Account, Outcome
from services.domain.account.posting import Posting
from services.domain.account.timers import apply_due_changes
from services.domain.events import Adjust, Capture, Erase, Event, Purchase, Receive, Reserve, Transfer, Void
from services.domain.programme import Programme, Programmes

# In one millisecond, events that add points come before events that take points. A return has rank 1.
_RANKS: dict[type, int] = {Purchase: 0, Receive: 2, Adjust: 3, Reserve: 4, Capture: 5, Void: 6, Transfer: 7, Erase: 8}


def process(account: Account | None, events: Iterable[Event], programmes: Programmes, card: str) -> Outcome:
    """Applies events in the order of their append times, in whatever order they are given.

    Before each event it applies all changes that are due by then. An event that the account remembers does nothing.
    An account opens with its first event and ends with its erasure.

    Args:
        account: None if the card has no account.
        card: the card of the account.
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
            # The sequence restarts at 1 after an erasure, so the opened times of the two accounts must differ.
            opened = outcome.account or Account(max(now, erased_time + 1), tier=programme.tier_for(0))
            _post(Posting(opened, programmes, programme, now, outcome, event), card)
            if outcome.account is None:
                erased_time = max(now, opened.opened_time)
    if outcome.account:
        apply_due_changes(outcome.account, now, programmes, outcome)
    return outcome


def advance(account: Account, until: int, programmes: Programmes) -> Outcome:
    """Applies all changes that are due at or before that time."""
    outcome = Outcome(advanced := account.copy())
    apply_due_changes(advanced, until, programmes, outcome)
    return outcome


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Sorts events by append time and rank."""
    first: dict[tuple[int, int, str], Event] = {}
    for event in events:
        rank = 1 if isinstance(event, Purchase) and event.is_return else _RANKS[type(event)]
        order = (event.append_time, rank, event.event_id)
        # If two events have the same id and millisecond, the same one always counts.
        if order not in first or repr(event) < repr(first[order]):
            first[order] = event
    return [first[order] for order in sorted(first)]


def _is_new(event: Event, account: Account | None, programme: Programme) -> bool:
    """Whether the event concerns this account and has not been applied yet."""
    if isinstance(event, Purchase):
        if account and event.invoice_number in account.purchases:
            return False
        return purchases.counts(event, account, programme)
    return account is None or not (event.command_id in account.commands or event.command_id in account.reservations)


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
