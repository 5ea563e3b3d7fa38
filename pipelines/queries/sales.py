"""The sales query: the sales of each shop in each minute, as a compacted changelog that the API serves by window."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import schemas
from pipelines.columns import avro
from pipelines.columns.decoding import check_invoices
from pipelines.columns.returns import net_amount
from pipelines.deduplication.stream import deduplicate, invoice_identity
from pipelines.runtime.query import Query, QueryContext
from pipelines.sinks.kafka import write_stream
from schemas.topics import POS_INVOICES, STORE_SALES
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings

_AMOUNT = "decimal(18,2)"


def _sales(context: QueryContext) -> DataStreamWriter:
    records = context.read(POS_INVOICES)
    invoices = check_invoices(records, context.ids)
    unique = deduplicate(_sold(invoices), context)
    windows = _sales_by_minute(unique)
    outputs = _encode(windows, context.ids, context.settings)
    return write_stream(outputs, context.settings).outputMode("update")


def _sold(invoices: DataFrame) -> DataFrame:
    """The columns timestamp, identity, partition, offset, StoreID and amount (both texts) of checked invoices.

    The texts of an invalid record are null. ``accounts.events.events_with_duplicates`` says why the record stays.
    """
    texts = {"StoreID": F.col("invoice.StoreID"), "amount": net_amount(F.col("invoice")).cast(_AMOUNT).cast("string")}
    sold = (F.when(F.col("reason").isNull(), text).alias(name) for name, text in texts.items())
    return invoices.select("timestamp", invoice_identity().alias("identity"), "partition", "offset", *sold)


def _sales_by_minute(unique: DataFrame) -> DataFrame:
    """Rows of StoreSales, one for each window that a micro-batch changes.

    The minute is that of the broker's append time, because a till's clock may be wrong by years.
    """
    window = F.window("timestamp", "1 minute").alias("window")
    return (
        unique.where(F.col("StoreID").isNotNull())
        .withColumn("amount", F.col("amount").cast(_AMOUNT))
        .groupBy("StoreID", window)
        .agg(
            F.count("*").alias("Count"),
            F.sum("amount").alias("Sum"),
            F.min("amount").alias("Minimum"),
            F.max("amount").alias("Maximum"),
            F.unix_millis(F.max("timestamp")).alias("UpdatedTime"),
        )
        .withColumns(
            {
                "WindowStart": F.unix_millis("window.start"),
                "WindowEnd": F.unix_millis("window.end"),
                # Each change of a window adds invoices, so the count is also a sequence number.
                "Sequence": F.col("Count"),
            }
        )
        .select(*schemas.field_names("StoreSales"))
    )


def _encode(windows: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Convert rows of StoreSales to records for the Kafka sink."""
    key = F.concat_ws("@", "StoreID", "WindowStart")
    return windows.select(
        F.lit(settings.name_of(STORE_SALES)).alias("topic"),
        key.cast("binary").alias("key"),
        avro.encode(F.struct(*schemas.field_names("StoreSales")), STORE_SALES, ids).alias("value"),
        avro.cloud_event(F.concat_ws("#", key, "Sequence"), STORE_SALES.value).alias("headers"),
    )


SALES = Query(
    "sales",
    [POS_INVOICES],
    _sales,
    lambda settings: f"{settings.checkpoint_dir}/sales",
    longest_wait=lambda settings: settings.sales_interval,
)
