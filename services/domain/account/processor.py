"""Applies events and timers to one account. Pure functions: no clock, no input or output.

The total of an account is the sum of the points of all its entries. It is also the sum of lots and reservations, minus
the debt. Points are hundredths; times are milliseconds since the epoch. "Now" is the append time of the event.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from services.domain.account import commands, moves, purchases
from services.domain.account.memory import forget, remembers
from services.domain.account.model import EVENT_MEMORY, Account, AccountState, ErasureMarker, Outcome, PastCommand
from services.domain.account.posting import Posting
from services.domain.account.timers import apply_due_changes, apply_next_change
from services.domain.entries import Refusal
from services.domain.events import (
    Absorb,
    Adjust,
    Block,
    Capture,
    Erase,
    Event,
    Forward,
    Import,
    Merge,
    Purchase,
    Receive,
    Replace,
    Reserve,
    Transfer,
    Unblock,
    Unreadable,
    Void,
)
from services.domain.programme import Programme, Programmes
from services.domain.returns import InvoiceKind

_HANDLERS: dict[type, Callable[[Posting, Any], None]] = {
    Absorb: moves.absorb,
    Purchase: purchases.process_purchase,
    Forward: purchases.process_forwarded_return,
    Receive: commands.receive,
    Import: commands.take_import,
    Adjust: commands.adjust,
    Unblock: commands.block,
    Reserve: commands.reserve,
    Capture: commands.capture,
    Void: commands.void,
    Transfer: commands.transfer,
    Block: commands.block,
    Replace: moves.move,
    Merge: moves.move,
    Unreadable: partial(commands.refuse, refusal=Refusal.UNREADABLE),
    Erase: commands.erase,
}
"""The function for each kind of event. Events of the same millisecond have this order: points are added first."""
_RANKS = {kind: rank for rank, kind in enumerate(_HANDLERS)}
_KINDS = (InvoiceKind.SALE, InvoiceKind.EXCHANGE, InvoiceKind.RETURN)
"""The order of invoices of one millisecond. A sale comes first: it can open the account from which a return takes."""


def process(state: AccountState | None, events: Iterable[Event], programmes: Programmes, card: str) -> Outcome:
    """Applies events in the order of their append times. The argument may have any order.

    Before each event it applies all changes that are due by then. An event that the account remembers has no effect.
    An account opens with its first event and ends with its erasure.

    Args:
        state: None if the card has no account.
    """
    outcome = _start(state)
    now = 0
    for event in _in_order(events):
        now = event.append_time
        if _is_in_transit(event, outcome.account) or _is_new(event, outcome, programmes):
            _apply(event, outcome, programmes, card)
    if outcome.account:
        _advance(outcome.account, now, programmes, outcome)
    elif outcome.marker:
        outcome.next_due = outcome.marker.next_due()
    return outcome


def advance(state: AccountState, until: int, programmes: Programmes) -> Outcome:
    """Applies all changes that are due at or before that time. The marker of an erased account ends at its time.

    A change without an entry, such as the end of a tier period with the same tier, waits for the next change with an
    entry. So the entries alone determine the account, and ``recompute`` can repeat it, also if an event arrives that is
    older than such a change.
    """
    outcome = _start(state)
    if outcome.account:
        _advance(outcome.account, until, programmes, outcome)
    elif outcome.marker:
        if outcome.marker.next_due() <= until:
            outcome.marker = None
        else:
            outcome.next_due = outcome.marker.next_due()
    return outcome


def _advance(account: Account, until: int, programmes: Programmes, outcome: Outcome) -> None:
    """Applies due changes, and undoes those after the last entry. Sets ``next_due`` to a time after ``until``."""
    # The only change without an entry is the end of a tier period, which changes these three numbers.
    sequence, period = account.sequence, _period(account)
    while apply_next_change(account, until, programmes, outcome):
        if account.sequence > sequence:
            sequence, period = account.sequence, _period(account)
    outcome.next_due = account.next_due()
    account.period_start, account.period_end, account.earned_in_period = period


def _period(account: Account) -> tuple[int, int, int]:
    return account.period_start, account.period_end, account.earned_in_period


def _start(state: AccountState | None) -> Outcome:
    if isinstance(state, ErasureMarker):
        return Outcome(None, marker=state)
    return Outcome(state.copy() if state else None)


def _open(now: int, programme: Programme, marker: ErasureMarker | None) -> Account:
    """Opens an account. Its sequence starts at 1 again, so its opened time must be after that of an erased account."""
    return Account(max(now, marker.time + 1) if marker else now, tier=programme.tier_for(0))


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Sorts events by append time, rank and kind of invoice, and the parts of a moved account by their numbers."""
    first: dict[tuple[int, int, int, str], Event] = {}
    for event in events:
        kind = _KINDS.index(event.invoice_kind) if isinstance(event, Purchase) else 0
        if isinstance(event, Absorb):
            kind = len(event.event_id)  # as a text, part 10 comes before part 2
        order = (event.append_time, _RANKS[type(event)], kind, event.event_id)
        # If two events have the same id and millisecond, this order always chooses the same one.
        if order not in first or repr(event) < repr(first[order]):
            first[order] = event
    return [first[order] for order in sorted(first)]


def _is_in_transit(event: Event, account: Account | None) -> bool:
    """Whether a replaced card has sent the event here, and this card forwards it because it was replaced too.

    If cards have replaced each other in a circle, such an event can come here again, and is forwarded again.
    """
    is_sent = bool(event.redirect_id if isinstance(event, Purchase) else event.origin_id)
    return is_sent and account is not None and moves.passes_on(account, event)


def _is_new(event: Event, outcome: Outcome, programmes: Programmes) -> bool:
    """Whether the event concerns this account and has not been applied yet."""
    now, account, marker = event.append_time, outcome.account, outcome.marker
    if isinstance(event, Purchase):
        if account and remembers(account, event.invoice_number, now, programmes):
            return purchases.lacks_its_sale(account, event, programmes)
        # The erasure reaches the replaced card after this card. Until then the replaced card sends its invoices here.
        is_erased = bool(event.redirect_id) and marker is not None and now < marker.next_due()
        return not is_erased and purchases.counts(event, account, programmes)
    if isinstance(event, Forward) and (
        account is None or remembers(account, event.invoice.invoice_number, now, programmes)
    ):
        # The customer was erased after the purchase, or the account has read the return itself.
        return False
    if account is None:
        # The other cards of an erased customer may have been erased already.
        return not (isinstance(event, Erase) and event.counterparty)
    if event.decision_id in account.imports:
        return False
    past = account.commands.get(event.decision_id)
    return (past is None or past.append_time + EVENT_MEMORY < now) and event.command_id not in account.reservations


def _apply(event: Event, outcome: Outcome, programmes: Programmes, card: str) -> None:
    now = event.append_time
    programme = programmes.at(now)
    if outcome.account:
        apply_due_changes(outcome.account, now, programmes, outcome)
    else:
        outcome.account, outcome.marker = _open(now, programme, outcome.marker), None
    account = outcome.account
    forget(account, now, programmes)
    if not isinstance(event, Purchase) and not moves.passes_on(account, event):
        account.commands[event.decision_id] = PastCommand(now, event.request_hash, event.kind)
    posting = Posting(account, programmes, programme, now, outcome, event, card)
    if not (account.moved_to and moves.pass_on(posting, event)):
        _HANDLERS[type(event)](posting, event)
