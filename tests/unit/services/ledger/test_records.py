"""Conversion of records to entries: services.ledger.records."""

from decimal import Decimal
from typing import Any

import pytest

from services.domain.entries import Kind
from services.ledger.records import CardEntry, entry_of
from services.messaging.avro import UndecodableError
from tests.support.builders import entry, notification

RESERVED = entry(
    3,
    -1999,
    kind=Kind.RESERVED,
    available=-7,
    pending=5,
    reserved=9,
    tier="gold",
    programme_version=4,
    expires_time=77,
    reason="why",
    actor="who",
    counterparty="B",
    total_amount=Decimal("-0.1"),
    event_id="command",
    invoice_number="",
)


@pytest.mark.parametrize("given", [entry(1), RESERVED], ids=["earned", "reserved"])
def test_an_entry_comes_back_as_it_was(given: Any) -> None:
    """The entry has every field of the record, with points as exact hundredths."""
    assert CardEntry("A", given) == entry_of(notification("A", given), b"A")


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        ({}, None, "key"),
        ({}, b"B", "key"),
        ({"CustomerCardNo": ""}, b"", "CustomerCardNo"),
        ({"Sequence": 0}, b"A", "Sequence"),
        ({"TotalAmount": float("nan")}, b"A", "TotalAmount"),
        ({"TotalAmount": float("-inf")}, b"A", "TotalAmount"),
        ({"Kind": "invented"}, b"A", "Kind"),
        ({"TotalLoyaltyPoints": Decimal("1e17")}, b"A", "points"),
        ({"TotalLoyaltyPoints": Decimal("-1e17")}, b"A", "points"),
        ({"AvailableLoyaltyPoints": None}, b"A", "AvailableLoyaltyPoints is null"),
    ],
)
def test_a_record_that_is_no_entry_has_a_reason(change: dict[str, Any], key: bytes | None, reason: str) -> None:
    """The reason names the field and not the card."""
    with pytest.raises(UndecodableError, match=reason) as caught:
        entry_of(notification("A9265846829", entry(1)) | {"CustomerCardNo": "A"} | change, key)
    assert "9265846829" not in str(caught.value)
