"""What must come out of the messages that went in, worked out a second time.

Standard library only, and nothing shared with the domain or the pipeline: a mistake there must not be repeated here.
The rules are those of docs/reference/demo.md; they fit on one page so that they can be checked by eye.
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
"""A flat record that can be counted: its (field, value) pairs in the order of the names."""


class Sent(NamedTuple):
    """A message as published, and the invoice it is meant to carry; None where it carries none."""

    key: bytes | None
    value: bytes | None
    invoice: Record | None


@dataclass
class Expected:
    """What must be found behind the pipeline.

    Attributes:
        messages: published in all.
        repeats: messages whose InvoiceNumber came before.
        dead_letters: how often each (key, value) must be set aside.
        shipment: the whole invoice by InvoiceNumber.
        hadoop: how often each row must be there, one a line item.
        earned: points by InvoiceNumber, by customer.
        readings: the number of each message that earns points, from 0, with the customer and how many of this
            customer's invoices then count: the sequence from which on the balance includes it.
        strangers: customers with invoices but no points.
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
    """The outputs that these messages, published in this order, must have."""
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
    if _says(invoice, "DeliveryType", "HOME-DELIVERY"):
        expected.shipment[invoice_number] = whole(invoice)
    expected.hadoop.update(rows(invoice))
    if _says(invoice, "CustomerType", "PRIME"):
        points = Decimal(repr(float(invoice["TotalAmount"]))) * loyalty_factor
        expected.earned[str(card)][invoice_number] = points.quantize(Decimal("0.01"), ROUND_HALF_UP)
        expected.readings[number] = str(card), len(expected.earned[str(card)])
    elif card and card.strip():
        expected.strangers.add(card)


def with_texts(value: Any, name: str = "") -> Any:
    """The same with whole numbers as text where a text is asked for: simple tills write ``"InvoiceNumber": 7``."""
    if isinstance(value, dict):
        return {key: with_texts(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [with_texts(part) for part in value]
    texts = {key for fields in (INVOICE, ADDRESS, ITEM) for key, fits in fields.items() if fits is _is_text}
    return str(value) if type(value) is int and name in texts else value


def _says(record: Record, name: str, value: str) -> bool:
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
    **dict.fromkeys(("ItemPrice", "TotalValue"), _is_amount),
    "ItemQty": _is_int,
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
    """Whether the pipeline must accept it: every field of its type or absent, and what is needed is there."""
    address, items = invoice.get("DeliveryAddress"), invoice.get("InvoiceLineItems")
    if not _fits(invoice, INVOICE) or not (address is None or _fits(address, ADDRESS)):
        return False
    if not (items is None or (isinstance(items, list) and all(_fits(item, ITEM) for item in items))):
        return False
    needed = [invoice.get("InvoiceNumber"), invoice.get("StoreID")]
    if _says(invoice, "CustomerType", "PRIME"):
        needed.append(invoice.get("CustomerCardNo"))
    if _says(invoice, "DeliveryType", "HOME-DELIVERY"):
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
    """An invoice with nothing but the fields of PosInvoice, absent ones left out: equal however it was written."""
    record = _with(invoice, INVOICE)
    if invoice.get("DeliveryAddress") is not None:
        record["DeliveryAddress"] = _with(invoice["DeliveryAddress"], ADDRESS)
    if invoice.get("InvoiceLineItems") is not None:
        record["InvoiceLineItems"] = [_with(item, ITEM) for item in invoice["InvoiceLineItems"]]
    return record


def _with(record: Record, names: Iterable[str]) -> dict[str, Any]:
    return {name: record[name] for name in names if record.get(name) is not None}


def rows(invoice: Record) -> list[Row]:
    """The rows that analysts get: one a line item, without anything personal."""
    address = invoice.get("DeliveryAddress") or {}
    common = {name: invoice.get(name) for name in HADOOP_OF_INVOICE}
    common |= {name: address.get(name) for name in ADDRESS if name not in PERSONAL}
    return [
        row({**common, **{name: item.get(name) for name in ITEM}}) for item in invoice.get("InvoiceLineItems") or []
    ]


def row(record: Record) -> Row:
    return tuple(sorted(record.items()))
