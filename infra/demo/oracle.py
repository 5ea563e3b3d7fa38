"""Computes the expected outputs of a sequence of messages.

It shares no code with the domain or the pipeline, so that it does not repeat their defects. It uses only the standard
library. The rules are those of docs/reference/demo.md.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from string import whitespace
from typing import Any, NamedTuple

Record = Mapping[str, Any]
Row = tuple[tuple[str, Any], ...]
"""A flat record as (field, value) pairs in the order of the names, so that it can be counted."""


class Sent(NamedTuple):
    """A published message and its invoice; None if it has no invoice."""

    key: bytes | None
    value: bytes | None
    invoice: Record | None


@dataclass
class Expected:
    """The expected outputs.

    Attributes:
        messages: the number of published messages.
        repeats: the number of messages with an earlier InvoiceNumber.
        dead_letters: the number of dead letters for each (key, value).
        shipment: the whole invoice by InvoiceNumber.
        hadoop: the number of each row. Each line item is a row.
        earned: points by InvoiceNumber, by customer.
        readings: for the index of each message that earns points, the customer and the first sequence that includes it.
        strangers: customers with invoices and without points.
    """

    messages: int = 0
    repeats: int = 0
    dead_letters: Counter[tuple[bytes | None, bytes | None]] = field(default_factory=Counter)
    shipment: dict[str, Record] = field(default_factory=dict)
    hadoop: Counter[Row] = field(default_factory=Counter)
    earned: defaultdict[str, dict[str, Decimal]] = field(default_factory=lambda: defaultdict(dict))
    readings: dict[int, tuple[str, int]] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)

    @property
    def notifications(self) -> int:
        return sum(len(invoices) for invoices in self.earned.values())

    @property
    def points(self) -> Decimal:
        return sum((points for invoices in self.earned.values() for points in invoices.values()), Decimal(0))


def expect(sent: Iterable[Sent], loyalty_factor: Decimal) -> Expected:
    """The outputs of these messages in this order."""
    expected, seen = Expected(), set()
    for number, message in enumerate(sent):
        expected.messages += 1
        invoice = None if message.invoice is None else with_texts(message.invoice)
        if invoice is None or not is_valid(invoice):
            expected.dead_letters[message.key, message.value] += 1
        elif invoice["InvoiceNumber"] in seen:
            expected.repeats += 1
        else:
            seen.add(invoice["InvoiceNumber"])
            _count(expected, number, invoice, loyalty_factor)
    expected.strangers -= expected.earned.keys()
    return expected


def _count(expected: Expected, number: int, invoice: Record, loyalty_factor: Decimal) -> None:
    invoice_number, card = invoice["InvoiceNumber"], invoice.get("CustomerCardNo")
    if _has_value(invoice, "DeliveryType", "HOME-DELIVERY"):
        expected.shipment[invoice_number] = whole(invoice)
    expected.hadoop.update(rows(invoice))
    if _has_value(invoice, "CustomerType", "PRIME"):
        points = Decimal(repr(float(invoice["TotalAmount"]))) * loyalty_factor
        expected.earned[str(card)][invoice_number] = points.quantize(Decimal("0.01"), ROUND_HALF_UP)
        expected.readings[number] = str(card), len(expected.earned[str(card)])
    elif card and card.strip():
        expected.strangers.add(card)


def with_texts(value: Any, name: str = "") -> Any:
    """The value with integers as text in text fields. Simple tills write ``"InvoiceNumber": 7``."""
    if isinstance(value, dict):
        return {key: with_texts(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [with_texts(part) for part in value]
    texts = {key for fields in (INVOICE, ADDRESS, ITEM) for key, fits in fields.items() if fits is _is_text}
    return str(value) if type(value) is int and name in texts else value


def _has_value(record: Record, name: str, value: str) -> bool:
    return (record.get(name) or "").upper() == value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**31) <= value < 2**31


def _is_long(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 10**11


INVOICE = {
    **dict.fromkeys(("InvoiceNumber", "StoreID", "PosID", "CashierID", "CustomerType", "CustomerCardNo"), _is_text),
    **dict.fromkeys(("PaymentMethod", "DeliveryType", "OriginalInvoiceNumber"), _is_text),
    **dict.fromkeys(("TotalAmount", "TaxableAmount", "CGST", "SGST", "CESS"), _is_amount),
    "CreatedTime": _is_long,
    "NumberOfItems": _is_int,
}
ADDRESS = dict.fromkeys(("AddressLine", "City", "State", "PinCode", "ContactNumber"), _is_text)
ITEM = {
    **dict.fromkeys(("ItemCode", "ItemDescription"), _is_text),
    "ItemPrice": _is_amount,
    "ItemQty": _is_int,
    "TotalValue": _is_amount,
}
COPIED = ("InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "CustomerType", "PaymentMethod", "DeliveryType")
COPIED_OF_ADDRESS = ("City", "State", "PinCode")
PERSONAL = {"CustomerCardNo", "CashierID", "AddressLine", "ContactNumber"}
HADOOP_OF_INVOICE = (
    "InvoiceNumber",
    "CreatedTime",
    "StoreID",
    "PosID",
    "CustomerType",
    "PaymentMethod",
    "DeliveryType",
)


def is_valid(invoice: Record) -> bool:
    """Whether the pipeline must accept the invoice: all fields have their types, and the required ones exist."""
    address, items = invoice.get("DeliveryAddress"), invoice.get("InvoiceLineItems")
    if not _fits(invoice, INVOICE) or not (address is None or _fits(address, ADDRESS)):
        return False
    if not (items is None or (isinstance(items, list) and all(_fits(item, ITEM) for item in items))):
        return False
    needed = [invoice.get("InvoiceNumber"), invoice.get("StoreID")]
    if _has_value(invoice, "CustomerType", "PRIME"):
        needed.append(invoice.get("CustomerCardNo"))
    if _has_value(invoice, "DeliveryType", "HOME-DELIVERY"):
        needed += [(address or {}).get(name) for name in ("AddressLine", "ContactNumber")]
    copied = [*(invoice.get(name) for name in COPIED), *((address or {}).get(name) for name in COPIED_OF_ADDRESS)]
    if any(text is not None and len(text) > 128 for text in copied) or len(items or []) > 10_000:  # noqa: PLR2004
        return False
    return invoice.get("TotalAmount") is not None and all(
        text is not None and text.strip(whitespace) for text in needed
    )


def _fits(record: Any, fields: Mapping[str, Any]) -> bool:
    return isinstance(record, dict) and all(
        record.get(name) is None or fits(record[name]) for name, fits in fields.items()
    )


def whole(invoice: Record) -> Record:
    """An invoice with only the fields of PosInvoice and without absent ones, equal for all formats."""
    record = _with(invoice, INVOICE)
    if invoice.get("DeliveryAddress") is not None:
        record["DeliveryAddress"] = _with(invoice["DeliveryAddress"], ADDRESS)
    if invoice.get("InvoiceLineItems") is not None:
        record["InvoiceLineItems"] = [_with(item, ITEM) for item in invoice["InvoiceLineItems"]]
    return record


def _with(record: Record, names: Iterable[str]) -> dict[str, Any]:
    return {name: record[name] for name in names if record.get(name) is not None}


def rows(invoice: Record) -> list[Row]:
    """The rows for analysts: one for each line item, without personal data."""
    address = invoice.get("DeliveryAddress") or {}
    common = {name: invoice.get(name) for name in HADOOP_OF_INVOICE}
    common |= {name: address.get(name) for name in ADDRESS if name not in PERSONAL}
    return [
        row({**common, **{name: item.get(name) for name in ITEM}, "LineKind": line_kind(invoice, item)})
        for item in invoice.get("InvoiceLineItems") or []
    ]


def line_kind(invoice: Record, item: Record) -> str:
    """The expected LineKind of a line: in an exchange, that of its sign, and else that of its invoice."""
    if not (invoice.get("OriginalInvoiceNumber") or "").strip(whitespace):
        return "return" if (invoice.get("TotalAmount") or 0) < 0 else "sale"
    values = [each.get("TotalValue") or 0 for each in invoice["InvoiceLineItems"]]
    one_sign = min(values) >= 0 or max(values) <= 0
    return "return" if one_sign or (item.get("TotalValue") or 0) < 0 else "sale"


def row(record: Record) -> Row:
    return tuple(sorted(record.items()))
