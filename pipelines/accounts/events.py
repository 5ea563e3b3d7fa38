"""The events of accounts: purchases from invoices, and commands."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

import schemas
from pipelines.columns import avro
from pipelines.columns.deduplication import command_identity, deduplicate, invoice_identity
from pipelines.columns.returns import names_original
from pipelines.runtime.query import QueryContext
from services.domain.programme import Programmes
from services.domain.validation import BLANKS
from services.messaging.schema_ids import FolderSchemaIds

EVENT_TYPE = T.StructType(
    [
        T.StructField("CustomerCardNo", T.StringType()),
        T.StructField("append_time", T.LongType()),
        T.StructField("event", T.BinaryType()),
    ]
)
"""An event: the card, the append time in milliseconds, and a framed Purchase or LoyaltyCommand (schemas/ids.json)."""

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
    has_card = F.btrim(invoice.getField("CustomerCardNo"), F.lit(BLANKS)) != ""
    # A return takes points back even from a customer who has left the programme. The account knows what it earned.
    takes_part = F.upper(invoice.getField("CustomerType")).isin(types) | names_original(invoice)
    is_event = F.col("reason").isNull() & takes_part & has_card
    lines = F.transform(invoice.getField("InvoiceLineItems"), lambda item: _fields(item, "ItemCode", "TotalValue"))
    purchase = F.struct(
        *(invoice.getField(name).alias(name) for name in schemas.field_names("Purchase") if name != "InvoiceLineItems"),
        F.coalesce(lines, F.array()).alias("InvoiceLineItems"),
    )
    card = invoice.getField("CustomerCardNo")
    return _rows(invoices, invoice_identity(), is_event, card, _encode(purchase, "Purchase"))


def _command_events(commands: DataFrame) -> DataFrame:
    card, event = F.col("command.CustomerCardNo"), _encode(F.col("command"), "LoyaltyCommand")
    return _rows(commands, command_identity(), F.col("reason").isNull(), card, event)


def _rows(records: DataFrame, identity: Column, is_event: Column, card: Column, event: Column) -> DataFrame:
    # Records without an event stay, because a later record with the same number is a duplicate of them. A filter would
    # also be slow: the optimizer would move it before the decoding and decode each invoice once for each of its fields.
    row = F.struct(
        card.alias("CustomerCardNo"), F.unix_millis("timestamp").alias("append_time"), event.alias("event"), *_POSITION
    )
    found = F.when(is_event, row).alias("found")
    return records.select("timestamp", identity.alias("identity"), "partition", "offset", found)


def _encode(record: Column, name: str) -> Column:
    return avro.encode_as(record, name, FolderSchemaIds().id_of(name))


def _fields(struct: Column, *names: str) -> Column:
    return F.struct(*(struct.getField(name).alias(name) for name in names))
