"""The loyalty query, the single writer of accounts: invoices and commands, repartitioned by customer, in order.

Invoices arrive keyed by store and one customer shops in many, so the accounts need the shuffle. What becomes of an
event is the domain's business; pipelines.accounts only carries accounts in and out.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import schemas
from pipelines.accounts.operator import EVENT_TYPE, WRITTEN, account_records
from pipelines.columns import avro
from pipelines.columns.repeats import command_identity, first_of_each, invoice_identity
from pipelines.queries.branches import DEAD_LETTERS
from pipelines.queries.fan_out import through
from pipelines.sources.clock import ticks
from services.domain.programme import Programmes
from services.domain.validation import BLANKS
from services.messaging.schema_ids import FolderSchemaIds, SchemaIds
from services.settings import Settings

_PLACE = ("topic", "partition", "offset")


def loyalty(
    invoices: DataFrame,
    commands: DataFrame,
    programmes: Programmes,
    ids: SchemaIds,
    settings: Settings,
    initial: DataFrame | None = None,
) -> DataFrame:
    """Checked invoices and commands in, records for the Kafka sink out: topic, key, value, headers.

    Args:
        initial: accounts to begin with, as ``account_records`` takes them.
    """
    once = events(invoices, commands, programmes, settings).select(*EVENT_TYPE.names)
    clock = ticks(invoices.sparkSession, EVENT_TYPE, settings)
    records = account_records(once.union(clock), programmes, ids, settings, initial)
    dead_letters = through([DEAD_LETTERS], commands, ids, settings)
    return outgoing(records, settings).union(dead_letters)


def events(invoices: DataFrame, commands: DataFrame, programmes: Programmes, settings: Settings) -> DataFrame:
    """Checked invoices and commands in; what happens to accounts out, each event once.

    Columns: those of EVENT_TYPE, and topic, partition and offset of the record that it came in.
    """
    once = first_of_each(with_repeats(invoices, commands, programmes), settings)
    return once.select(F.explode("events").alias("event")).select("event.*")


def with_repeats(invoices: DataFrame, commands: DataFrame, programmes: Programmes) -> DataFrame:
    """Checked invoices and commands in; every record of both out: timestamp, identity, and in an array the event.

    ``events`` is null where a record is none: not valid, or of customers without an account.
    """
    return _of_invoices(invoices, programmes).union(_of_commands(commands))


def _of_invoices(invoices: DataFrame, programmes: Programmes) -> DataFrame:
    types = sorted({customer_type for version in programmes.versions for customer_type in version.customer_types})
    invoice = F.col("invoice")
    has_card = F.btrim(invoice.getField("CustomerCardNo"), F.lit(BLANKS)) != ""
    # A return takes points back also from who has left the programme since: the account knows what it earned.
    is_return = invoice.getField("OriginalInvoiceNumber").isNotNull()
    takes_part = F.upper(invoice.getField("CustomerType")).isin(types) | is_return
    counts = F.col("reason").isNull() & takes_part & has_card
    lines = F.transform(invoice.getField("InvoiceLineItems"), lambda item: _fields(item, "ItemCode", "TotalValue"))
    purchase = F.struct(
        *(invoice.getField(name).alias(name) for name in schemas.field_names("Purchase") if name != "InvoiceLineItems"),
        F.coalesce(lines, F.array()).alias("InvoiceLineItems"),
    )
    return _rows(
        invoices, invoice_identity(), counts, invoice.getField("CustomerCardNo"), _framed(purchase, "Purchase")
    )


def _of_commands(commands: DataFrame) -> DataFrame:
    card, event = F.col("command.CustomerCardNo"), _framed(F.col("command"), "LoyaltyCommand")
    return _rows(commands, command_identity(), F.col("reason").isNull(), card, event)


def _rows(records: DataFrame, identity: Column, counts: Column, card: Column, event: Column) -> DataFrame:
    # What does not count goes along, as its number counts too. Nor would a filter do: the optimizer would push it below
    # the decoding, and decode each invoice anew for every field that the filter looks at.
    happened = F.struct(
        card.alias("CustomerCardNo"), F.unix_millis("timestamp").alias("append_time"), event.alias("event"), *_PLACE
    )
    return records.select("timestamp", identity.alias("identity"), F.when(counts, F.array(happened)).alias("events"))


def _framed(record: Column, name: str) -> Column:
    return avro.encode_as(record, name, FolderSchemaIds().id_of(name))


def _fields(struct: Column, *names: str) -> Column:
    return F.struct(*(struct.getField(name).alias(name) for name in names))


def outgoing(records: DataFrame, settings: Settings) -> DataFrame:
    """Rows of RECORD_TYPE in, records for the Kafka sink out."""
    topic = F.col("topic")
    record_name = F.coalesce(*(F.when(topic == written.name, F.lit(str(written.value))) for written in WRITTEN))
    return records.select(
        F.concat(F.lit(settings.topic_prefix), topic).alias("topic"),
        "key",
        "value",
        avro.cloud_event(F.col("id"), record_name).alias("headers"),
    )
