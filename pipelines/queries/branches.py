"""The branches of the fan-out query. A branch is a topic, a number of records for each invoice, and their contents.

To add a branch, write two such functions and one line in BRANCHES.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import schemas
from pipelines.columns import avro, traces
from pipelines.columns.returns import invoice_kind, line_kind, names_original
from pipelines.deduplication.stream import record_position
from schemas import topics
from schemas.topics import Topic
from services.domain.invoice import HOME_DELIVERY
from services.domain.validation import LONGEST_TEXT
from services.messaging import headers as h
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings


def _store() -> Column:
    return F.col("invoice.StoreID").cast("binary")


@dataclass(frozen=True, slots=True)
class Record:
    """One output record.

    Attributes:
        id: string, unique in the topic and equal after a replay.
        value: struct of the topic's schema, or binary if the topic has no schema.
        headers: of a value without a schema. Every value with a schema has the CloudEvents headers instead.
        key: binary. The key of the input record is not safe for analysts, because a till can use the card as its key.
    """

    id: Column
    value: Column
    headers: Column = field(default_factory=avro.no_headers)
    key: Column = field(default_factory=_store)


@dataclass(frozen=True, slots=True)
class Branch:
    """One output of the fan-out. Both functions make columns from checked invoices (see ``check_invoices``).

    Attributes:
        count: the number of records of an invoice in this branch. Null: none.
        record: the record with this number. The number is a column of integers from 0.
        columns: columns that ``record`` uses, and that are the same for all records of an invoice.
    """

    topic: Topic
    count: Callable[[], Column]
    record: Callable[[Column], Record]
    columns: Callable[[], dict[str, Column]] = dict


def home_delivery_count() -> Column:
    return F.when(_is_valid() & (F.upper("invoice.DeliveryType") == HOME_DELIVERY), 1)


def whole_invoice(_: Column) -> Record:
    """The whole invoice. Nothing is masked, because shipping needs the address."""
    return Record(F.col("invoice.InvoiceNumber"), F.col("invoice"))


def line_item_count() -> Column:
    return F.when(_is_valid(), F.size("invoice.InvoiceLineItems"))


def return_columns() -> dict[str, Column]:
    """The kind of the invoice, and the purchase that it names.

    This is a step of its own, because Spark does not generate code for the kind. In one step with the records, Spark
    would copy a large invoice for each of its lines first.
    """
    invoice, original = F.col("invoice"), F.col("invoice.OriginalInvoiceNumber")
    # No invoice has a longer number, and each line contains the text.
    is_possible = names_original(invoice) & (F.length(original) <= LONGEST_TEXT)
    return {"invoice_kind": invoice_kind(invoice), "original_invoice": F.when(is_possible, original)}


def masked_line(number: Column) -> Record:
    """The line item with this number, with fields of its invoice. HadoopRecord has no personal fields."""
    of_invoice, of_address = set(schemas.field_names("PosInvoice")), {"City", "State", "PinCode"}
    item = F.get("invoice.InvoiceLineItems", number)

    def field(name: str) -> Column:
        if name == "LineKind":
            return line_kind(F.col("invoice_kind"), item)
        if name == "OriginalInvoiceNumber":
            return F.col("original_invoice")
        if name in of_invoice:
            return F.col(f"invoice.{name}")
        return F.col(f"invoice.DeliveryAddress.{name}") if name in of_address else item.getField(name)

    line = F.struct(*(field(name).alias(name) for name in schemas.field_names("HadoopRecord")))
    return Record(F.concat_ws("#", "invoice.InvoiceNumber", number + 1), line)


def dead_letter_count() -> Column:
    return F.when(~_is_valid(), 1)


def original_record(_: Column) -> Record:
    """The unchanged key, value and headers, with the record's position and the reason. Too large parts are missing."""
    return Record(record_position(), _value_of_dead_letter(), _headers_with_reason(), _key_of_dead_letter())


def _value_of_dead_letter() -> Column:
    return F.when(F.length("value") <= h.LARGEST_VALUE, F.col("value"))


def _key_of_dead_letter() -> Column:
    return F.when(_keeps_headers(), F.col("key"))


def _keeps_headers() -> Column:
    # The text of an array has six more characters for each element: "{name, value}, ". Spark generates code for it.
    sizes = F.length("key"), F.octet_length(F.col("headers").cast("string"))
    key, headers = (F.coalesce(size, F.lit(0)) for size in sizes)
    return key + headers <= h.LARGEST_HEADERS


def _headers_with_reason() -> Column:
    origin = {h.DEAD_LETTER_TOPIC: "topic", h.DEAD_LETTER_PARTITION: "partition", h.DEAD_LETTER_OFFSET: "offset"}
    texts = {header: F.col(column).cast("string") for header, column in origin.items()}
    # A large invoice that a query has skipped has another reason.
    lacks_value = (F.length("value") > h.LARGEST_VALUE) & (F.col("reason") != h.TOO_LARGE)
    reason = F.concat(
        "reason",
        F.when(lacks_value, f"; {h.TOO_LARGE}").otherwise(""),
        F.when(_keeps_headers(), "").otherwise(h.WITHOUT_HEADERS),
    )
    added = avro.text_headers({**texts, h.DEAD_LETTER_REASON: reason})
    return F.concat(F.coalesce(F.when(_keeps_headers(), F.col("headers")), avro.no_headers()), added)


BRANCHES = (
    Branch(topics.SHIPMENT, home_delivery_count, whole_invoice),
    Branch(topics.HADOOP, line_item_count, masked_line, return_columns),
    Branch(topics.DEAD_LETTERS, dead_letter_count, original_record),
)


def dead_letters(inputs: DataFrame, settings: Settings) -> DataFrame:
    """Only the dead letters of checked records, for the Kafka sink: topic, key, value, headers."""
    topic = F.lit(settings.name_of(topics.DEAD_LETTERS)).alias("topic")
    return inputs.where(~_is_valid()).select(
        topic,
        _key_of_dead_letter().alias("key"),
        _value_of_dead_letter().alias("value"),
        _headers_with_reason().alias("headers"),
    )


def _is_valid() -> Column:
    return F.col("reason").isNull()


def branch_records(branches: Sequence[Branch], inputs: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """All records that the branches make of checked records, for the Kafka sink: topic, key, value, headers."""
    counts = {f"count_{number}": F.coalesce(branch.count(), F.lit(0)) for number, branch in enumerate(branches)}
    # Make the rows first and their contents afterwards, because Spark generates no code for arrays of records.
    numbers = F.concat(*(F.array_repeat(F.lit(number), F.col(count)) for number, count in enumerate(counts)))
    of_invoice = {name: column for branch in branches for name, column in branch.columns().items()}
    rows = inputs.withColumns({**counts, **of_invoice}).select("*", F.posexplode(numbers).alias("position", "branch"))
    records_before = F.lit(0)
    outputs = []
    for branch, count in zip(branches, counts, strict=True):
        outputs.append(_output(branch, F.col("position") - records_before, ids, settings))
        records_before = records_before + F.col(count)
    names = "topic", "key", "value", "headers"
    return rows.select(*(_of_row([output[name] for output in outputs]).alias(name) for name in names))


def _output(branch: Branch, number: Column, ids: SchemaIds, settings: Settings) -> dict[str, Column]:
    topic, record = branch.topic, branch.record(number)
    value, headers = record.value, record.headers
    if topic.value:
        value = avro.encode(value, topic, ids)
        headers = traces.with_trace(avro.cloud_event(record.id, topic.value))
    return {"topic": F.lit(settings.name_of(topic)), "key": record.key, "value": value, "headers": headers}


def _of_row(columns: Sequence[Column]) -> Column:
    """The column of the row's branch. ``columns`` has one column for each branch."""
    *others, last = columns
    chosen = last
    for number, column in reversed([*enumerate(others)]):
        chosen = F.when(F.col("branch") == number, column).otherwise(chosen)
    return chosen
