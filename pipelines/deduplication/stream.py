"""The deduplication of all queries: only the first row of each identity passes."""

from datetime import timedelta

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from pipelines.columns.buckets import bucket_of, partition_keys
from pipelines.columns.observations import IDENTIFIED, ROWS, UNIQUE
from pipelines.deduplication import operator
from pipelines.deduplication.operator import RepeatFilter
from pipelines.deduplication.segments import SLICES
from pipelines.runtime.query import DEDUPLICATION, QueryContext
from services.settings import Settings


def record_position() -> Column:
    """Topic, partition and offset of a record as one text."""
    return F.concat_ws("/", "topic", "partition", "offset")


def invalid_identity() -> Column:
    """The position of an invalid record and its append time.

    A topic that was created again has other records at the same positions.
    """
    return F.concat_ws("/", record_position(), F.unix_millis("timestamp"))


def invoice_identity() -> Column:
    """The invoice number of a judged invoice, or the identity of an invalid record."""
    return F.coalesce(F.concat(F.lit("#"), "invoice_number"), invalid_identity())


def event_id() -> Column:
    """The id that an entry of the event names: the identity without its first character.

    This character distinguishes invoices (``#``) from commands (``!``).
    """
    return F.substring("identity", 2, 2**31 - 1)


def shortest_memory(settings: Settings) -> timedelta:
    """The shortest time for which a query remembers an identity, from the append time of its first record.

    A duplicate within the horizon may wait in its topic before the query reads it, but not for longer than the horizon.
    """
    return 2 * settings.repeat_horizon


def longest_memory(settings: Settings) -> timedelta:
    """The longest time for which a query remembers an identity."""
    return shortest_memory(settings) * (SLICES + 1) // SLICES


def deduplicate(rows: DataFrame, context: QueryContext, remembered: DataFrame | None = None) -> DataFrame:
    """Keep the first row of each value in the column ``identity``, and drop that column. Shuffles by it.

    The time is the broker's append time (``timestamp``) and never a till's clock. It is the watermark of the result.

    Args:
        rows: timestamp, identity, partition, offset, and more columns. They pass through Python, so they must be texts,
            binary, headers that are mostly null, or numbers that are never null. A row with a ``reason`` is invalid and
            repeats no other row.
        remembered: the identities that a new checkpoint remembers from the beginning: identity, timestamp.
    """
    horizon = f"{int(context.settings.repeat_horizon.total_seconds())} seconds"
    if DEDUPLICATION not in context.formats:
        return rows.withWatermark("timestamp", horizon).dropDuplicatesWithinWatermark(["identity"]).drop("identity")
    names = [name for name in rows.columns if name not in ("timestamp", "identity")]
    bucket = bucket_of(partition_keys(context.spark, context.settings.shuffle_partitions), F.col(operator.FIRST_HASH))
    hashed = _hashed(rows, bucket, *names).observe(IDENTIFIED, F.count("*").alias(ROWS))
    unique = hashed.groupBy("bucket").transformWithStateInPandas(
        RepeatFilter(context.name, shortest_memory(context.settings), [operator.TIME, *names]),
        hashed.select(operator.TIME, *names).schema,
        outputMode="Append",
        timeMode="None",
        initialState=None if remembered is None else _initial_state(remembered, bucket),
    )
    return (
        unique.observe(UNIQUE, F.count("*").alias(ROWS))
        .select(F.timestamp_millis(operator.TIME).alias("timestamp"), *names)
        .withWatermark("timestamp", horizon)
    )


def _initial_state(remembered: DataFrame, bucket: Column) -> GroupedData:
    position = {"partition": F.lit(0), "offset": F.lit(0).cast("long")}
    return _hashed(remembered.withColumns(position), bucket, *position).groupBy("bucket")


def _hashed(rows: DataFrame, bucket: Column, *names: str) -> DataFrame:
    """The input of the operator, with the named columns of the rows."""
    return rows.select(
        # Spark takes the hash of one column as the seed for the next. So the salt comes before the identity.
        F.xxhash64("identity").alias(operator.FIRST_HASH),
        F.xxhash64(F.lit("second"), "identity").alias(operator.SECOND_HASH),
        F.unix_millis("timestamp").alias(operator.TIME),
        *names,
    ).withColumn("bucket", bucket)
