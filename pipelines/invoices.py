"""pos-invoices as a DataFrame: read, decoded and checked, every record of the topic exactly one row."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines import wire
from pipelines.validation import first_violation
from schemas.topics import POS_INVOICES, Topic
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings


def read_topic(spark: SparkSession, topic: Topic, settings: Settings) -> DataFrame:
    """The records of a topic from its beginning: key, value, topic, partition, offset, timestamp, headers.

    A query fails rather than go on where retention has overtaken it (failOnDataLoss).
    """
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka_bootstrap_servers)
        .option("subscribe", settings.name_of(topic))
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
        .load()
    )


def checked(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Adds ``invoice`` (struct PosInvoice, null where undecodable) and ``reason`` (null where the invoice is valid)."""
    value = F.col("value")
    from_avro, unknown = wire.decode(value, POS_INVOICES, ids)
    is_json = F.col("is_json")
    marker = F.col("parsed").getField(wire.MARKER)
    # JSON may have null among the line items, the contract has no word for it.
    items = F.col("parsed").getField("InvoiceLineItems")
    has_null_item = F.coalesce(F.exists(items, lambda item: item.isNull()), F.lit(False))
    unreadable = F.when(is_json, marker.isNotNull() | has_null_item).otherwise(marker.isNull())
    undecodable = (
        F.when(value.isNull(), F.lit("no value"))
        .when(~is_json & F.col("unknown").isNotNull(), F.col("unknown"))
        .when(unreadable & is_json, F.lit("not a JSON PosInvoice"))
        .when(unreadable, F.lit("not an Avro PosInvoice of its schema id"))
    )
    return (
        records.withColumn("is_json", F.coalesce(wire.is_json(value), F.lit(False)))
        # One step for parsing and one for what is made of it: in a single step Spark would parse once for every use.
        .withColumns(
            {"parsed": F.when(is_json, wire.decode_json(value, POS_INVOICES)).otherwise(from_avro), "unknown": unknown}
        )
        .withColumn("undecodable", undecodable)
        .withColumn("invoice", F.when(F.col("undecodable").isNull(), F.col("parsed").dropFields(wire.MARKER)))
        .withColumn("reason", F.coalesce("undecodable", first_violation(F.col("invoice"))))
        .drop("is_json", "parsed", "unknown", "undecodable")
    )
