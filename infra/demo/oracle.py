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

_DAY = 24 * 60 * 60 * 1000

Record = Mapping[str, Any]
Row = tuple[tuple[str, Any], ...]
"""A flat record as (field, value) pairs, sorted by name. So equal records can be counted."""


class Sent(NamedTuple):
    """A published message. Its invoice is None if it has none."""

    key: bytes | None
    value: bytes | None
    invoice: Record | None


class Version(NamedTuple):
    """The rules of a version of the programme.

    Attributes:
        valid_days: points expire at the end of the day that comes so many days after the receipt; 0: never.
        is_pending: whether points are still pending when the demo reads the balances.
    """

    factor: Decimal
    valid_days: int = 0
    is_pending: bool = False


@dataclass
class Expected:
    """The expected outputs.

    Attributes:
        messages: the number of published messages.
        repeats: the number of messages with an earlier InvoiceNumber.
        dead_letters: the number of dead letters for each (key, value).
        shipment: the whole invoice by InvoiceNumber.
        hadoop: the number of each row. Each line item is a row.
        earned: points by InvoiceNumber, by customer: of sales, and of what exchanges sell.
        returned: the invoices that return something in the account of each customer, with their originals.
        taken: the points that returns take back, by customer.
        pending: points that cannot be spent yet, by customer.
        expiring: points by the time at which they expire (milliseconds since the epoch), by customer.
        commands: the other notifications of each customer: kinds and points.
        moved: the new card of each replaced card, which has no balance.
        readings: for the index of each message that earns points, the customer and the first sequence that includes it.
        strangers: customers with invoices and without points.
    """

    messages: int = 0
    repeats: int = 0
    dead_letters: Counter[tuple[bytes | None, bytes | None]] = field(default_factory=Counter)
    shipment: dict[str, Record] = field(default_factory=dict)
    hadoop: Counter[Row] = field(default_factory=Counter)
    earned: defaultdict[str, dict[str, Decimal]] = field(default_factory=lambda: defaultdict(dict))
    returned: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    taken: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    pending: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    expiring: defaultdict[str, defaultdict[int, Decimal]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Decimal))
    )
    commands: defaultdict[str, Counter[tuple[str, Decimal]]] = field(default_factory=lambda: defaultdict(Counter))
    moved: dict[str, str] = field(default_factory=dict)
    readings: dict[int, tuple[str, int]] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)

    @property
    def notifications(self) -> int:
        """At least. A return that is read before its original has one more."""
        of_invoices = sum(map(len, self.earned.values())) + sum(map(len, self.returned.values()))
        return of_invoices + sum(each.total() for each in self.commands.values())

    @property
    def points(self) -> Decimal:
        return sum(map(self.points_of, self.earned), Decimal(0))

    def points_of(self, card: str) -> Decimal:
        given = sum((points * times for (_, points), times in self.commands[card].items()), Decimal(0))
        return sum(self.earned[card].values(), Decimal(0)) - self.taken[card] + given

    def next_expiry_of(self, card: str) -> tuple[int, Decimal]:
        """When the next points expire, and how many; zeros if none do."""
        return min(((time, points) for time, points in self.expiring[card].items() if points), default=(0, Decimal(0)))


def expect(sent: Iterable[Sent], loyalty_factor: Decimal, later: Mapping[int, Version] | None = None) -> Expected:
    """The outputs of these messages in this order.

    Args:
        later: further versions, and the time of the first receipt (milliseconds since the epoch) for which each counts.
    """
    expected, seen, sales = Expected(), set(), Sales({0: Version(loyalty_factor), **(later or {})})
    for number, message in enumerate(sent):
        expected.messages += 1
        invoice = None if message.invoice is None else as_read(message.invoice)
        if invoice is None or not is_valid(invoice):
            expected.dead_letters[message.key, message.value] += 1
        elif invoice["InvoiceNumber"] in seen:
            expected.repeats += 1
        else:
            seen.add(invoice["InvoiceNumber"])
            _count(expected, number, invoice, sales)
    for invoice_number, sale in sales.sold.items():
        rest = sales.points(sale, rest=True)
        expected.taken[sale.card] += expected.earned[sale.card][invoice_number] - rest
        expected.pending[sale.card] += rest * sale.version.is_pending
        if sale.version.valid_days:
            expected.expiring[sale.card][end_of_day(sale.time, sale.version.valid_days)] += rest
        expected.returned[sale.card] |= dict.fromkeys((number for number, *_ in sale.returns), invoice_number)
    expected.strangers -= expected.earned.keys()
    return expected


def end_of_day(time: int, days: int) -> int:
    """The end, in UTC, of the day that comes so many days after the time (milliseconds since the epoch)."""
    return (time // _DAY + days + 1) * _DAY


Return = tuple[str, Decimal, list[Record]]
"""The number of a return, its amount and its lines."""


@dataclass
class Sale:
    """The purchase of one invoice, and its returns with any card."""

    card: str
    amount: Decimal
    time: int
    version: Version
    lines: list[Record]
    returns: list[Return]


class Sales:
    """The sales of PRIME customers by InvoiceNumber, with their returns in any order.

    Args:
        versions: versions by the time of the first receipt for which each counts.
    """

    def __init__(self, versions: Mapping[int, Version]) -> None:
        self._versions = versions
        self.sold: dict[str, Sale] = {}
        self._returns: defaultdict[str, list[Return]] = defaultdict(list)

    def sell(self, card: str, invoice: Record, amount: Decimal, lines: list[Record]) -> Decimal:
        """Returns the points of the sale."""
        number, time = invoice["InvoiceNumber"], invoice.get("CreatedTime")
        # The broker's time decides about a receipt without a time, and it is later than all versions.
        version = self._versions[max(since for since in self._versions if time is None or since <= max(0, time))]
        self.sold[number] = sale = Sale(card, amount, time or 0, version, lines, self._returns[number])
        return self.points(sale)

    def take_back(self, original: str, returned: Return) -> None:
        self._returns[original].append(returned)

    def points(self, sale: Sale, *, rest: bool = False) -> Decimal:
        """The points of the part of the sale that is not returned.

        A return of an item counts at most up to what was bought.
        """
        amount, left = sale.amount, _values(sale.lines)
        for _, total, lines in sale.returns if rest else []:
            back = _values(lines)
            excess = sum((max(Decimal(0), value - left[item]) for item, value in back.items() if item), Decimal(0))
            if not excess or not sale.lines:
                amount -= total
            elif excess < sum(back.values()):
                amount -= max(Decimal(0), total - excess)
            for item, value in back.items():
                left[item] = max(Decimal(0), left[item] - value)
        return (max(amount, Decimal(0)) * sale.version.factor).quantize(Decimal("0.01"), ROUND_HALF_UP)


def _values(lines: Iterable[Record]) -> defaultdict[str, Decimal]:
    values: defaultdict[str, Decimal] = defaultdict(Decimal)
    for line in lines:
        values[line.get("ItemCode") or ""] += abs(_exact(line.get("TotalValue") or 0))
    return values


def _exact(amount: float) -> Decimal:
    return Decimal(repr(float(amount)))


def _count(expected: Expected, number: int, invoice: Record, sales: Sales) -> None:
    invoice_number, card = invoice["InvoiceNumber"], invoice.get("CustomerCardNo")
    if _has_value(invoice, "DeliveryType", "HOME-DELIVERY"):
        expected.shipment[invoice_number] = whole(invoice)
    expected.hadoop.update(rows(invoice))
    if card and card.strip() and not _has_value(invoice, "CustomerType", "PRIME"):
        expected.strangers.add(card)
    _count_points(expected, number, invoice, sales)


def _count_points(expected: Expected, number: int, invoice: Record, sales: Sales) -> None:
    """A return takes back points from the account that bought.

    If it has another card, that card has an entry without points.
    """
    invoice_number, card = invoice["InvoiceNumber"], str(invoice.get("CustomerCardNo"))
    items, total = invoice.get("InvoiceLineItems") or [], _exact(invoice["TotalAmount"])
    parts = {kind: [item for item in items if line_kind(invoice, item) == kind] for kind in ("sale", "return")}
    amounts = {kind: sum((_exact(item.get("TotalValue") or 0) for item in parts[kind]), Decimal(0)) for kind in parts}
    if not (parts["sale"] and parts["return"]):
        amounts = {line_kind(invoice, {}): total}
    original, is_prime = invoice.get("OriginalInvoiceNumber") or "", _has_value(invoice, "CustomerType", "PRIME")
    if "sale" in amounts and is_prime:
        earned = expected.earned[card]
        earned[invoice_number] = sales.sell(card, invoice, amounts["sale"], parts["sale"])
        expected.readings[number] = card, len(earned)
    if "return" in amounts:
        sales.take_back(original, (invoice_number, abs(amounts["return"]), parts["return"]))
        if is_prime:
            _ = expected.earned[card]
            expected.returned[card][invoice_number] = original


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
    """An invoice with only the fields of PosInvoice that it has. It is equal for all formats."""
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
    names_one = original.strip(whitespace) and len(original) <= 128  # noqa: PLR2004
    return {
        "LineKind": line_kind(invoice, item),
        "OriginalInvoiceNumber": original if names_one else None,
        "TotalAmount": invoice["TotalAmount"],
    }


def line_kind(invoice: Record, item: Record) -> str:
    """The expected LineKind of a line. In an exchange the sign decides, otherwise the kind of the invoice."""
    if not (invoice.get("OriginalInvoiceNumber") or "").strip(whitespace):
        return "return" if (invoice.get("TotalAmount") or 0) < 0 else "sale"
    values = [each.get("TotalValue") or 0 for each in invoice.get("InvoiceLineItems") or [{}]]
    one_sign = min(values) >= 0 or max(values) <= 0
    return "return" if one_sign or (item.get("TotalValue") or 0) < 0 else "sale"


def row(record: Record) -> Row:
    return tuple(sorted(record.items()))
