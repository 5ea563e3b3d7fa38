"""pos-invoices as a DataFrame: read, decoded and checked, every record of the topic exactly one row."""

from datetime import timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.columns import avro
from pipelines.columns.validation import first_violation
from pipelines.sources.connection import kafka_connection
from schemas.topics import POS_INVOICES, Topic
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings


def read_topic(
    spark: SparkSession,
    topic: Topic,
    settings: Settings,
    starting_offsets: str = "earliest",
    longest_wait: timedelta = timedelta(0),
) -> DataFrame:
    """The records of a topic: key, value, topic, partition, offset, timestamp, headers.

    A query fails rather than go on where retention has overtaken it, unless the settings accept the loss.

    Args:
        starting_offsets: of a new checkpoint; the topic's beginning, or JSON as Spark's Kafka source has it.
        longest_wait: how long records may wait until there are enough for a full micro-batch.
    """
    limits = {"maxOffsetsPerTrigger": str(settings.max_offsets_per_trigger)}
    if longest_wait:
        limits["minOffsetsPerTrigger"] = limits["maxOffsetsPerTrigger"]
        limits["maxTriggerDelay"] = f"{longest_wait // timedelta(milliseconds=1)}ms"
    return (
        spark.readStream.format("kafka")
        .options(**kafka_connection(settings))
        .option("subscribe", settings.name_of(topic))
        .option("startingOffsets", starting_offsets)
        .option("failOnDataLoss", str(not settings.accept_data_loss).lower())
        .option("includeHeaders", "true")
        .options(**limits)
        .load()
    )


def checked(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Adds ``invoice`` (struct PosInvoice, null where undecodable) and ``reason`` (null where the invoice is valid)."""
    value, is_json = F.col("value"), F.col("is_json")
    from_avro, unknown = avro.decode(value, POS_INVOICES, ids)
    from_json = F.when(is_json, avro.decode_json(value, POS_INVOICES))
    undecodable = (
        F.when(value.isNull(), F.lit("no value"))
        .when(is_json & ~_is_json_invoice(F.col("json")), F.lit("not a JSON PosInvoice"))
        .when(~is_json & F.col("unknown").isNotNull(), F.col("unknown"))
        .when(~is_json & ~_is_avro_invoice(F.col("avro")), F.lit("not an Avro PosInvoice of its schema id"))
    )
    parsed = F.when(is_json, F.col("json")).otherwise(F.col("avro"))
    return (
        records.withColumn("is_json", F.coalesce(avro.is_json(value), F.lit(False)))
        # One step for parsing and one for what is made of it: in a single step Spark would parse once for every use.
        # And a step for each format: Spark compiles no code for JSON, and in one with it none for Avro, which then
        # loads Hadoop's whole configuration for every known schema, in every task.
        .withColumns({"avro": from_avro, "unknown": unknown})
        .withColumn("json", from_json)
        .withColumn("undecodable", undecodable)
        .withColumn("invoice", F.when(F.col("undecodable").isNull(), parsed.dropFields(avro.MARKER)))
        .withColumn("reason", F.coalesce("undecodable", first_violation(F.col("invoice"))))
        .drop("is_json", "avro", "json", "unknown", "undecodable")
    )


def _is_json_invoice(parsed: Column) -> Column:
    # JSON may have null among the line items, the contract has no word for it.
    has_null_item = F.exists(parsed.getField("InvoiceLineItems"), lambda item: item.isNull())
    is_readable = parsed.getField(avro.MARKER).isNull() & ~F.coalesce(has_null_item, F.lit(False))
    return is_readable & avro.is_one_json_object(F.col("value"))


def _is_avro_invoice(parsed: Column) -> Column:
    return parsed.getField(avro.MARKER).isNotNull() & avro.texts_are_utf8(parsed, avro.record_type(POS_INVOICES))
