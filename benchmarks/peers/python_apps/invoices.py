"""Decodes invoices and encodes notifications for both Python peers. Their environment lacks this project's packages."""

import io
import json
import math
import os
import struct
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import fastavro

_SCHEMAS = Path(os.environ["PEER_SCHEMAS"])
_IDS = json.loads((_SCHEMAS / "ids.json").read_text(encoding="utf-8"))
_HEADER = struct.Struct(">bI")
_BLANKS = " \t\r\n\f\v"
_FACTOR, _CENT = Decimal("0.02"), Decimal("0.01")
_COPIED = ("InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "CustomerType", "PaymentMethod", "DeliveryType")
_LONGEST_TEXT, _MOST_LINE_ITEMS, _LARGEST_AMOUNT = 128, 10_000, 1e11


def _schema(file: str) -> Any:
    return fastavro.parse_schema(json.loads((_SCHEMAS / file).read_text(encoding="utf-8")))


_WRITERS = {int(number): _schema(file) for number, file in _IDS.items() if "PosInvoice" in file}
_NOTIFICATION = _schema("Notification.avsc")
_PREFIX = _HEADER.pack(0, next(int(number) for number, file in _IDS.items() if file == "Notification.avsc"))


def purchase(value: bytes | None, timestamp: int) -> dict[str, Any] | None:
    """The fields of an invoice that determine points. None if it is invalid or earns nothing."""
    invoice = _decoded(value)
    if invoice is None or not _is_valid(invoice) or (invoice["CustomerType"] or "").upper() != "PRIME":
        return None
    amount = invoice["TotalAmount"]
    points = (Decimal(repr(amount)) * _FACTOR).quantize(_CENT, ROUND_HALF_UP)
    return {
        "InvoiceNumber": invoice["InvoiceNumber"],
        "CustomerCardNo": invoice["CustomerCardNo"],
        "TotalAmount": amount,
        "Earned": int(points.scaleb(2)),
        "UpdatedTime": timestamp,
    }


def notification(bought: dict[str, Any], points: int, sequence: int) -> bytes:
    """The record for the topic loyalty, with the customer's total in hundredths."""
    total = Decimal(points).scaleb(-2)
    record = {
        "InvoiceNumber": bought["InvoiceNumber"],
        "EventID": bought["InvoiceNumber"],
        "CustomerCardNo": bought["CustomerCardNo"],
        "TotalAmount": bought["TotalAmount"],
        "EarnedLoyaltyPoints": Decimal(bought["Earned"]).scaleb(-2),
        "TotalLoyaltyPoints": total,
        "AvailableLoyaltyPoints": total,
        "Sequence": sequence,
        "UpdatedTime": bought["UpdatedTime"],
    }
    buffer = io.BytesIO()
    buffer.write(_PREFIX)
    fastavro.schemaless_writer(buffer, _NOTIFICATION, record)
    return buffer.getvalue()


def _decoded(value: bytes | None) -> dict[str, Any] | None:
    if value is None or len(value) < _HEADER.size or value[0] != 0:
        return None
    writer = _WRITERS.get(_HEADER.unpack_from(value)[1])
    if writer is None:
        return None
    body = io.BytesIO(value)
    body.seek(_HEADER.size)
    try:
        invoice: Any = fastavro.schemaless_reader(body, writer, None)
    except (EOFError, ValueError, IndexError, OverflowError, MemoryError):
        return None
    return invoice if isinstance(invoice, dict) else None


def _is_valid(invoice: dict[str, Any]) -> bool:
    address, items = invoice["DeliveryAddress"] or {}, invoice["InvoiceLineItems"] or ()
    needed = [invoice["InvoiceNumber"], invoice["StoreID"]]
    if (invoice["CustomerType"] or "").upper() == "PRIME":
        needed.append(invoice["CustomerCardNo"])
    if (invoice["DeliveryType"] or "").upper() == "HOME-DELIVERY":
        needed += [address.get("AddressLine"), address.get("ContactNumber")]
    amounts = [invoice[name] for name in ("TaxableAmount", "CGST", "SGST", "CESS")]
    for item in items:
        amounts += (item["ItemPrice"], item["TotalValue"])
    texts = [invoice[name] for name in _COPIED] + [address.get(name) for name in ("City", "State", "PinCode")]
    return (
        all(text is not None and text.strip(_BLANKS) for text in needed)
        and invoice["TotalAmount"] is not None
        and all(amount is None or _is_amount(amount) for amount in (invoice["TotalAmount"], *amounts))
        and all(text is None or len(text) <= _LONGEST_TEXT for text in texts)
        and len(items) <= _MOST_LINE_ITEMS
    )


def _is_amount(amount: float) -> bool:
    return math.isfinite(amount) and abs(amount) < _LARGEST_AMOUNT
