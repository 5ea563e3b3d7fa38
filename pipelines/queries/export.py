"""The export query: hadoop records to Parquet, one folder a date, each record once."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import schemas
from pipelines.columns import avro
from pipelines.columns.repeats import first_of_each, place
from pipelines.queries.branches import DEAD_LETTERS
from pipelines.queries.fan_out import through
from pipelines.sinks.kafka import write_to_kafka
from schemas.topics import HADOOP
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings

ROWS_PER_FILE = 5_000_000
"""Keeps a file of this topic's rows near 128 MiB of zstd Parquet, the size that readers split work by."""


CALENDAR = (-62_135_596_800_000, 253_402_300_799_999)
"""Years 1 to 9999 in milliseconds since the epoch: what dates of Parquet's readers can be."""


def decoded(records: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Records of the hadoop topic in; each once out, with ``record`` (struct HadoopRecord) and ``reason``.

    The fan-out's sink repeats records after a crash, and their CloudEvents id tells. ``reason`` is null unless somebody
    else wrote to the topic what is no HadoopRecord.
    """
    event_ids = F.filter("headers", lambda header: header.getField("key") == "ce_id")
    event_id = F.get(event_ids, F.lit(0)).getField("value").cast("string")
    record, unknown = avro.decode(F.col("value"), HADOOP, ids)
    is_readable = F.col("record").getField(avro.MARKER).isNotNull() & avro.texts_are_utf8(
        F.col("record"), avro.record_type(HADOOP)
    )
    corrupt = F.when(~is_readable, F.lit("not an Avro HadoopRecord"))
    identity = F.when(F.col("reason").isNull(), F.coalesce(event_id, place())).otherwise(place())
    return first_of_each(
        records.withColumns({"record": record, "unknown": unknown})
        .withColumn("reason", F.coalesce("unknown", corrupt))
        .withColumn("identity", identity),
        settings,
    )


def _date(milliseconds: str) -> Column:
    """The date in UTC; null, and so Hive's default partition, where the till's clock shows no year from 1 to 9999."""
    return F.when(F.col(milliseconds).between(*CALENDAR), F.to_date(F.timestamp_millis(milliseconds)))


def write_batch(directory: str, ids: SchemaIds, settings: Settings) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch: rows to ``date=…/batch=…/`` under the directory, what is no row to the dead letters.

    A replayed batch holds the same rows and overwrites exactly the folders that its first attempt wrote, so readers
    need no metadata of Spark's to see each record once.
    """

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        write_to_kafka(through([DEAD_LETTERS], batch.where(F.col("reason").isNotNull()), ids, settings), settings)
        rows = batch.where(F.col("reason").isNull()).select(
            *(F.col(f"record.{name}") for name in schemas.field_names("HadoopRecord")),
            _date("record.CreatedTime").alias("date"),
            F.lit(batch_id).alias("batch"),
        )
        overwrite(rows, directory, "StoreID", "CreatedTime")
        batch.unpersist()

    return write


def overwrite(rows: DataFrame, directory: str, *order: str) -> None:
    """Write rows to ``date=…/batch=…/``, columns of theirs, over what is in these very folders; sorted in each file."""
    (
        rows.repartition("date")
        .sortWithinPartitions("date", *order)
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .option("compression", "zstd")
        .option("maxRecordsPerFile", ROWS_PER_FILE)
        .partitionBy("date", "batch")
        .parquet(directory)
    )
