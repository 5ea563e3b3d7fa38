"""The export query: writes hadoop records to Parquet or Delta, each record once, one folder for each date."""

import time
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import schemas
from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.columns.decoding import judge, read_bodies
from pipelines.columns.observations import DEAD_LETTER_ROWS, ROWS
from pipelines.deduplication.stream import deduplicate, invalid_identity, longest_memory, record_position
from pipelines.queries.branches import dead_letters
from pipelines.runtime.query import Query, QueryContext
from pipelines.sinks import kafka
from pipelines.sinks.delta import DeltaSink, is_table
from pipelines.sinks.foreach_batch import write_each_batch
from pipelines.sinks.parquet import ParquetSink, has_rows, remove_staging_folders, require_keys
from schemas.topics import HADOOP
from services.domain.formats import FIRST_TIME, LAST_TIME
from services.settings import Settings

_CHECKPOINT = "_checkpoint"
_KEY = "LineID"
"""The column of the files with the id of the record on hadoop: ``InvoiceNumber#line``."""
_PARQUET_KEY = {_KEY: "STRING"}
_ORDER = ("StoreID", "CreatedTime")
_UNDATED, _UNDATED_NOW = "date=__HIVE_DEFAULT_PARTITION__", "date=0001-01-01"
"""The folder of rows without a usable date: the name in release 0.1, which pandas cannot read, and the name now."""


def _export(context: QueryContext) -> DataStreamWriter:
    sink = _open_sink(context.spark, context.settings)
    # ``reason`` is null, unless another program has written to the topic.
    judged = judge(context.read(HADOOP), HADOOP, context.ids)
    rows = judged.withColumn("identity", _line_identity()).select(
        *("timestamp", "identity", "key", "topic", "partition", "offset", "reason", "body"),
        F.col("identity").alias(_KEY),
        # Only a dead letter needs them.
        *(F.when(F.col("reason").isNotNull(), F.col(name)).alias(name) for name in ("value", "headers")),
    )
    unique = deduplicate(rows, context)
    lines = read_bodies(unique, HADOOP, context.ids, into="record")
    counted = lines.observe(DEAD_LETTER_ROWS, F.count("reason").alias(ROWS))
    return write_each_batch(counted, partial(_write, context, sink))


def _open_sink(spark: SparkSession, settings: Settings) -> DeltaSink | ParquetSink:
    _require_format(spark, settings)
    directory, checkpoint = settings.export_dir, EXPORT.checkpoint(settings)
    # A later copy of a line is dropped for this time, also if it comes from a new checkpoint of the fan-out.
    memory = longest_memory(settings)
    sink = (
        DeltaSink(spark, directory, checkpoint, _KEY, memory)
        if settings.export_format == "delta"
        else ParquetSink(spark, directory, checkpoint, _PARQUET_KEY, memory)
    )
    _require_newest(spark, checkpoint, sink)
    # The checks come first, because the next steps change files.
    if isinstance(sink, ParquetSink):
        remove_staging_folders(spark, directory)
        move_undated(spark, directory)
    return sink


def _require_format(spark: SparkSession, settings: Settings) -> None:
    """Raise CheckpointMismatchError if the folder has files of the other format."""
    directory = settings.export_dir
    is_delta = is_table(spark, directory)
    if is_delta and settings.export_format != "delta":
        raise CheckpointMismatchError(
            f"{directory} is a Delta table: set LOYALTY_EXPORT_FORMAT=delta, or choose another LOYALTY_EXPORT_DIR"
        )
    if settings.export_format == "delta" and not is_delta and has_rows(spark, directory):
        raise CheckpointMismatchError(
            f"{directory} has Parquet files that are not a Delta table: set LOYALTY_EXPORT_FORMAT=parquet, or choose "
            "another LOYALTY_EXPORT_DIR"
        )


def _require_newest(spark: SparkSession, checkpoint: str, sink: DeltaSink | ParquetSink) -> None:
    """Raise CheckpointMismatchError if a later checkpoint has written files, and somebody has restored an older copy.

    Delta would skip new micro-batches whose numbers the table has. Parquet would have rows twice. After a crash, the
    files can have a micro-batch that is not committed. But Spark plans it in the checkpoint before the sink writes.
    """
    planned = CheckpointReader(spark, checkpoint).batches("offsets")
    if planned and (newest := sink.newest_batch()) > planned[-1]:
        raise CheckpointMismatchError(
            f"{checkpoint} is older than the files beside it: it ends with micro-batch {planned[-1]}, and the files "
            f"have {newest}. Put back the newest checkpoint. If it is lost, run `loyalty export backfill`"
        )


def _line_identity() -> Column:
    """The CloudEvents id. The fan-out's sink may repeat a record after a crash, with the same id.

    A record of another program can have an id that is not UTF-8, which pandas cannot read.
    """
    event_ids = F.filter("headers", lambda header: header.getField("key") == "ce_id")
    event_id = F.try_validate_utf8(F.get(event_ids, F.lit(0)).getField("value").cast("string"))
    return F.when(F.col("reason").isNull(), F.coalesce(event_id, record_position())).otherwise(invalid_identity())


def _write(context: QueryContext, sink: DeltaSink | ParquetSink, batch: DataFrame, batch_id: int) -> None:
    """Write the lines of a micro-batch to the files and its invalid records to the dead letters."""
    batch.persist()
    try:
        invalid = batch.where(F.col("reason").isNotNull())
        kafka.write_batch(dead_letters(invalid, context.settings), context.settings)
        rows = batch.where(F.col("reason").isNull()).select(
            *(F.col(f"record.{name}") for name in schemas.field_names("HadoopRecord")),
            *_date(F.col("record.CreatedTime")),
            "timestamp",
            _KEY,
        )
        sink.append(rows, batch_id, *_ORDER)
    finally:
        # A query can start again in the same process.
        batch.unpersist()


def _date(created_time: Column) -> tuple[Column, Column]:
    """DateSource and date (in UTC).

    The date is from the till's clock. If that shows no year from 1 to 9999, the date is from the append time.
    """
    is_usable = F.coalesce(created_time.between(FIRST_TIME, LAST_TIME), F.lit(False))
    moment = F.when(is_usable, F.timestamp_millis(created_time)).otherwise(F.col("timestamp"))
    source = F.when(is_usable, F.lit("till")).otherwise(F.lit("broker"))
    return source.alias("DateSource"), F.to_date(moment).alias("date")


def move_undated(spark: SparkSession, directory: str) -> None:
    """Move the files of undated rows to the folder of the date that such rows have now. It can already have rows.

    Delete the rows of an unfinished micro-batch, because it will write them to the new folder.
    """
    files = Files(spark, directory)
    committed = CheckpointReader(spark, f"{directory}/{_CHECKPOINT}").batches()
    for batch in files.names(_UNDATED):
        if committed and int(batch.removeprefix("batch=")) <= committed[-1]:
            for name in files.names(f"{_UNDATED}/{batch}"):
                # Both folders can have a file of this micro-batch with the same name.
                files.rename(f"{_UNDATED}/{batch}/{name}", f"{_UNDATED_NOW}/{batch}/undated-{name}")
    files.delete(_UNDATED)


EXPORT = Query(
    "export",
    [HADOOP],
    _export,
    # The checkpoint is in the folder of the files, because each needs the other. Its name starts with an underscore, so
    # readers of Parquet ignore it.
    lambda settings: f"{settings.export_dir}/{_CHECKPOINT}",
    longest_wait=lambda settings: settings.export_interval,
)


def forget_progress(spark: SparkSession, settings: Settings) -> None:
    """Let the next start of the export read its topic from the beginning, and add only the rows that its files lack.

    Raises CheckpointMismatchError if the files do not say which records they have, or are of the other format.
    """
    _require_format(spark, settings)
    if settings.export_format != "delta":
        require_keys(spark, settings.export_dir, _PARQUET_KEY)
    checkpoint = EXPORT.checkpoint(settings)
    reader = CheckpointReader(spark, checkpoint)
    if reader.exists:
        reader.rename(f"{checkpoint}-{int(time.time())}")
