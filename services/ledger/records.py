"""Records of the topic loyalty as entries of accounts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from services.domain.entries import Entry, Kind
from services.messaging.wire import UndecodableError

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CardEntry:
    """An entry, and whose it is."""

    card: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record that is no entry; ``append_time`` in milliseconds since the epoch."""

    partition: int
    offset: int
    append_time: int
    reason: str


def entry_of(notification: Mapping[str, Any], key: bytes | None) -> CardEntry:
    """The entry behind a Notification and its key. Raises UndecodableError for what cannot be one, or not be stored."""
    card = notification["CustomerCardNo"]
    if not card or key != card.encode():
        raise UndecodableError("the key is not the CustomerCardNo" if card else "CustomerCardNo is empty")
    if notification["Sequence"] < 1:
        raise UndecodableError(f"Sequence is {notification['Sequence']}")
    if not math.isfinite(notification["TotalAmount"]):
        raise UndecodableError(f"TotalAmount is {notification['TotalAmount']}")
    try:
        kind = Kind(notification["Kind"])
    except ValueError:
        raise UndecodableError("Kind is none that this version knows") from None
    total = _hundredths(notification["TotalLoyaltyPoints"])
    # Before 2026-11 there was nothing but the total.
    available = notification["AvailableLoyaltyPoints"]
    entry = Entry(
        sequence=notification["Sequence"],
        opened_time=notification["OpenedTime"],
        kind=kind,
        points=_hundredths(notification["EarnedLoyaltyPoints"]),
        total=total,
        available=total if available is None else _hundredths(available),
        pending=_hundredths(notification["PendingLoyaltyPoints"] or Decimal(0)),
        reserved=_hundredths(notification["ReservedLoyaltyPoints"] or Decimal(0)),
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
    return CardEntry(card, entry)


def storable(text: str) -> str:
    """The text without what PostgreSQL stores in none: one such character must not stop everybody's entries."""
    return text.replace("\0", "\ufffd")


def _hundredths(points: Decimal) -> int:
    hundredths = int(points * 100)
    if abs(hundredths) > _LARGEST:
        raise UndecodableError("points of more than 64 bits")
    return hundredths
