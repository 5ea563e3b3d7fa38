"""The events of accounts: purchases from invoices, and commands."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

import schemas
from pipelines.columns import avro
from pipelines.columns.deduplication import command_identity, deduplicate, invoice_identity
from pipelines.columns.returns import names_original
from pipelines.columns.traces import traceparent
from pipelines.runtime.query import QueryContext
from services.domain.programme import Programmes
from services.domain.validation import BLANKS, LONGEST_TEXT
from services.messaging.schema_ids import FolderSchemaIds

EVENT_TYPE = T.StructType(
    [
        T.StructField("CustomerCardNo", T.StringType()),
        T.StructField("append_time", T.LongType()),
        T.StructField("event", T.BinaryType()),
        T.StructField("invoice", T.StringType()),
        T.StructField("original", T.StringType()),
        T.StructField("traceparent", T.StringType()),
    ]
)
"""An event: the card, the append time in milliseconds, and a framed Purchase or LoyaltyCommand (schemas/ids.json).

``CustomerCardNo`` is null for a return without a card. ``invoice`` is an invoice number for the index of invoices,
which adds it, or deletes it if ``event`` is null. ``original`` is the number that a return names. Both are null for
other events. ``traceparent`` is the trace of the record, null if it has no sampled trace.
"""

_POSITION = ("topic", "partition", "offset")


def unique_events(
    invoices: DataFrame,
    commands: DataFrame,
    programmes: Programmes,
    context: QueryContext,
    remembered: DataFrame | None = None,
) -> DataFrame:
    """Checked invoices and commands in. Out: each event once, in the columns of EVENT_TYPE, topic, partition, offset.

    The last three are the position of the record with the event.

    Args:
        remembered: see ``deduplicate``.
    """
    unique = deduplicate(events_with_duplicates(invoices, commands, programmes), context, remembered)
    return unique.where(F.col("found").isNotNull()).select("found.*")


def events_with_duplicates(invoices: DataFrame, commands: DataFrame, programmes: Programmes) -> DataFrame:
    """Checked invoices and commands in. Out: timestamp, identity, partition, offset and ``found`` of each record.

    ``found`` is a struct with the event. It is null if the record is not valid or its customer has no account.
    """
    return _invoice_events(invoices, programmes).union(_command_events(commands))


def _invoice_events(invoices: DataFrame, programmes: Programmes) -> DataFrame:
    types = sorted({customer_type for version in programmes.versions for customer_type in version.customer_types})
    invoice = F.col("invoice")
    given = invoice.getField("CustomerCardNo")
    card = F.when(F.btrim(given, F.lit(BLANKS)) != "", given)
    # A return takes points back with any card, and also from a customer who has left the programme.
    earns = F.upper(invoice.getField("CustomerType")).isin(types) & card.isNotNull()
    is_event = F.col("reason").isNull() & (earns | names_original(invoice))
    lines = F.transform(invoice.getField("InvoiceLineItems"), lambda item: _fields(item, "ItemCode", "TotalValue"))
    purchase = F.struct(
        *(invoice.getField(name).alias(name) for name in schemas.field_names("Purchase") if name != "InvoiceLineItems"),
        F.coalesce(lines, F.array()).alias("InvoiceLineItems"),
    )
    number = F.when(earns, invoice.getField("InvoiceNumber"))
    named = invoice.getField("OriginalInvoiceNumber")
    # No valid invoice has a longer number.
    original = F.when(names_original(invoice) & (F.length(named) <= LONGEST_TEXT), named)
    event = _encode(purchase, "Purchase")
    return _rows(invoices, invoice_identity(), is_event, card, event, number, original)


def _command_events(commands: DataFrame) -> DataFrame:
    forgets = F.col("command.Kind") == "forget"
    event = F.when(~forgets, _encode(F.col("command"), "LoyaltyCommand"))
    number, no_original = F.when(forgets, F.col("command.Invoice.InvoiceNumber")), F.lit(None).cast("string")
    is_event, card = F.col("reason").isNull(), F.col("command.CustomerCardNo")
    return _rows(commands, command_identity(), is_event, card, event, number, no_original)


def _rows(records: DataFrame, identity: Column, is_event: Column, *fields: Column) -> DataFrame:
    """Args: fields: CustomerCardNo, event, invoice, original."""
    # Records without an event stay, because a later record with the same number is a duplicate of them. A filter would
    # also be slow. The optimizer would move it before the decoding, and decode each invoice once for each of its
    # fields.
    card, event, invoice, original = fields
    values = (card, F.unix_millis("timestamp"), event, invoice, original, traceparent())
    named = (value.alias(name) for value, name in zip(values, EVENT_TYPE.names, strict=True))
    row = F.struct(*named, *_POSITION)
    found = F.when(is_event, row).alias("found")
    return records.select("timestamp", identity.alias("identity"), "partition", "offset", found)


def _encode(record: Column, name: str) -> Column:
    return avro.encode_as(record, name, FolderSchemaIds().id_of(name))


def _fields(struct: Column, *names: str) -> Column:
    return F.struct(*(struct.getField(name).alias(name) for name in names))
