"""Records of the topic loyalty as entries of accounts."""

import math
from dataclasses import dataclass

from services.codecs.records import entry_from_notification
from services.domain.entries import Entry, Kind
from services.messaging.avro import Record, UndecodableError

_LARGEST = 2**63 - 1
_POINTS = (
    *("EarnedLoyaltyPoints", "TotalLoyaltyPoints"),
    *("AvailableLoyaltyPoints", "PendingLoyaltyPoints", "ReservedLoyaltyPoints"),
)


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


def entry_of(notification: Record, key: bytes | None) -> CardEntry:
    """The entry behind a Notification and its key. Raises UndecodableError for what cannot be one, or not be stored."""
    card = notification["CustomerCardNo"]
    if not card or key != card.encode():
        raise UndecodableError("the key is not the CustomerCardNo" if card else "CustomerCardNo is empty")
    if notification["Sequence"] < 1:
        raise UndecodableError(f"Sequence is {notification['Sequence']}")
    if not math.isfinite(notification["TotalAmount"]):
        raise UndecodableError(f"TotalAmount is {notification['TotalAmount']}")
    if notification["Kind"] not in tuple(Kind):
        raise UndecodableError("Kind is none that this version knows")
    for name in _POINTS:
        if abs((notification[name] or 0) * 100) > _LARGEST:
            raise UndecodableError("points of more than 64 bits")
    return CardEntry(card, entry_from_notification(notification))


def storable(text: str) -> str:
    """The text without what PostgreSQL stores in none: one such character must not stop everybody's entries."""
    return text.replace("\0", "\ufffd")
