"""Makes the records of entries, balances, marks and decisions, and converts notifications back to entries."""

from collections.abc import Callable
from decimal import Decimal

from services.domain.account.model import ForgottenCommand
from services.domain.entries import Decision, Entry, Kind
from services.domain.formats import to_hundredths, to_points
from services.messaging.avro import Record

PENDING, DONE, REFUSED, ERASED = "pending", "done", "refused", "erased"
"""The statuses of a record Decision."""

MARK_SEQUENCE, DECISION_SEQUENCE, ERASED_SEQUENCE = 1, 2, 3
"""The sequence numbers of the records of a command on loyalty-decisions. A store keeps the record with the highest."""

ERASE = "erase"
"""The kind of an erasure."""

PointsValue = Callable[[int], Decimal | bytes]
"""Converts hundredths to the value of a field with points: a Decimal, or the bytes that Avro stores for it."""


def points_bytes(hundredths: int) -> bytes:
    """Returns the bytes that fastavro writes for the Decimal of these points. It takes half the time of fastavro."""
    return hundredths.to_bytes(hundredths.bit_length() // 8 + 1, "big", signed=True)


def notification_record(card: str, entry: Entry, points: PointsValue = to_points) -> Record:
    return {
        "InvoiceNumber": entry.invoice_number,
        "CustomerCardNo": card,
        "TotalAmount": float(entry.total_amount),
        "EarnedLoyaltyPoints": points(entry.points),
        "TotalLoyaltyPoints": points(entry.total),
        "Sequence": entry.sequence,
        "UpdatedTime": entry.time,
        "Kind": str(entry.kind),
        "EventID": entry.event_id,
        "OpenedTime": entry.opened_time,
        "AvailableLoyaltyPoints": points(entry.available),
        "PendingLoyaltyPoints": points(entry.pending),
        "ReservedLoyaltyPoints": points(entry.reserved),
        "Tier": entry.tier,
        "ProgrammeVersion": entry.programme_version,
        "ExpiresTime": entry.expires_time,
        "Reason": entry.reason,
        "Actor": entry.actor,
        "Counterparty": entry.counterparty,
    }


def entry_from_notification(notification: Record) -> Entry:
    """Returns the entry of a Notification in which no points are null."""
    return Entry(
        sequence=notification["Sequence"],
        opened_time=notification["OpenedTime"],
        kind=Kind(notification["Kind"]),
        points=to_hundredths(notification["EarnedLoyaltyPoints"]),
        total=to_hundredths(notification["TotalLoyaltyPoints"]),
        available=to_hundredths(notification["AvailableLoyaltyPoints"]),
        pending=to_hundredths(notification["PendingLoyaltyPoints"]),
        reserved=to_hundredths(notification["ReservedLoyaltyPoints"]),
        time=notification["UpdatedTime"],
        programme_version=notification["ProgrammeVersion"],
        tier=notification["Tier"],
        event_id=notification["EventID"],
        invoice_number=notification["InvoiceNumber"],
        total_amount=Decimal(repr(notification["TotalAmount"])),
        expires_time=notification["ExpiresTime"],
        reason=notification["Reason"],
        actor=notification["Actor"],
        counterparty=notification["Counterparty"],
    )


def balance_record(card: str, entry: Entry, points: PointsValue = to_points) -> Record:
    """Returns the record Balance after an entry. The balance of an erased account is not a record, but a null value.

    Without ``Entry.balance_details``, the fields for them are null or empty, as in records of release 0.1.
    """
    details = entry.balance_details
    return {
        "CustomerCardNo": card,
        "TotalLoyaltyPoints": points(entry.total),
        "Sequence": entry.sequence,
        "UpdatedTime": entry.time,
        "OpenedTime": entry.opened_time,
        "AvailableLoyaltyPoints": points(entry.available),
        "PendingLoyaltyPoints": points(entry.pending),
        "ReservedLoyaltyPoints": points(entry.reserved),
        "Tier": entry.tier,
        "NextExpiryTime": details and details.next_expiry_time,
        "NextExpiryPoints": details and points(details.next_expiry_points),
        "Blocked": details and details.is_blocked,
        "MovedTo": details.moved_to if details else "",
    }


def mark_of(command_id: str, kind: str, request_hash: str) -> Record:
    """Returns the mark of a command, a record Decision. It names no customer, so an erasure need not delete it."""
    return {
        "CommandID": command_id,
        "Sequence": MARK_SEQUENCE,
        "Status": PENDING,
        "Kind": kind,
        "RequestHash": request_hash,
    }


def decision_record(card: str, decision: Decision, points: PointsValue = to_points) -> Record:
    """Returns the record Decision. The decision on an erasure does not contain the card."""
    return {
        "CommandID": decision.command_id,
        "Sequence": DECISION_SEQUENCE,
        "Status": REFUSED if decision.refusal else DONE,
        "Kind": decision.kind,
        "CustomerCardNo": "" if decision.kind == ERASE else card,
        "RequestHash": decision.request_hash,
        "Points": points(decision.points),
        "RedemptionID": decision.redemption_id,
        "Reason": str(decision.refusal or ""),
        "AccountSequence": decision.account_sequence,
        "OpenedTime": decision.opened_time,
        "TotalLoyaltyPoints": points(decision.total),
        "AvailableLoyaltyPoints": points(decision.available),
        "ExpiresTime": decision.expires_time,
        "UpdatedTime": decision.time,
    }


def erased_decision_record(command: ForgottenCommand) -> Record:
    """Returns the record that replaces the decision on a command of an erased account. It contains no personal data.

    A retry of the command finds this record and gets a response. The record replaces the decision in the stores,
    because its sequence is higher.
    """
    return {
        "CommandID": command.command_id,
        "Sequence": ERASED_SEQUENCE,
        "Status": ERASED,
        "Kind": command.kind,
        "RequestHash": command.request_hash,
    }
