"""Applies commands to an account. Each command writes entries, and one decision if a caller waits for it."""

from collections.abc import Sequence
from dataclasses import replace

from services.domain.account.lots import Lots, Terms, earned_terms, notice_time, soonest_first, take_spendable
from services.domain.account.model import (
    LARGEST_RETURNED_TOTAL,
    LARGEST_TOTAL,
    Account,
    ErasureMarker,
    ForgottenCommand,
    Reservation,
)
from services.domain.account.posting import Posting
from services.domain.entries import Credit, Kind, Refusal, ReturnReason
from services.domain.events import (
    BACK,
    Adjust,
    Block,
    Capture,
    Command,
    Erase,
    Import,
    Receive,
    Reserve,
    SentLot,
    Transfer,
    Unblock,
    Void,
    derived_id,
)
from services.domain.formats import LAST_TIME
from services.domain.programme import Programme
from services.domain.validation import MOST_LINE_ITEMS

MOST_RESERVATIONS = 1_000
"""Open reservations of an account. Each event of the account costs time for all of them. A merge can bring more."""


def reserve(posting: Posting, event: Reserve) -> None:
    account = posting.account
    refusal = _why_not_spend(account, event.points)
    if len(account.reservations) >= MOST_RESERVATIONS and not event.was_accepted:
        refusal = refusal or Refusal.TOO_MANY_REDEMPTIONS
    if refusal:
        refuse(posting, event, refusal, event.command_id)
        return
    lapses_time = event.append_time + posting.programme.reserve_for
    account.reservations[event.command_id] = Reservation(lapses_time, take_spendable(account.lots, event.points))
    posting.add_decision(event, posting.add_entry(Kind.RESERVED, expires_time=lapses_time), event.command_id)


def _why_not_spend(account: Account, points: int) -> Refusal | None:
    if account.is_blocked:
        return Refusal.CARD_BLOCKED
    return Refusal.INSUFFICIENT_POINTS if account.available < points else None


def capture(posting: Posting, event: Capture) -> None:
    _cancel_debt(posting, event.redemption_id)
    if reservation := _end_reservation(posting, event):
        posting.add_decision(event, posting.add_entry(Kind.REDEEMED, -reservation.points), event.redemption_id)


def void(posting: Posting, event: Void) -> None:
    if reservation := _end_reservation(posting, event):
        posting.add_points(reservation.lots)
        posting.add_decision(event, posting.add_entry(Kind.VOIDED), event.redemption_id)


def _cancel_debt(posting: Posting, redemption_id: str) -> None:
    """Cancels the debt that only the points of this reservation could pay, because they are spent now.

    With ``SpentReturns.WITHIN_BALANCE``, a return takes reserved points back as a ``reserved_debt``. If the reservation
    ends without a capture, its points pay this debt. A debt of an adjustment is not cancelled.
    """
    account = posting.account
    reservation = account.reservations.get(redemption_id)
    if reservation is None:
        return
    unpaid = max(0, account.debt - (account.reserved - reservation.points))
    cancelled = min(reservation.points, unpaid, account.reserved_debt)
    if cancelled:
        account.debt -= cancelled
        account.reserved_debt -= cancelled
        posting.add_entry(Kind.RETURNED, cancelled, reason=str(ReturnReason.POINTS_SPENT))


def _end_reservation(posting: Posting, event: Capture | Void) -> Reservation | None:
    """Removes the reservation from the account. If there is none, refuses the command and returns None."""
    reservation = posting.account.reservations.pop(event.redemption_id, None)
    if reservation is None:
        refuse(posting, event, Refusal.UNKNOWN_REDEMPTION, event.redemption_id)
    return reservation


def adjust(posting: Posting, event: Adjust) -> None:
    account = posting.account
    expires_time = 0
    if abs(account.total + event.points) > LARGEST_TOTAL:
        refuse(posting, event, Refusal.TOO_MANY_POINTS)
        return
    if event.points > 0:
        # Points of an adjustment are never pending.
        terms = earned_terms(event.append_time, posting.programme)._replace(available_time=0)
        expires_time = terms.expires_time
        posting.add_points({terms: event.points})
    elif event.allow_negative:
        spent = sum(take_spendable(account.lots, -event.points).values())
        owed = -event.points - spent
        posting.take_back(owed, most_debt=owed)
    elif account.available < -event.points:
        refuse(posting, event, Refusal.INSUFFICIENT_POINTS)
        return
    else:
        take_spendable(account.lots, -event.points)
    posting.add_decision(event, posting.add_entry(Kind.ADJUSTED, event.points, expires_time=expires_time))


def transfer(posting: Posting, event: Transfer) -> None:
    """Sends points to another card."""
    account = posting.account
    if event.counterparty == posting.card:
        refuse(posting, event, Refusal.SAME_CUSTOMER)
        return
    if refusal := _why_not_spend(account, event.points):
        refuse(posting, event, refusal)
        return
    taken = take_spendable(account.lots, event.points)
    sent = [SentLot(taken[terms], terms.expires_time) for terms in soonest_first(taken)]
    _credit(posting, event, sent, "/in", event.reason)
    posting.add_decision(event, posting.add_entry(Kind.SENT, -event.points, counterparty=event.counterparty))


def receive(posting: Posting, event: Receive) -> None:
    """Adds the points of a transfer, or sends them back if the total would become too large.

    For points that come back, the limit is far higher. So an account rarely sends them back again. There is no
    decision, because no caller waits for one.
    """
    limit = LARGEST_RETURNED_TOTAL if event.is_sent_back else LARGEST_TOTAL
    if posting.account.total + sum(lot.points for lot in event.lots) > limit:
        _credit(posting, event, event.lots, BACK, str(Refusal.TOO_MANY_POINTS))
        posting.add_entry(Kind.REFUSED, reason=str(Refusal.TOO_MANY_POINTS), counterparty=event.counterparty)
        return
    added = _lots_of(event, posting.programme)
    posting.add_points(added)
    next_expiry = min((terms.expires_time for terms in added if terms.expires_time), default=0)
    posting.add_entry(Kind.RECEIVED, sum(added.values()), expires_time=next_expiry, counterparty=event.counterparty)


def take_import(posting: Posting, event: Import) -> None:
    """Adds the points of an import, or refuses them. There is no decision, because no caller waits for one.

    It writes one entry for each time of expiry. So the ledger knows when all points expire.
    """
    if posting.account.total + sum(lot.points for lot in event.lots) > LARGEST_TOTAL:
        posting.add_entry(Kind.REFUSED, reason=str(Refusal.TOO_MANY_POINTS))
        return
    posting.account.imports = (*posting.account.imports, event.decision_id)
    added = _lots_of(event, posting.programme)
    for terms in soonest_first(added):
        posting.add_points({terms: added[terms]})
        posting.add_entry(Kind.IMPORTED, added[terms], expires_time=terms.expires_time)


def _lots_of(event: Receive | Import, programme: Programme) -> Lots:
    added: Lots = {}
    for lot in event.lots:
        # A timer cannot have a later time.
        expires_time = min(lot.expires_time, LAST_TIME)
        terms = Terms(expires_time, 0, notice_time(expires_time, programme))
        added[terms] = added.get(terms, 0) + lot.points
    return added


def _credit(posting: Posting, event: Transfer | Receive, sent: Sequence[SentLot], suffix: str, reason: str) -> None:
    """Sends points to the counterparty, in several commands if one would have too many lots."""
    for start in range(0, len(sent), MOST_LINE_ITEMS):
        command_id = derived_id(event.command_id, f"/{start}{suffix}" if start else suffix)
        lots = tuple(sent[start : start + MOST_LINE_ITEMS])
        posting.outcome.credits.append(Credit(command_id, event.counterparty, lots, reason, event.actor))


def block(posting: Posting, event: Block | Unblock) -> None:
    """Blocks or unblocks the card. A block of a blocked card adds an entry with its reason, and changes nothing else.

    A block stops redemptions and transfers from the card. Earlier reservations can still be captured, and points can
    arrive. ``Programme.blocked_cards`` says whether the card earns.
    """
    posting.account.is_blocked = isinstance(event, Block)
    posting.add_decision(event, posting.add_entry(Kind.BLOCKED if posting.account.is_blocked else Kind.UNBLOCKED))


def erase(posting: Posting, event: Erase) -> None:
    """Ends the account. Its last entry removes all points or the debt. The customer's other cards end too."""
    account, outcome = posting.account, posting.outcome
    outcome.account = None
    total = account.total
    outcome.marker = ErasureMarker(max(posting.time, account.opened_time))
    outcome.forgotten += [
        ForgottenCommand(command_id, past.kind, past.request_hash)
        for command_id, past in account.commands.items()
        if command_id != event.decision_id
    ]
    others = sorted({*account.former_cards, account.moved_to} - {"", event.counterparty})
    for number, other in enumerate(others):
        command_id = derived_id(event.command_id, f"/{number}/card")
        erasure = replace(event, append_time=0, command_id=command_id, request_hash="", counterparty=posting.card)
        outcome.commands.append((other, erasure))
    outcome.forgotten_invoices += account.purchases | account.returns
    account.lots, account.reservations, account.debt, account.tier = {}, {}, 0, ""
    posting.add_decision(event, posting.add_entry(Kind.ERASED, -total))


def refuse(posting: Posting, event: Command, refusal: Refusal, redemption_id: str = "") -> None:
    posting.add_decision(event, posting.add_entry(Kind.REFUSED, reason=str(refusal)), redemption_id, refusal)
