"""Converts records of the topic loyalty, and rows of the ledger, to entries."""

import math
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import RowMapping

from services.codecs.records import entry_from_notification
from services.domain.entries import Entry, Kind
from services.messaging.avro import Record, UndecodableError

_LARGEST = 2**63 - 1
_POINTS = [f"{name}LoyaltyPoints" for name in ("Earned", "Total", "Available", "Pending", "Reserved")]


@dataclass(frozen=True, slots=True)
class CardEntry:
    """An entry and the card of its account."""

    card: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record that is not an entry. ``append_time`` is in milliseconds since the epoch."""

    partition: int
    offset: int
    append_time: int
    reason: str


def entry_of(notification: Record, key: bytes | None) -> CardEntry:
    """The entry of a Notification and its key. Raises UndecodableError if it is not valid or cannot be stored."""
    card = notification["CustomerCardNo"]
    if not card or key != card.encode():
        raise UndecodableError("the key is not the CustomerCardNo" if card else "CustomerCardNo is empty")
    if notification["Sequence"] < 1:
        raise UndecodableError(f"Sequence is {notification['Sequence']}")
    if not math.isfinite(notification["TotalAmount"]):
        raise UndecodableError(f"TotalAmount is {notification['TotalAmount']}")
    if notification["Kind"] not in tuple(Kind):
        raise UndecodableError("this version does not know the Kind")
    for name in _POINTS:
        if notification[name] is None:
            raise UndecodableError(f"{name} is null")
        if abs(notification[name] * 100) > _LARGEST:
            raise UndecodableError("points of more than 64 bits")
    return CardEntry(card, entry_from_notification(notification))


def stored_entry(row: RowMapping, opened_time: int) -> Entry:
    """The entry in a row of the table of entries. ``opened_time`` is that of its account."""
    fields = {name: row[name] for name in Entry.__dataclass_fields__ if name in row and name != "opened_time"}
    changed = {
        "kind": Kind(row["kind"]),
        "total_amount": Decimal(repr(row["total_amount"])),
        "counterparty": row["counterparty"] or "",
    }
    return Entry(opened_time=opened_time, **fields | changed)


def storable(text: str) -> str:
    """The text without zero characters. PostgreSQL refuses them, so one of them would stop the whole ledger."""
    return text.replace("\0", "\ufffd")
