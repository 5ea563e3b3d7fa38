"""What comes of an account as records, under the names they have on the wire."""

from decimal import Decimal

from services.domain.entries import Decision, Entry, Kind
from services.domain.formats import to_hundredths, to_points
from services.messaging.avro import Record


def notification_record(card: str, entry: Entry) -> Record:
    """The record Notification of an entry."""
    return {
        "InvoiceNumber": entry.invoice_number,
        "CustomerCardNo": card,
        "TotalAmount": float(entry.total_amount),
        "EarnedLoyaltyPoints": to_points(entry.points),
        "TotalLoyaltyPoints": to_points(entry.total),
        "Sequence": entry.sequence,
        "UpdatedTime": entry.time,
        "Kind": str(entry.kind),
        "EventID": entry.event_id,
        "OpenedTime": entry.opened_time,
        "AvailableLoyaltyPoints": to_points(entry.available),
        "PendingLoyaltyPoints": to_points(entry.pending),
        "ReservedLoyaltyPoints": to_points(entry.reserved),
        "Tier": entry.tier,
        "ProgrammeVersion": entry.programme_version,
        "ExpiresTime": entry.expires_time,
        "Reason": entry.reason,
        "Actor": entry.actor,
        "Counterparty": entry.counterparty,
    }


def entry_from_notification(notification: Record) -> Entry:
    """The entry that a Notification tells of.

    One of before 2026-11 knew purchases only: its invoice is the event, and all the total could be spent.
    """
    total = to_hundredths(notification["TotalLoyaltyPoints"])
    available = notification["AvailableLoyaltyPoints"]
    return Entry(
        sequence=notification["Sequence"],
        opened_time=notification["OpenedTime"],
        kind=Kind(notification["Kind"]),
        points=to_hundredths(notification["EarnedLoyaltyPoints"]),
        total=total,
        available=total if available is None else to_hundredths(available),
        pending=to_hundredths(notification["PendingLoyaltyPoints"] or Decimal(0)),
        reserved=to_hundredths(notification["ReservedLoyaltyPoints"] or Decimal(0)),
        time=notification["UpdatedTime"],
        programme_version=notification["ProgrammeVersion"],
        tier=notification["Tier"],
        event_id=notification["EventID"] or notification["InvoiceNumber"],
        invoice_number=notification["InvoiceNumber"],
        total_amount=Decimal(repr(notification["TotalAmount"])),
        expires_time=notification["ExpiresTime"],
        reason=notification["Reason"],
        actor=notification["Actor"],
        counterparty=notification["Counterparty"],
    )


def balance_record(card: str, entry: Entry) -> Record:
    """The record Balance after an entry; one of kind ``erased`` has none, its value is null."""
    return {
        "CustomerCardNo": card,
        "TotalLoyaltyPoints": to_points(entry.total),
        "Sequence": entry.sequence,
        "UpdatedTime": entry.time,
        "OpenedTime": entry.opened_time,
        "AvailableLoyaltyPoints": to_points(entry.available),
        "PendingLoyaltyPoints": to_points(entry.pending),
        "ReservedLoyaltyPoints": to_points(entry.reserved),
        "Tier": entry.tier,
    }


def decision_record(card: str, decided: Decision) -> Record:
    """The record Decision; of an erasure it does not say whose."""
    return {
        "CommandID": decided.command_id,
        "Sequence": 2,
        "Status": "refused" if decided.refusal else "done",
        "Kind": decided.kind,
        "CustomerCardNo": "" if decided.kind == "erase" else card,
        "RequestHash": decided.request_hash,
        "Points": to_points(decided.points),
        "RedemptionID": decided.redemption_id,
        "Reason": str(decided.refusal or ""),
        "AccountSequence": decided.account_sequence,
        "OpenedTime": decided.opened_time,
        "TotalLoyaltyPoints": to_points(decided.total),
        "AvailableLoyaltyPoints": to_points(decided.available),
        "ExpiresTime": decided.expires_time,
        "UpdatedTime": decided.time,
    }
