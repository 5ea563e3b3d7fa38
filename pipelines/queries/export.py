"""The export query: writes hadoop records to Parquet, each record once, one folder for each date."""

from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import schemas
from pipelines.checkpoints.files import Files
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.columns import avro
from pipelines.columns.deduplication import deduplicate, record_position
from pipelines.queries.branches import DEAD_LETTERS, branch_records
from pipelines.runtime.query import Query, QueryContext
from pipelines.sinks import kafka
from pipelines.sinks.foreach_batch import write_each_batch
from pipelines.sinks.parquet import overwrite_folders, remove_staging_folders
from schemas.topics import HADOOP
from services.domain.formats import FIRST_TIME, LAST_TIME
from services.messaging.schema_ids import SchemaIds

_CHECKPOINT = "_checkpoint"
_UNDATED, _UNDATED_NOW = "date=__HIVE_DEFAULT_PARTITION__", "date=0001-01-01"
"""The folder in which release 0.1 put rows without a usable date, and its name now. pandas cannot read the former."""


def _export(context: QueryContext) -> DataStreamWriter:
    remove_staging_folders(context.spark, context.settings.export_dir)
    rename_undated(context.spark, context.settings.export_dir)
    records = context.read(HADOOP)
    lines = _check_lines(records, context.ids)
    rows = lines.withColumn("identity", _line_identity()).select(
        *("timestamp", "identity", "key", "topic", "partition", "offset", "record", "reason"),
        # Only a dead letter needs them.
        *(F.when(F.col("reason").isNotNull(), F.col(name)).alias(name) for name in ("value", "headers")),
    )
    unique = deduplicate(rows, context)
    return write_each_batch(unique, partial(_write, context))


def _check_lines(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``record`` (struct HadoopRecord) and ``reason``, which is null unless a stranger wrote something else."""
    record, unknown = avro.decode(F.col("value"), HADOOP, ids)
    corrupt = avro.unreadable(F.col("record"), HADOOP)
    return records.withColumns({"record": record, "unknown": unknown}).withColumn(
        "reason", F.coalesce("unknown", corrupt)
    )


def _line_identity() -> Column:
    """The CloudEvents id. The fan-out's sink may repeat a record after a crash, with the same id."""
    event_ids = F.filter("headers", lambda header: header.getField("key") == "ce_id")
    event_id = F.get(event_ids, F.lit(0)).getField("value").cast("string")
    return F.when(F.col("reason").isNull(), F.coalesce(event_id, record_position())).otherwise(record_position())


def _write(context: QueryContext, batch: DataFrame, batch_id: int) -> None:
    """Write the lines of a micro-batch to Parquet and its invalid records to the dead letters."""
    batch.persist()
    invalid = batch.where(F.col("reason").isNotNull())
    kafka.write_batch(branch_records([DEAD_LETTERS], invalid, context.ids, context.settings), context.settings)
    rows = batch.where(F.col("reason").isNull()).select(
        *(F.col(f"record.{name}") for name in schemas.field_names("HadoopRecord")),
        *_date(F.col("record.CreatedTime")),
        F.lit(batch_id).alias("batch"),
    )
    overwrite_folders(rows, context.settings.export_dir, "StoreID", "CreatedTime")
    batch.unpersist()


def _date(created_time: Column) -> tuple[Column, Column]:
    """DateSource and date (in UTC).

    The clock of the till gives the date. If it shows no year from 1 to 9999, the broker's append time does.
    """
    is_usable = F.coalesce(created_time.between(FIRST_TIME, LAST_TIME), F.lit(False))
    time = F.when(is_usable, F.timestamp_millis(created_time)).otherwise(F.col("timestamp"))
    source = F.when(is_usable, F.lit("till")).otherwise(F.lit("broker"))
    return source.alias("DateSource"), F.to_date(time).alias("date")


def rename_undated(spark: SparkSession, directory: str) -> None:
    """Rename the folder of undated rows. Without the rows of an unfinished micro-batch, which now writes elsewhere."""
    files = Files(spark, directory)
    committed = CheckpointReader(spark, f"{directory}/{_CHECKPOINT}").batches()
    for name in files.names(_UNDATED):
        if not committed or int(name.removeprefix("batch=")) > committed[-1]:
            files.delete(f"{_UNDATED}/{name}")
    if files.exists(_UNDATED):
        files.rename(_UNDATED, _UNDATED_NOW)


EXPORT = Query(
    "export",
    [HADOOP],
    _export,
    # The checkpoint is beside the files, because neither is of use without the other. Readers of Parquet ignore it,
    # because its name starts with an underscore.
    lambda settings: f"{settings.export_dir}/{_CHECKPOINT}",
    longest_wait=lambda settings: settings.export_interval,
)
