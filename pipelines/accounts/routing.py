"""Sends each event of the loyalty query to the buckets of its card and of its invoice numbers."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.accounts.invoice_index import BOUGHT, FORGOTTEN, RETURNED
from pipelines.accounts.operator import AccountOperator
from pipelines.accounts.records import RECORD_TYPE
from pipelines.columns.buckets import bucket_of, partition_keys
from services.settings import Settings

_EVENT = ("CustomerCardNo", "append_time", "event", "traceparent")


def process_events(
    events: DataFrame, clock: DataFrame, operator: AccountOperator, settings: Settings, initial: DataFrame | None
) -> DataFrame:
    """Process events and timers. Returns the records to write, as rows of RECORD_TYPE.

    An event goes to the bucket of its card, and to the buckets of the numbers that it buys, forgets, or returns. A row
    of the clock goes to every bucket.

    Args:
        events: unique events, as rows of EVENT_TYPE.
        clock: the rows of ``clock_rows``.
        initial: ``Seed.state`` of a new checkpoint. Spark reads it in the first micro-batch only.
    """
    # The number of buckets is fixed for the life of a checkpoint, because ``shuffle_partitions`` and the layout are.
    count = operator.layout.buckets * settings.shuffle_partitions
    keys = [*range(count)] if operator.layout.buckets > 1 else partition_keys(events.sparkSession, count)
    bucket = bucket_of(keys, F.xxhash64("key"))
    initial_state = None
    if initial is not None:
        keyed = initial.withColumn("key", F.coalesce("CustomerCardNo", "invoice"))
        initial_state = keyed.withColumn("bucket", bucket).drop("key").groupBy("bucket")
    no_news = (F.lit(None).cast("string").alias(name) for name in ("news", "number"))
    every_bucket = F.explode(F.array(*map(F.lit, keys))).alias("bucket")
    ticks = clock.select(*_EVENT, *no_news, every_bucket)
    return (
        _routed(events)
        .select(*_EVENT, "news", "number", bucket.alias("bucket"))
        .union(ticks)
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=operator,
            outputStructType=RECORD_TYPE,
            outputMode="Append",
            timeMode="ProcessingTime",
            initialState=initial_state,
        )
    )


def _routed(events: DataFrame) -> DataFrame:
    """One row for each card and each number that an event concerns, with ``key``, ``news`` and ``number``.

    In the row for the account of the card, ``news`` and ``number`` are null.
    """
    has_event = F.col("event").isNotNull()
    routes = {
        None: F.when(has_event, F.col("CustomerCardNo")),
        BOUGHT: F.when(has_event, F.col("invoice")),
        FORGOTTEN: F.when(~has_event, F.col("invoice")),
        RETURNED: F.col("original"),
    }
    route = F.array(
        *(
            F.struct(F.lit(news).cast("string").alias("news"), key.cast("string").alias("key"))
            for news, key in routes.items()
        )
    )
    return (
        events.withColumn("route", F.explode(route))
        .select("*", "route.*")
        .where(F.col("key").isNotNull())
        .withColumn("number", F.when(F.col("news").isNotNull(), F.col("key")))
        # For a purchase or an erasure, the index of invoices needs only the number and the card.
        .withColumn("event", F.when(F.coalesce(F.col("news") == RETURNED, F.lit(True)), F.col("event")))
    )
