"""The branches of the fan-out, as data: a topic, and a function that gives each invoice its records for that topic.

To add a branch, write one such function and one line in BRANCHES.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import schemas
from pipelines import wire
from pipelines.repeats import place
from schemas import topics
from schemas.topics import Topic
from services.domain.invoice import HOME_DELIVERY
from services.messaging import headers as h


@dataclass(frozen=True, slots=True)
class Branch:
    """One way out of the fan-out.

    Attributes:
        records: takes checked invoices (see ``invoices.checked``) and returns them with one more column ``records``,
            null where the invoice has none in this branch, else an array of structs: ``id`` (string, unique in the
            topic and the same after a replay), ``key`` (binary), ``value`` (struct of the topic's schema, or binary
            where it has none) and ``headers`` (beside the CloudEvents headers that every value with a schema gets).
    """

    topic: Topic
    records: Callable[[DataFrame], DataFrame]


INVOICE_NUMBER = "invoice.InvoiceNumber"


def shipment(invoices: DataFrame) -> DataFrame:
    """HOME-DELIVERY invoices, whole: whoever ships needs the address."""
    is_home_delivery = F.upper("invoice.DeliveryType") == HOME_DELIVERY
    record = _record(F.col(INVOICE_NUMBER), F.col("invoice"))
    return invoices.withColumn("records", F.when(_is_valid() & is_home_delivery, F.array(record)))


def hadoop(invoices: DataFrame) -> DataFrame:
    """One flat record per line item. Personal fields are masked by not being in HadoopRecord: nothing selects them."""
    of_invoice, of_address = set(schemas.field_names("PosInvoice")), {"City", "State", "PinCode"}

    def line(item: Column, index: Column) -> Column:
        def field(name: str) -> Column:
            if name in of_invoice:
                return F.col(f"invoice.{name}")
            return F.col(f"invoice.DeliveryAddress.{name}") if name in of_address else item.getField(name)

        record = F.struct(*(field(name).alias(name) for name in schemas.field_names("HadoopRecord")))
        return _record(F.concat_ws("#", F.col(INVOICE_NUMBER), index + 1), record)

    return invoices.withColumn("records", F.when(_is_valid(), F.transform("invoice.InvoiceLineItems", line)))


def dead_letters(invoices: DataFrame) -> DataFrame:
    """Whatever could not be read or is not valid: key, value and headers untouched, with its origin and the reason."""
    origin = {h.DEAD_LETTER_TOPIC: "topic", h.DEAD_LETTER_PARTITION: "partition", h.DEAD_LETTER_OFFSET: "offset"}
    texts = {header: F.col(column).cast("string") for header, column in origin.items()}
    record = _record(
        place(),
        F.col("value"),
        F.concat(
            F.coalesce(F.col("headers"), _no_headers()),
            wire.text_headers({**texts, h.DEAD_LETTER_REASON: F.col("reason")}),
        ),
    )
    return invoices.withColumn("records", F.when(~_is_valid(), F.array(record)))


DEAD_LETTERS = Branch(topics.DEAD_LETTERS, dead_letters)
BRANCHES = (Branch(topics.SHIPMENT, shipment), Branch(topics.HADOOP, hadoop), DEAD_LETTERS)


def _is_valid() -> Column:
    return F.col("reason").isNull()


def _record(record_id: Column, value: Column, headers: Column | None = None) -> Column:
    return F.struct(
        record_id.alias("id"),
        F.col("key").alias("key"),
        value.alias("value"),
        (_no_headers() if headers is None else headers).alias("headers"),
    )


def _no_headers() -> Column:
    return F.array().cast(wire.HEADERS_TYPE)
