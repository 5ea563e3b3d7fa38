"""The branches of the fan-out, as data: a topic, how many records of it an invoice has, and what each of them is.

To add a branch, write two such functions and one line in BRANCHES.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

import schemas
from pipelines.columns import avro
from pipelines.columns.repeats import place
from schemas import topics
from schemas.topics import Topic
from services.domain.invoice import HOME_DELIVERY
from services.messaging import headers as h


@dataclass(frozen=True, slots=True)
class Record:
    """What is written; its key is the key that came.

    Attributes:
        id: string, unique in the topic and the same after a replay.
        value: struct of the topic's schema, or binary where it has none.
        headers: beside the CloudEvents headers that every value with a schema gets.
    """

    id: Column
    value: Column
    headers: Column | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """One way out of the fan-out. Both functions make columns of checked invoices (see ``invoices.checked``).

    Attributes:
        count: how many records an invoice has in this branch; null is none.
        record: one of them, by its number from 0 (a column of integers).
    """

    topic: Topic
    count: Callable[[], Column]
    record: Callable[[Column], Record]


INVOICE_NUMBER = "invoice.InvoiceNumber"


def home_deliveries() -> Column:
    return F.when(_is_valid() & (F.upper("invoice.DeliveryType") == HOME_DELIVERY), 1)


def whole_invoice(_: Column) -> Record:
    """Whoever ships needs the address."""
    return Record(F.col(INVOICE_NUMBER), F.col("invoice"))


def line_items() -> Column:
    return F.when(_is_valid(), F.size("invoice.InvoiceLineItems"))


def flat_line(number: Column) -> Record:
    """A line item with its invoice. Personal fields are masked by not being in HadoopRecord: nothing selects them."""
    of_invoice, of_address = set(schemas.field_names("PosInvoice")), {"City", "State", "PinCode"}
    item = F.get("invoice.InvoiceLineItems", number)

    def field(name: str) -> Column:
        if name in of_invoice:
            return F.col(f"invoice.{name}")
        return F.col(f"invoice.DeliveryAddress.{name}") if name in of_address else item.getField(name)

    line = F.struct(*(field(name).alias(name) for name in schemas.field_names("HadoopRecord")))
    return Record(F.concat_ws("#", F.col(INVOICE_NUMBER), number + 1), line)


def not_valid() -> Column:
    return F.when(~_is_valid(), 1)


def what_came(_: Column) -> Record:
    """Key, value and headers untouched, with their origin and the reason."""
    origin = {h.DEAD_LETTER_TOPIC: "topic", h.DEAD_LETTER_PARTITION: "partition", h.DEAD_LETTER_OFFSET: "offset"}
    texts = {header: F.col(column).cast("string") for header, column in origin.items()}
    why = avro.text_headers({**texts, h.DEAD_LETTER_REASON: F.col("reason")})
    return Record(place(), F.col("value"), F.concat(F.coalesce(F.col("headers"), avro.no_headers()), why))


DEAD_LETTERS = Branch(topics.DEAD_LETTERS, not_valid, what_came)
BRANCHES = (
    Branch(topics.SHIPMENT, home_deliveries, whole_invoice),
    Branch(topics.HADOOP, line_items, flat_line),
    DEAD_LETTERS,
)


def _is_valid() -> Column:
    return F.col("reason").isNull()
