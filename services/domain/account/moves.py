"""An account moves to another card: a lost card is replaced, or two accounts of a customer are merged.

Each card has its own account, and the query processes the accounts separately. So the old account sends all its content
to the new card, in commands ``Absorb``. The old account remains and names the new card. It forwards each later event of
the old card with a command. Talon.One (``TransferLoyaltyCard``) and Dynamics 365 Commerce
(``transferLoyaltyPointsFromBlockedCard``, ``markSourceCardAsReplaced``) also move the data of a card and store the new
card with the old one.

The commands of one account to another keep their order, so the content arrives before later events.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from services.domain.account import purchases
from services.domain.account.commands import refuse
from services.domain.account.lots import soonest_first
from services.domain.account.model import LARGEST_RETURNED_TOTAL, LARGEST_TOTAL, Account, PastPurchase, PastReturn
from services.domain.account.posting import Posting
from services.domain.entries import Kind, Refusal
from services.domain.events import (
    BACK,
    Absorb,
    Capture,
    Command,
    Erase,
    Event,
    Forward,
    Import,
    Purchase,
    Receive,
    Replace,
    Unreadable,
    Void,
    derived_id,
)
from services.domain.local_time import ZONES_APART

PART_SIZE = 200_000
"""The approximate size of a part in bytes. A part is one record on a topic."""

_LOT_SIZE, _INVOICE_SIZE, _ITEM_SIZE = 40, 200, 20
"""Approximate sizes in bytes."""


def move(posting: Posting, event: Replace) -> None:
    """Moves everything to the account of the counterparty. A block of the card does not move."""
    account = posting.account
    if event.counterparty == posting.card:
        refuse(posting, event, Refusal.SAME_CUSTOMER)
        return
    total = account.total
    for number, part in enumerate(_parts(account)):
        _send(posting, event, f"/{number}/moved", part)
    _empty(account)
    account.moved_to = event.counterparty
    posting.add_decision(event, posting.add_entry(Kind.MOVED_OUT, -total, counterparty=event.counterparty))


def passes_on(account: Account, event: Event) -> bool:
    """Whether the account has moved to another card, and forwards such an event there.

    The account does not remember the commands that it forwards. In a circle of replaced cards, a command can come here
    a second time before the content of the account, and must be forwarded again. The card that gets the content
    recognises duplicates.
    """
    if isinstance(event, Absorb | Unreadable) and event.counterparty == account.moved_to:
        return False
    is_forwarded = isinstance(event, Purchase | Capture | Void | Receive | Forward | Import | Absorb | Unreadable)
    return is_forwarded and bool(account.moved_to)


def pass_on(posting: Posting, event: Event) -> bool:
    """Handles an event of a card whose account has moved: forwards it to the new card, or refuses it.

    Returns whether it has handled the event. It does not handle an erasure. It also does not handle content that the
    new card sends here, because the new card could not take it, or because two cards replaced each other at the same
    time. The account then has this content again, and no longer forwards events.
    """
    to = posting.account.moved_to
    match event:
        case Purchase():
            # The account remembers the invoice, so that a duplicate does nothing.
            posting.account.returns[event.invoice_number] = PastReturn(event.append_time, posting.programme.version)
            redirected = replace(event, append_time=0, redirect_id=derived_id(event.event_id, "/redirected"))
            posting.outcome.commands.append((to, redirected))
            posting.add_entry(Kind.FORWARDED, counterparty=to)
        case Absorb() | Unreadable() if event.counterparty == to:
            posting.account.moved_to = ""
            if not event.is_sent_back:
                # The part names the invoices that the other account has read. All other invoices are on their way here.
                posting.account.returns = {}
            return False
        case Command() if passes_on(posting.account, event):
            command_id = derived_id(event.command_id, "/forwarded")
            forwarded = replace(event, append_time=0, command_id=command_id, origin_id=event.decision_id)
            posting.outcome.commands.append((to, forwarded))
            # The entry of the new card has the reason, the actor and the sender of a transfer. An erasure of the sender
            # finds only entries that name the sender.
            posting.add_entry(Kind.FORWARDED, reason="", actor="", counterparty=to)
        case Erase():
            return False
        case Command():
            refuse(posting, event, Refusal.CARD_REPLACED)
    return True


def absorb(posting: Posting, event: Absorb) -> None:
    """Adds a part of an account that has moved here, or sends it back if the total would become too large.

    For a part that comes back, the limit of the total is far higher. A part with an unknown version of the programme is
    refused, because the rules cannot process its invoices.
    """
    account, part = posting.account, event.part
    pasts: list[PastPurchase | PastReturn] = [*part.purchases.values(), *part.returns.values()]
    versions = {each.version for each in posting.programmes.versions}
    if any(past.programme_version not in versions for past in pasts):
        refuse(posting, event, Refusal.UNREADABLE)
        return
    before = account.total
    if abs(before + part.total) > (LARGEST_RETURNED_TOTAL if event.is_sent_back else LARGEST_TOTAL):
        _send(posting, event, BACK, part)
        reason = str(Refusal.TOO_MANY_POINTS)
        posting.add_entry(Kind.REFUSED, reason=reason, counterparty=event.counterparty)
        return
    if not event.is_sent_back and event.counterparty not in account.former_cards:
        account.former_cards = (*account.former_cards, event.counterparty)
    posting.add_points(part.lots)
    posting.take_back(part.debt, most_debt=part.debt)
    account.reserved_debt = min(account.reserved_debt + part.reserved_debt, account.debt)
    account.reservations |= part.reservations
    account.imports += part.imports
    # Both accounts can know the same number, if a till has used it again. Later returns mean the newer purchase.
    both = sorted([*part.purchases.items(), *account.purchases.items()], key=lambda item: item[1].append_time)
    account.purchases = _oldest_first(dict(both))
    # Both accounts can know the same return. If the other account has decided it, it does not wait here any more.
    waiting_here = {number for number, past in account.returns.items() if past.original}
    decided = {number: past for number, past in part.returns.items() if number in waiting_here and not past.original}
    account.returns = _oldest_first(part.returns | account.returns | decided)
    posting.add_entry(Kind.MOVED_IN, account.total - before, counterparty=event.counterparty)
    _absorb_tier(posting, part)
    originals = [past.original for past in part.returns.values()]
    for original in dict.fromkeys([*part.purchases, *originals]):
        if original in account.purchases:
            purchases.settle(posting, original)


def _send(posting: Posting, event: Replace | Absorb, suffix: str, part: Account) -> None:
    """Sends a part of an account to the counterparty."""
    command = Absorb(
        append_time=0,
        command_id=derived_id(event.command_id, suffix),
        reason=event.reason,
        actor=event.actor,
        counterparty=posting.card,
        part=part,
    )
    posting.outcome.commands.append((event.counterparty, command))


def _empty(account: Account) -> None:
    """Keeps only what recognises duplicates, and the invoice numbers that the index of invoices must forget later."""
    pasts: dict[str, PastPurchase | PastReturn] = {**account.purchases, **account.returns}
    account.returns = _oldest_first(
        {number: PastReturn(past.append_time, past.programme_version) for number, past in pasts.items()}
    )
    account.lots, account.reservations, account.purchases = {}, {}, {}
    account.debt = account.reserved_debt = account.period_start = account.period_end = account.earned_in_period = 0
    account.tier, account.is_blocked, account.imports = "", False, ()


def _parts(account: Account) -> Iterator[Account]:
    """Cuts the content of an account into parts of limited size. The first one has the tier and the debt."""
    part = Account(
        account.opened_time,
        debt=account.debt,
        tier=account.tier,
        period_start=account.period_start,
        period_end=account.period_end,
        earned_in_period=account.earned_in_period,
        imports=account.imports,
        reserved_debt=min(account.reserved_debt, account.reserved),
    )
    size = 0
    for field, key, value, weight in _pieces(account):
        if size and size + weight > PART_SIZE:
            yield part
            part, size = Account(account.opened_time), 0
        getattr(part, field)[key] = value
        size += weight
    yield part


def _pieces(account: Account) -> Iterator[tuple[str, object, object, int]]:
    """Yields the name of a field, a key in it, its value and its approximate size in bytes."""
    for terms in soonest_first(account.lots):
        yield "lots", terms, account.lots[terms], _LOT_SIZE
    for name, reservation in account.reservations.items():
        yield "reservations", name, reservation, _INVOICE_SIZE + _LOT_SIZE * len(reservation.lots)
    # Returns come before purchases. Otherwise a return that waits at the new card would be decided with its purchase,
    # although a later part contains the same return as decided.
    for number, returned in account.returns.items():
        # The sold half of an exchange can come in a later part than the returned half.
        is_half = returned.is_half or number in account.purchases
        yield "returns", number, returned._replace(is_half=is_half), _size_of(returned)
    for number, bought in account.purchases.items():
        yield "purchases", number, bought, _size_of(bought)


def _size_of(invoice: PastPurchase | PastReturn) -> int:
    return _INVOICE_SIZE + sum(_ITEM_SIZE + len(item) for item in invoice.items or ())


_Past = TypeVar("_Past", PastPurchase, PastReturn)


def _oldest_first(invoices: dict[str, _Past]) -> dict[str, _Past]:
    return dict(sorted(invoices.items(), key=lambda item: item[1].append_time))


def _absorb_tier(posting: Posting, part: Account) -> None:
    """Keeps the higher tier. The points of both accounts count if they were earned in the same period."""
    account, programme = posting.account, posting.programme
    # The end of a period depends on the time zone of the version that began it. So compare the ends approximately.
    if abs(part.period_end - account.period_end) < ZONES_APART:
        account.period_start = min(account.period_start, part.period_start)
        account.earned_in_period += part.earned_in_period
    elif part.period_end > account.period_end:
        account.period_start, account.period_end = part.period_start, part.period_end
        account.earned_in_period = part.earned_in_period
    tiers = (account.tier, part.tier, programme.tier_for(account.earned_in_period))
    before, account.tier = account.tier, max(tiers, key=lambda name: (programme.tier_rank(name), bool(name)))
    if account.tier != before:
        posting.add_entry(Kind.TIER, reason=before)
