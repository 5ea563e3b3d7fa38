"""Reviews the records of a till: the pipeline's verdict on each, and warnings about valid invoices."""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from confluent_kafka import murmur2

import schemas
from schemas import topics
from services.domain.formats import LAST_TIME
from services.domain.invoice import HOME_DELIVERY, PRIME, LineItem, PosInvoice
from services.domain.json_rules import unknown_fields
from services.domain.returns import InvoiceKind, kind_of, takes_back_discount
from services.domain.validation import BLANKS, is_in_seconds
from services.messaging.schema_ids import SchemaIds
from services.verdicts import Verdict, judge_of

HOUR = 3_600_000
"""In milliseconds. The till gets a warning if its clock is wrong by more than this."""

_SCHEMA = schemas.current("PosInvoice")
_TRIMMED = ("InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "OriginalInvoiceNumber")
_VALUES = {"CustomerType": (PRIME, "NONPRIME"), "DeliveryType": (HOME_DELIVERY, "TAKEAWAY")}


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of a till.

    Attributes:
        place: the place of the record: ``partition:offset``, or a file and a number.
        time: its append time, in milliseconds since the epoch; None if it is not from a topic.
        key: its key; None if it has none, or if it is not from a topic.
        partition: its partition, and the number of partitions of the topic; None if it is not from a topic.
    """

    place: str
    value: bytes | None
    time: int | None = None
    key: bytes | None = None
    partition: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one record.

    Attributes:
        reason: why the pipeline makes it a dead letter; None if it is valid.
        warnings: what the vendor should improve. They contain no card and no other value of a customer.
        store: its StoreID; None if it is not readable.
        till: its PosID; None if it is not readable.
        original: the invoice that a valid invoice names as its original; None if it names none.
        sold: the item codes of the sold lines of a valid exchange.
    """

    place: str
    reason: str | None
    warnings: list[str] = field(default_factory=list)
    store: str | None = None
    till: str | None = None
    original: str | None = None
    sold: frozenset[str] = frozenset()


class _First(NamedTuple):
    """The record with an invoice number that the broker appended first."""

    place: str
    content: int
    time: int


class Review:
    """Reviews the records of one topic or file in their order. It remembers all invoice numbers, and all discounts."""

    def __init__(self, ids: SchemaIds) -> None:
        self._judge = judge_of(topics.POS_INVOICES, ids.known(topics.POS_INVOICES))
        self._newest_id = ids.writer_id(topics.POS_INVOICES)
        self._first: dict[str, _First] = {}
        self._discounts: dict[str, frozenset[str]] = {}

    def __call__(self, sent: Sent) -> Finding:
        verdict = self._judge(sent.value, sent.key)
        invoice = verdict.record
        if invoice is None:
            return Finding(sent.place, verdict.reason)
        warnings = [
            *self._format_warnings(verdict, sent),
            *_key_warnings(invoice, sent),
            *_time_warnings(invoice, sent),
            *_text_warnings(invoice),
            *_line_warnings(invoice),
        ]
        finding = Finding(sent.place, verdict.reason, warnings, invoice.get("StoreID"), invoice.get("PosID"))
        if verdict.reason is not None:
            return finding
        warnings += self._duplicate_warnings(invoice, sent)
        if _original(invoice):
            # The pipeline keeps blanks around the number, so a purchase without them is another invoice.
            original = str(invoice["OriginalInvoiceNumber"])
            return replace(finding, original=original, sold=_sold(invoice, original))
        goods = _codes(invoice, lambda line: (line.get("TotalValue") or 0) > 0)
        # An exchange can sell the goods once more, for example in another size. So their code does not show a discount.
        if discounts := _codes(invoice, lambda line: (line.get("TotalValue") or 0) < 0) - goods:
            self._discounts[str(invoice["InvoiceNumber"])] = discounts
        return finding

    def complete(self, finding: Finding) -> None:
        """Add the warnings about the original. Call it after all records.

        A return can be in another partition than its original, and so be read before it.
        """
        if finding.original is None:
            return
        if finding.original not in self._first:
            finding.warnings.append(
                "the invoice that OriginalInvoiceNumber names is not among the records that were read"
            )
        if finding.sold & self._discounts.get(finding.original, frozenset()):
            finding.warnings.append(
                "a line takes back a discount of the original, but counts as sold: "
                "write it with a negative ItemPrice or a negative ItemQty"
            )

    def _format_warnings(self, verdict: Verdict, sent: Sent) -> Iterator[str]:
        if verdict.schema_id is not None and verdict.schema_id != self._newest_id:
            yield f"written in schema {verdict.schema_id}: the newest schema of this project is {self._newest_id}"
        if verdict.schema_id is not None or sent.value is None:
            return
        names = schemas.field_names("PosInvoice")
        for unknown in unknown_fields(sent.value, _SCHEMA):
            same = [name for name in names if name.casefold() == unknown.casefold()]
            similar = same or difflib.get_close_matches(unknown, names, 1)
            hint = f"; is it {similar[0]}?" if similar else ""
            yield f"the field {unknown[:64]!r} is unknown and is ignored{hint}"

    def _duplicate_warnings(self, invoice: PosInvoice, sent: Sent) -> Iterator[str]:
        number, this = str(invoice["InvoiceNumber"]), _First(sent.place, hash(sent.value), sent.time or 0)
        other = self._first.setdefault(number, this)
        if other.place == this.place:
            return
        # The partitions are read in any order.
        if is_first := this.time < other.time:
            self._first[number] = this
        if other.content == this.content:
            repeats = (
                f"the record at {other.place} repeats this one" if is_first else f"repeats the record at {other.place}"
            )
            yield (
                f"{repeats}, and is ignored: "
                "enable.idempotence=true prevents duplicates that the retries of the producer cause"
            )
        else:
            ignored = "that one" if is_first else "this one"
            yield f"another invoice at {other.place} has the same InvoiceNumber, so {ignored} is ignored"


def _original(invoice: PosInvoice) -> str:
    return (invoice.get("OriginalInvoiceNumber") or "").strip(BLANKS)


def _codes(invoice: PosInvoice, has: Callable[[LineItem], bool]) -> frozenset[str]:
    """The item codes of the lines for which ``has`` is true. A line without a code shows nothing."""
    lines = invoice.get("InvoiceLineItems") or ()
    return frozenset(code for line in lines if (code := line.get("ItemCode")) and has(line))


def _sold(invoice: PosInvoice, original: str) -> frozenset[str]:
    """The item codes of the sold lines of an exchange; none if the invoice is a return."""
    returned = [not _is_sold(line) for line in invoice.get("InvoiceLineItems") or () if line.get("TotalValue")]
    is_exchange = kind_of(invoice["TotalAmount"] or 0, original, returned) is InvoiceKind.EXCHANGE
    return _codes(invoice, _is_sold) if is_exchange else frozenset()


def _is_sold(line: LineItem) -> bool:
    """Whether a line of an exchange is sold."""
    value = line.get("TotalValue") or 0
    return value > 0 and not takes_back_discount(value, line.get("ItemPrice"), line.get("ItemQty"))


def _key_warnings(invoice: PosInvoice, sent: Sent) -> Iterator[str]:
    store = invoice.get("StoreID")
    if sent.partition is None or store is None:
        return
    if sent.key is None:
        yield "has no key: use the StoreID, so that the invoices of a store stay in their order"
    elif sent.key != store.encode():
        yield "the key is not the StoreID, so the invoices of a store do not stay in their order"
    elif (expected := murmur2(sent.key, sent.partition[1])) != sent.partition[0]:
        yield (
            f"is in partition {sent.partition[0]}, and murmur2 of its key gives {expected}: "
            "set partitioner=murmur2_random if the producer uses librdkafka"
        )


def _time_warnings(invoice: PosInvoice, sent: Sent) -> Iterator[str]:
    created = invoice.get("CreatedTime")
    if created is None:
        yield "has no CreatedTime: campaigns use the time of the broker"
        return
    if is_in_seconds(created):
        yield "CreatedTime is in seconds: the pipeline converts it; send milliseconds"
        created *= 1000
    if created > LAST_TIME:
        yield "CreatedTime is after the year 9999: send milliseconds; microseconds are too large"
        return
    if created <= 0:
        yield "CreatedTime is 1 January 1970 or earlier: is the till's clock set?"
        return
    if sent.time is not None and (wrong_by := created - sent.time) and abs(wrong_by) > HOUR:
        side = "ahead of" if wrong_by > 0 else "behind"
        yield f"CreatedTime is more than an hour {side} the broker's clock: is the till's clock or its time zone wrong?"


def _text_warnings(invoice: PosInvoice) -> Iterator[str]:
    record: dict[str, Any] = {**invoice}
    for name in _TRIMMED:
        if (text := record.get(name)) and text != text.strip(BLANKS):
            yield f"{name} has blanks at its start or end: most readers do not remove them"
    for name, values in _VALUES.items():
        if (text := record.get(name)) and text.upper() not in values:
            yield f"{name} is none of {', '.join(values)}"


def _line_warnings(invoice: PosInvoice) -> Iterator[str]:
    lines = invoice.get("InvoiceLineItems")
    if not lines:
        yield "has no InvoiceLineItems: analysts get no rows, and returns of items cannot be checked"
    total, original = invoice.get("TotalAmount"), _original(invoice)
    if total is not None and not original and kind_of(total, original) is InvoiceKind.RETURN:
        yield "is a return without OriginalInvoiceNumber: it takes points from the newest purchases, not from its own"
