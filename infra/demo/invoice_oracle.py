"""Computes the expected results of one invoice: whether it is valid, its shipment record, and its rows for analysts."""

import math
from collections.abc import Iterable, Mapping
from typing import Any
from unicodedata import category

Record = Mapping[str, Any]
Row = tuple[tuple[str, Any], ...]
"""A flat record as (field, value) pairs, sorted by name. It is hashable, so equal records can be counted."""


def as_read(value: Any, name: str = "") -> Any:
    """The value with integers as text in text fields, and with a CreatedTime in milliseconds instead of seconds.

    Simple tills write ``"InvoiceNumber": 7`` and ``"CreatedTime": 1770000000``.
    """
    if isinstance(value, dict):
        return {key: as_read(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [as_read(part) for part in value]
    texts = {key for fields in (INVOICE, ADDRESS, ITEM) for key, fits in fields.items() if fits is _is_text}
    if name == "CreatedTime" and type(value) is int and 10**9 <= value < 10**10:
        return value * 1000
    return str(value) if type(value) is int and name in texts else value


def has_value(record: Record, name: str, value: str) -> bool:
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
    if any(text != trimmed(text) for name in ("CustomerType", "DeliveryType") if (text := invoice.get(name))):
        return False
    card = invoice.get("CustomerCardNo") or ""
    if has_value(invoice, "CustomerType", "PRIME") and (not card or card != trimmed(card)):
        return False
    needed = [invoice.get("InvoiceNumber"), invoice.get("StoreID")]
    if has_value(invoice, "DeliveryType", "HOME-DELIVERY"):
        needed += [(address or {}).get(name) for name in ("AddressLine", "ContactNumber")]
    copied = [*(invoice.get(name) for name in COPIED), *((address or {}).get(name) for name in COPIED_OF_ADDRESS)]
    if any(text is not None and len(text) > 128 for text in copied) or len(items or []) > 10_000:  # noqa: PLR2004
        return False
    return invoice.get("TotalAmount") is not None and all(text is not None and trimmed(text) for text in needed)


def trimmed(text: str) -> str:
    """The text without white space, control characters and format characters of Unicode at its ends."""
    hidden = {each for each in text if each.isspace() or category(each) in {"Cc", "Cf"}}
    return text.strip("".join(hidden))


def _fits(record: Any, fields: Mapping[str, Any]) -> bool:
    return isinstance(record, dict) and all(
        record.get(name) is None or fits(record[name]) for name, fits in fields.items()
    )


def whole(invoice: Record) -> Record:
    """The invoice with only those fields of PosInvoice that have a value. It is equal for all formats of the value."""
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
        row({**common, **{name: item.get(name) for name in ITEM}, **added_by_pipeline(invoice, item)})
        for item in invoice.get("InvoiceLineItems") or []
    ]


def added_by_pipeline(invoice: Record, item: Record) -> dict[str, Any]:
    """The last fields of a HadoopRecord: the kind of the line, and the number of the returned invoice."""
    original = invoice.get("OriginalInvoiceNumber") or ""
    names_one = trimmed(original) and len(original) <= 128  # noqa: PLR2004
    return {
        "LineKind": line_kind(invoice, item),
        "OriginalInvoiceNumber": original if names_one else None,
        "TotalAmount": invoice["TotalAmount"],
    }


def line_kind(invoice: Record, item: Record) -> str:
    """The expected LineKind of a line: in an exchange as the line says, otherwise by the invoice."""
    if not names_original(invoice):
        return "return" if (invoice.get("TotalAmount") or 0) < 0 else "sale"
    kinds = {_kind_in_exchange(each) for each in invoice.get("InvoiceLineItems") or () if each.get("TotalValue")}
    is_exchange = kinds == {"sale", "return"}
    return _kind_in_exchange(item) if is_exchange else "return"


def names_original(invoice: Record) -> bool:
    return bool(trimmed(invoice.get("OriginalInvoiceNumber") or ""))


def _kind_in_exchange(item: Record) -> str:
    """In an exchange, negative lines come back, and so do lines with a negative price or quantity."""
    value, price, quantity = (item.get(name) or 0 for name in ("TotalValue", "ItemPrice", "ItemQty"))
    if not value:
        return "sale"
    return "return" if min(value, price, quantity) < 0 else "sale"


def row(record: Record) -> Row:
    return tuple(sorted(record.items()))
