"""The sales query: what each store sells in each minute, as a compacted changelog that the API serves by window."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import schemas
from pipelines.columns import avro
from pipelines.columns.repeats import first_of_each, invoice_identity
from schemas.topics import STORE_SALES
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings

_AMOUNT = "decimal(18,2)"


def sales_by_minute(invoices: DataFrame, settings: Settings) -> DataFrame:
    """Checked invoices in; rows of StoreSales out, one for each window that a micro-batch changes.

    The minute is the broker's, as a till's clock may be years off. Every valid invoice counts once.
    """
    amount = F.col("invoice.TotalAmount").cast(_AMOUNT)
    sale = F.struct(F.col("invoice.StoreID").alias("StoreID"), amount.alias("amount"))
    # Not a filter, for the reason given in loyalty.purchases.
    sales_of_invoice = F.when(F.col("reason").isNull(), F.array(sale))
    rows = invoices.select("timestamp", invoice_identity().alias("identity"), sales_of_invoice.alias("sales"))
    once = first_of_each(rows, settings).select("timestamp", F.explode("sales").alias("sold"))
    window = F.window("timestamp", "1 minute").alias("window")
    return (
        once.groupBy(F.col("sold.StoreID").alias("StoreID"), window)
        .agg(
            F.count("*").alias("Count"),
            F.sum("sold.amount").alias("Sum"),
            F.min("sold.amount").alias("Minimum"),
            F.max("sold.amount").alias("Maximum"),
            F.unix_millis(F.max("timestamp")).alias("UpdatedTime"),
        )
        .withColumns(
            {
                "WindowStart": F.unix_millis("window.start"),
                "WindowEnd": F.unix_millis("window.end"),
                # Each change of a window adds invoices to it.
                "Sequence": F.col("Count"),
            }
        )
        .select(*schemas.field_names("StoreSales"))
    )


def sales(invoices: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Checked invoices in, records for the Kafka sink out: topic, key, value, headers."""
    key = F.concat_ws("@", "StoreID", "WindowStart")
    return sales_by_minute(invoices, settings).select(
        F.lit(settings.name_of(STORE_SALES)).alias("topic"),
        key.cast("binary").alias("key"),
        avro.encode(F.struct(*schemas.field_names("StoreSales")), STORE_SALES, ids).alias("value"),
        avro.cloud_event(F.concat_ws("#", key, "Sequence"), str(STORE_SALES.value)).alias("headers"),
    )
