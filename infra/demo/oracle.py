"""Computes the expected outputs of a sequence of messages.

This module and ``invoice_oracle`` share no code with the domain or the pipeline, so that they do not have the same
defects. They use only the standard library. docs/reference/demo.md has the rules.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

from infra.demo.invoice_oracle import (
    Record,
    Row,
    as_read,
    has_value,
    is_valid,
    line_kind,
    names_original,
    rows,
    trimmed,
    whole,
)

_DAY = 24 * 60 * 60 * 1000


class Sent(NamedTuple):
    """A published message. ``invoice`` is None if the value contains no invoice."""

    key: bytes | None
    value: bytes | None
    invoice: Record | None


class Version(NamedTuple):
    """The rules of a version of the programme.

    Attributes:
        valid_days: points expire at the end of the day that is this number of days after the receipt; 0: never.
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
        hadoop: the number of times that each row occurs. Each line item is a row.
        sales: the number of invoices and their net amount, by StoreID.
        earned: points by InvoiceNumber, by customer: of sales, and of the sold items of exchanges.
        returned: the numbers of the invoices that return something and of their purchases, by customer.
        taken: the points that returns take back, by customer.
        pending: points that cannot be spent yet, by customer.
        expiring: points by the time at which they expire (milliseconds since the epoch), by customer.
        commands: the other notifications of each customer: kinds and points.
        moved: the new card of each replaced card, which has no balance.
        readings: by the index of each message that earns points: the customer, and the first sequence number whose
            balance includes these points.
        strangers: customers who have invoices but no account.
    """

    messages: int = 0
    repeats: int = 0
    dead_letters: Counter[tuple[bytes | None, bytes | None]] = field(default_factory=Counter)
    shipment: dict[str, Record] = field(default_factory=dict)
    hadoop: Counter[Row] = field(default_factory=Counter)
    sales: dict[str, tuple[int, Decimal]] = field(default_factory=dict)
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
        """The smallest possible number. A return that is processed before its purchase has a second notification."""
        of_invoices = sum(map(len, self.earned.values())) + sum(map(len, self.returned.values()))
        return of_invoices + sum(each.total() for each in self.commands.values())

    @property
    def points(self) -> Decimal:
        return sum(map(self.points_of, self.earned), Decimal(0))

    def points_of(self, card: str) -> Decimal:
        given = sum((points * times for (_, points), times in self.commands[card].items()), Decimal(0))
        return sum(self.earned[card].values(), Decimal(0)) - self.taken[card] + given

    def next_expiry_of(self, card: str) -> tuple[int, Decimal]:
        """The time and the number of the points that expire next; zeros if no points expire."""
        return min(((time, points) for time, points in self.expiring[card].items() if points), default=(0, Decimal(0)))


def expect(sent: Iterable[Sent], loyalty_factor: Decimal, later: Mapping[int, Version] | None = None) -> Expected:
    """The expected outputs of these messages in this order.

    ``later`` has further versions, by the time of the first receipt to which each applies, in milliseconds since the
    epoch.
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
    """The end, in UTC, of the day that is this number of days after the time (milliseconds since the epoch)."""
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
        versions: versions by the time of the first receipt to which each applies.
    """

    def __init__(self, versions: Mapping[int, Version]) -> None:
        self._versions = versions
        self.sold: dict[str, Sale] = {}
        self._returns: defaultdict[str, list[Return]] = defaultdict(list)

    def sell(self, card: str, invoice: Record, amount: Decimal, lines: list[Record]) -> Decimal:
        """Record a sale. Returns its points."""
        number, time = invoice["InvoiceNumber"], invoice.get("CreatedTime")
        # For a receipt without a time the append time of the broker counts, which is later than all versions.
        version = self._versions[max(since for since in self._versions if time is None or since <= max(0, time))]
        self.sold[number] = sale = Sale(card, amount, time or 0, version, lines, self._returns[number])
        return self.points(sale)

    def take_back(self, original: str, returned: Return) -> None:
        self._returns[original].append(returned)

    def points(self, sale: Sale, *, rest: bool = False) -> Decimal:
        """The points of a sale. With ``rest``, only those of the part that was not returned.

        A return of an item counts at most up to the value that was bought. The value of a discount is negative.
        """
        amount = smallest = sale.amount
        left = _values(sale.lines)
        for _, total, lines in sale.returns if rest else []:
            back = _values(lines)
            if any((line.get("TotalValue") or 0) < 0 for line in lines):
                back = defaultdict(Decimal, {item: -value for item, value in back.items()})
            value = sum(back.values(), Decimal(0))
            kept = {item: sorted((Decimal(0), each, left[item]))[1] for item, each in back.items()}
            excess = sum((each - kept[item] for item, each in back.items() if item), Decimal(0))
            if not excess or not sale.lines:
                amount -= total if value >= 0 else -total
            elif excess != value:
                amount -= max(min(value - excess, Decimal(0)), total - excess)
            for item, each in kept.items():
                left[item] -= each
            smallest = min(smallest, amount)  # No return adds points.
        return (max(smallest, Decimal(0)) * sale.version.factor).quantize(Decimal("0.01"), ROUND_HALF_UP)


def _values(lines: Iterable[Record]) -> defaultdict[str, Decimal]:
    values: defaultdict[str, Decimal] = defaultdict(Decimal)
    for line in lines:
        values[line.get("ItemCode") or ""] += _exact(line.get("TotalValue") or 0)
    return values


def _exact(amount: float) -> Decimal:
    return Decimal(repr(float(amount)))


def _count(expected: Expected, number: int, invoice: Record, sales: Sales) -> None:
    invoice_number, card = invoice["InvoiceNumber"], invoice.get("CustomerCardNo")
    if has_value(invoice, "DeliveryType", "HOME-DELIVERY"):
        expected.shipment[invoice_number] = whole(invoice)
    expected.hadoop.update(rows(invoice))
    invoices, amount = expected.sales.get(invoice["StoreID"], (0, Decimal(0)))
    expected.sales[invoice["StoreID"]] = invoices + 1, amount + _net_amount(invoice)
    if card and trimmed(card) and not has_value(invoice, "CustomerType", "PRIME"):
        expected.strangers.add(card)
    _count_points(expected, number, invoice, sales)


def _net_amount(invoice: Record) -> Decimal:
    """What the invoice adds to the sales of its store. A return subtracts, with either sign of its amount.

    The sign has a meaning if the lines have both signs, because some of them take back a discount.
    """
    amount = _exact(invoice["TotalAmount"]).quantize(Decimal("0.01"), ROUND_HALF_UP)
    items = invoice.get("InvoiceLineItems") or [{}]
    values = [item.get("TotalValue") or 0 for item in items]
    is_mixed = min(values) < 0 < max(values) and names_original(invoice)
    kinds = {line_kind(invoice, item) for item in items}
    return -abs(amount) if kinds == {"return"} and not is_mixed else amount


def _count_points(expected: Expected, number: int, invoice: Record, sales: Sales) -> None:
    """Count the points of an invoice. A return takes back points from the account of the purchase.

    If the return has another card, the account of that card gets an entry without points.
    """
    invoice_number, card = invoice["InvoiceNumber"], str(invoice.get("CustomerCardNo"))
    items, total = invoice.get("InvoiceLineItems") or [], _exact(invoice["TotalAmount"])
    parts = {kind: [item for item in items if line_kind(invoice, item) == kind] for kind in ("sale", "return")}
    amounts = {kind: sum((_exact(item.get("TotalValue") or 0) for item in parts[kind]), Decimal(0)) for kind in parts}
    if not (parts["sale"] and parts["return"]):
        amounts = {line_kind(invoice, {}): total}
    original, is_prime = invoice.get("OriginalInvoiceNumber") or "", has_value(invoice, "CustomerType", "PRIME")
    if "sale" in amounts and is_prime:
        earned = expected.earned[card]
        earned[invoice_number] = sales.sell(card, invoice, amounts["sale"], parts["sale"])
        expected.readings[number] = card, len(earned)
    if "return" in amounts:
        sales.take_back(original, (invoice_number, abs(amounts["return"]), parts["return"]))
        if is_prime:
            _ = expected.earned[card]  # the account exists, even without points
            expected.returned[card][invoice_number] = original
