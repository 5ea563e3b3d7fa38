"""Compares the outputs with the expected outputs. Each difference is one mismatch."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

from infra.demo.invoice_oracle import Record, row, whole
from infra.demo.oracle import Expected

NOT_FOUND = 404

_OF_RETURNS = ("returned", "refused")
"""The kinds of the notifications of returns."""

_WAITS = "purchase-unknown"
"""The reason in the first notification of a return that is processed before its purchase."""


class Nature(StrEnum):
    """The kind of a difference."""

    LOST = "lost"
    DOUBLED = "doubled"
    WRONG = "wrong"


class Mismatch(NamedTuple):
    """One difference, described in one line."""

    nature: Nature
    text: str


class DeadLetter(NamedTuple):
    key: bytes | None
    value: bytes | None
    reason: str


class Balance(NamedTuple):
    """A balance of the API.

    Attributes:
        next_expiry: the time (milliseconds since the epoch) and the number of the points that expire next, or zeros.
            None only in balances of release 0.1.
    """

    points: Decimal
    sequence: int
    pending: Decimal = Decimal(0)
    next_expiry: tuple[int, Decimal] | None = (0, Decimal(0))


class LedgerEntry(NamedTuple):
    card: str
    sequence: int
    kind: str
    points: Decimal
    total: Decimal


@dataclass
class Outputs:
    """The outputs of the pipeline and the API. Records with the same CloudEvents id count once.

    Attributes:
        repeats: the number of duplicates that the pipeline reports.
        parquet: the rows of the files, without the columns that come from the names of the folders.
        sales: the records of store-sales, including those that later records replace. None: they are not compared.
        ledger: the entries of the ledger. None: they are not compared.
        balances: the balance of each customer; None if the API has no balance.
        moved: the new card of each replaced card, from the API; None if the API does not name it.
        unknown: the HTTP status for each customer who must not have a balance.
        changed: one line for each record that has the id of an earlier record and another content.
    """

    shipment: Sequence[Record] = ()
    hadoop: Sequence[Record] = ()
    notifications: Sequence[Record] = ()
    dead_letters: Sequence[DeadLetter] = ()
    repeats: int = 0
    parquet: Sequence[Record] = ()
    sales: Sequence[Record] | None = None
    ledger: Sequence[LedgerEntry] | None = None
    balances: Mapping[str, Balance | None] = field(default_factory=dict)
    moved: Mapping[str, str | None] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    changed: Sequence[str] = ()

    @property
    def sales_by_store(self) -> dict[str, tuple[int, Decimal]]:
        """The number of invoices and their net amount in all minutes, by StoreID."""
        by_minute = {
            (record["StoreID"], record["WindowStart"]): (record["Count"], record["Sum"])
            for record in sorted(self.sales or (), key=lambda record: record["Sequence"])
        }
        stores: dict[str, tuple[int, Decimal]] = {}
        for (store, _), (invoices, amount) in by_minute.items():
            before = stores.get(store, (0, Decimal(0)))
            stores[store] = before[0] + invoices, before[1] + amount
        return stores

    @property
    def points(self) -> Decimal:
        return sum((balance.points for balance in self.balances.values() if balance), Decimal(0))


def mismatches(expected: Expected, found: Outputs) -> list[Mismatch]:
    """All differences between the expected outputs and the found ones."""
    hadoop = Counter(row(record) for record in found.hadoop)
    parquet = Counter(row(record) for record in found.parquet)
    dead_letters = Counter((letter.key, letter.value) for letter in found.dead_letters)
    return [
        *(Mismatch(Nature.WRONG, f"changed on replay: {line}") for line in found.changed),
        *_values("repeats", {"dropped": expected.repeats}, {"dropped": found.repeats}),
        *_shipment(expected, found),
        *_counts("hadoop", expected.hadoop, hadoop),
        *_counts("parquet", expected.hadoop, parquet),
        *_counts("dead letter", expected.dead_letters, dead_letters),
        *(
            Mismatch(Nature.WRONG, f"dead letter: no reason with {letter.value!r}")
            for letter in found.dead_letters
            if not letter.reason
        ),
        *(() if found.sales is None else _values("sales of store", expected.sales, found.sales_by_store)),
        *_notifications(expected, found.notifications),
        *ledger_mismatches(found),
        *_values("balance", _balances(expected, found.notifications), found.balances),
        *_values("replaced card", expected.moved, found.moved),
        *_values("unknown customer", dict.fromkeys(found.unknown, NOT_FOUND), found.unknown),
    ]


def ledger_mismatches(found: Outputs) -> list[Mismatch]:
    """All differences between the notifications and the entries of the ledger."""
    if found.ledger is None:
        return []
    return [*_counts("ledger", _entries(found.notifications), Counter(found.ledger))]


def _counts(name: str, expected: Counter[Any], found: Counter[Any]) -> Iterator[Mismatch]:
    for item in (expected - found).elements():
        yield Mismatch(Nature.LOST, f"{name}: missing {item}")
    for item in (found - expected).elements():
        yield Mismatch(Nature.DOUBLED, f"{name}: unexpected {item}")


def _values(name: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Mismatch]:
    for key in sorted({*expected, *found}):
        if expected.get(key) != found.get(key):
            text = f"{name} {key}: expected {expected.get(key)}, found {found.get(key)}"
            yield Mismatch(Nature.WRONG, text)


def _shipment(expected: Expected, found: Outputs) -> Iterator[Mismatch]:
    numbers = Counter(str(record.get("InvoiceNumber")) for record in found.shipment)
    yield from _counts("shipment", Counter(expected.shipment.keys()), numbers)
    # Compare the contents, too. The line above already reports missing invoices.
    contents = {str(record.get("InvoiceNumber")): whole(record) for record in found.shipment}
    wanted = {number: invoice for number, invoice in expected.shipment.items() if number in contents}
    yield from _values("shipment", wanted, {number: contents[number] for number in wanted})


def _notifications(expected: Expected, found: Sequence[Record]) -> Iterator[Mismatch]:
    by_customer = defaultdict(list)
    for notification in found:
        by_customer[notification["CustomerCardNo"]].append(notification)
    for card in sorted({*expected.earned, *by_customer}):
        of_customer = sorted(by_customer[card], key=lambda notification: notification["Sequence"])
        sold = [n for n in of_customer if n["Kind"] == "earned"]
        earned = Counter((n["InvoiceNumber"], n["EarnedLoyaltyPoints"]) for n in sold)
        yield from _counts(f"notification of {card}", Counter(expected.earned.get(card, {}).items()), earned)
        yield from _returns(card, expected, [n for n in of_customer if n["Kind"] in _OF_RETURNS])
        others = [n for n in of_customer if n["Kind"] not in {"earned", *_OF_RETURNS}]
        given = Counter((n["Kind"], n["EarnedLoyaltyPoints"]) for n in others)
        yield from _counts(f"entry of {card}", expected.commands.get(card, Counter()), given)
        yield from _running_totals(card, of_customer)


def _entries(notifications: Iterable[Record]) -> Counter[LedgerEntry]:
    fields = ("CustomerCardNo", "Sequence", "Kind", "EarnedLoyaltyPoints", "TotalLoyaltyPoints")
    return Counter(LedgerEntry(*(notification[name] for name in fields)) for notification in notifications)


def _returns(card: str, expected: Expected, found: Sequence[Record]) -> Iterator[Mismatch]:
    """A return has one notification, or two if it waited for its purchase. Its points are the sum of both."""
    numbers = Counter((n["Kind"], n["InvoiceNumber"]) for n in found)
    wanted = Counter(("returned", number) for number in expected.returned.get(card, {}))
    waited = Counter(("returned", number) for _, number in waited_returns(expected, found))
    yield from _counts(f"return of {card}", wanted + waited, numbers)
    yield from _values(
        f"points taken back from {card}",
        {"points": expected.taken.get(card, Decimal(0))},
        {"points": -sum((n["EarnedLoyaltyPoints"] for n in found), Decimal(0))},
    )


def waited_returns(expected: Expected, notifications: Iterable[Record]) -> set[tuple[str, str]]:
    """Card and number of each return with a second notification, because the return waited for its purchase."""
    waiting = {(n["CustomerCardNo"], n["InvoiceNumber"]) for n in notifications if n["Reason"] == _WAITS}
    returned, sold = expected.returned, expected.earned
    return {(card, number) for card, number in waiting if returned.get(card, {}).get(number) in sold.get(card, {})}


def _running_totals(card: str, notifications: Iterable[Record]) -> Iterator[Mismatch]:
    before = Balance(Decimal(0), 0)
    for notification in notifications:
        correct = Balance(before.points + notification["EarnedLoyaltyPoints"], before.sequence + 1)
        actual = Balance(notification["TotalLoyaltyPoints"], notification["Sequence"])
        if actual != correct:
            yield Mismatch(Nature.WRONG, f"running total of {card}: expected {correct}, found {actual}")
        # Continue from the wrong total, so that it counts as one difference.
        before = actual


def _balances(expected: Expected, notifications: Sequence[Record]) -> dict[str, Balance]:
    """The expected balances. The sequence is the number of notifications, which ``_notifications`` compares."""
    entries = Counter(notification["CustomerCardNo"] for notification in notifications)
    with_balance = expected.earned.keys() - expected.moved.keys()
    return {
        card: Balance(expected.points_of(card), entries[card], expected.pending[card], expected.next_expiry_of(card))
        for card in with_balance
    }
