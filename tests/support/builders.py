"""Valid invoices, entries and store records. A test passes the fields that it needs to change."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx

from schemas.topics import LOYALTY_BALANCES, STORE_SALES, STORES, Topic
from services.account_events import purchase_record
from services.codecs.events import decode_event
from services.domain.entries import Entry, Kind
from services.domain.events import Purchase
from services.domain.invoice import PosInvoice
from services.messaging.avro import record_encoder
from services.messaging.schema_ids import FolderSchemaIds

IDS = FolderSchemaIds()
CARD = "9265846829"
OPENED = 1_000
"""The time at which the accounts of these entries were opened."""

MINUTE = 60_000
NOON = 1_700_000_040_000
"""The start of a minute in November 2023, in milliseconds since the epoch."""

HOME_DELIVERY = {
    "DeliveryType": "HOME-DELIVERY",
    "DeliveryAddress": {
        "AddressLine": "1 High Street",
        "City": "Gonda",
        "PinCode": "271001",
        "ContactNumber": "7243866404",
    },
}
"""The fields of an invoice that the store delivers."""

PROBLEM_PREFIX = "urn:problem-type:loyalty:"

StoreRecord = tuple[Topic, str, dict[str, Any]]
"""A changelog topic, and the key and value of a record in it."""


def invoice(number: str = "1", card: str = CARD, amount: float = 100.0, **changes: Any) -> dict[str, Any]:
    """A valid PRIME invoice that the customer takes away."""
    return {
        "InvoiceNumber": number,
        "CreatedTime": 1_770_000_000_000,
        "StoreID": "STR1",
        "TotalAmount": amount,
        "CustomerType": "PRIME",
        "CustomerCardNo": card,
        "DeliveryType": "TAKEAWAY",
        "InvoiceLineItems": [{"ItemCode": "458", "ItemPrice": amount, "ItemQty": 1, "TotalValue": amount}],
        **changes,
    }


def purchase(time: int, invoice: PosInvoice) -> Purchase:
    """The event of an invoice, as the pipeline creates it. ``time`` is the append time."""
    event = decode_event(time, record_encoder("Purchase", IDS.id_of("Purchase"))(purchase_record(invoice)))
    assert isinstance(event, Purchase)
    return event


def entry(sequence: int, points: int = 100, **changes: Any) -> Entry:
    """The entry of a purchase. Its total assumes that each earlier entry earned the same points (hundredths)."""
    plain = Entry(
        sequence=sequence,
        opened_time=OPENED,
        kind=Kind.EARNED,
        points=points,
        total=points * sequence,
        available=points * sequence,
        pending=0,
        reserved=0,
        time=OPENED + sequence,
        programme_version=0,
        event_id=f"INV{sequence}",
        invoice_number=f"INV{sequence}",
        total_amount=Decimal("50.5"),
    )
    return replace(plain, **changes)


def notification(card: str, of: Entry) -> dict[str, Any]:
    """The record of the topic ``loyalty`` for an entry."""
    hundredth = Decimal("0.01")
    return {
        "InvoiceNumber": of.invoice_number,
        "CustomerCardNo": card,
        "TotalAmount": float(of.total_amount),
        "EarnedLoyaltyPoints": of.points * hundredth,
        "TotalLoyaltyPoints": of.total * hundredth,
        "Sequence": of.sequence,
        "UpdatedTime": of.time,
        "Kind": of.kind.value,
        "EventID": of.event_id,
        "OpenedTime": of.opened_time,
        "AvailableLoyaltyPoints": of.available * hundredth,
        "PendingLoyaltyPoints": of.pending * hundredth,
        "ReservedLoyaltyPoints": of.reserved * hundredth,
        "Tier": of.tier,
        "ProgrammeVersion": of.programme_version,
        "ExpiresTime": of.expires_time,
        "Reason": of.reason,
        "Actor": of.actor,
        "Counterparty": of.counterparty,
    }


def available_points(points: str) -> dict[str, Decimal]:
    """The points in the record of a balance that has no pending and no reserved points."""
    total, none = Decimal(points), Decimal(0)
    parts = {"AvailableLoyaltyPoints": total, "PendingLoyaltyPoints": none, "ReservedLoyaltyPoints": none}
    return {"TotalLoyaltyPoints": total, **parts}


def balance(card: str, points: str, sequence: int = 1) -> StoreRecord:
    record = {"CustomerCardNo": card, "Sequence": sequence, "UpdatedTime": NOON}
    return LOYALTY_BALANCES, card, record | available_points(points)


def plain_balance(card: str, points: str, sequence: int, updated: str) -> dict[str, Any]:
    """The JSON of a balance of ``available_points`` without further fields."""
    return {
        "CustomerCardNo": card,
        "TotalLoyaltyPoints": points,
        "AvailableLoyaltyPoints": points,
        "PendingLoyaltyPoints": "0.00",
        "ReservedLoyaltyPoints": "0.00",
        "Tier": None,
        "NextExpiryTime": None,
        "NextExpiryPoints": None,
        "Blocked": None,
        "MovedTo": None,
        "Sequence": sequence,
        "OpenedTime": None,
        "UpdatedTime": updated,
    }


def sales(store_id: str, start: int, *amounts: str) -> StoreRecord:
    """The sales of a store in the minute that begins at ``start`` (milliseconds since the epoch)."""
    values = [Decimal(amount) for amount in amounts]
    figures = {"Sum": sum(values), "Minimum": min(values), "Maximum": max(values), "Count": len(values)}
    times = {"WindowStart": start, "WindowEnd": start + MINUTE, "UpdatedTime": start, "Sequence": len(values)}
    return STORE_SALES, f"{store_id}@{start}", {"StoreID": store_id, **times, **figures}


def shop(store_id: str, city: str) -> StoreRecord:
    return STORES, store_id, {"StoreID": store_id, "Name": f"{city} 1", "City": city, "State": "Kerala"}


def problem_type(response: httpx.Response, status: int) -> str:
    """The last part of the problem's type. Fails unless the response is a problem with this status."""
    assert status == response.status_code, response.text
    assert "application/problem+json" == response.headers["content-type"]
    return str(response.json()["type"]).removeprefix(PROBLEM_PREFIX)
