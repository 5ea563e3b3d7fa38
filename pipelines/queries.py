"""The queries of the pipeline, as data: what each reads, does and writes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines import export, fan_out, invoices, loyalty, sales
from pipelines.checkpoints import CheckpointMismatchError, claim, is_new
from pipelines.sinks import stream_to_kafka
from schemas.topics import HADOOP, LOYALTY_BALANCES, POS_INVOICES, Topic
from services.messaging.administration import is_empty, longest_stay
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings


class RepeatHorizonError(RuntimeError):
    """Records stay in a topic for longer than repeats are remembered."""


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query.

    Attributes:
        writer: takes the records of the source topic and returns the stream writer behind the whole query.
        checkpoint: its folder, given the settings.
        changelog: whose sequences go on from the checkpoint; with a new one they would begin again, and be ignored.
        interval: shortest time between the starts of two micro-batches.
    """

    name: str
    source: Topic
    writer: Callable[[DataFrame, SchemaIds, Settings], DataStreamWriter]
    checkpoint: Callable[[Settings], str]
    changelog: Topic | None = None
    interval: Callable[[Settings], timedelta] = lambda settings: settings.trigger_interval

    def start(self, spark: SparkSession, ids: SchemaIds, settings: Settings, *, available_now: bool) -> StreamingQuery:
        """Start, or go on where the checkpoint stands; with ``available_now`` end once what is there has been read.

        Raises:
            CheckpointMismatchError: the settings do not fit the checkpoint.
            RepeatHorizonError, TillTimeError: records would be dropped as late.
        """
        _check_repeat_horizon(self.source, settings)
        checkpoint = self.checkpoint(settings)
        if self.changelog and is_new(spark, checkpoint) and not is_empty(self.changelog, settings):
            raise CheckpointMismatchError(
                f"{checkpoint} is new, but {settings.name_of(self.changelog)} goes on from another: its readers would "
                "ignore every balance of this one. Restore that checkpoint, or delete the topic too"
            )
        claim(spark, checkpoint, self._made_with(settings))
        writer = self.writer(invoices.read_topic(spark, self.source, settings), ids, settings)
        writer = writer.queryName(self.name).option("checkpointLocation", checkpoint)
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self.interval(settings).total_seconds():.3f} seconds").start()

    def _made_with(self, settings: Settings) -> dict[str, str]:
        return {
            "query": self.name,
            "source": settings.name_of(self.source),
            "shuffle_partitions": str(settings.shuffle_partitions),
        }


def _check_repeat_horizon(topic: Topic, settings: Settings) -> None:
    """Spark drops rows that are older than its watermark: with this horizon, none that the topic still holds can be."""
    stay = longest_stay(topic, settings)
    if stay is None or stay > settings.repeat_horizon:
        raise RepeatHorizonError(
            f"records stay in {settings.name_of(topic)} for {stay or 'ever'}, but LOYALTY_REPEAT_HORIZON is "
            f"{settings.repeat_horizon}: old invoices would be lost as late, and their repeats counted twice"
        )


def _fan_out(records: DataFrame, ids: SchemaIds, settings: Settings) -> DataStreamWriter:
    return stream_to_kafka(fan_out.fan_out(invoices.checked(records, ids), ids, settings), settings)


def _loyalty(records: DataFrame, ids: SchemaIds, settings: Settings) -> DataStreamWriter:
    return stream_to_kafka(loyalty.loyalty(invoices.checked(records, ids), ids, settings), settings)


def _sales(records: DataFrame, ids: SchemaIds, settings: Settings) -> DataStreamWriter:
    return stream_to_kafka(sales.sales(invoices.checked(records, ids), ids, settings), settings).outputMode("update")


def _export(records: DataFrame, ids: SchemaIds, settings: Settings) -> DataStreamWriter:
    write = export.write_batch(settings.export_dir, ids, settings)
    return export.decoded(records, ids, settings).writeStream.foreachBatch(write)


FAN_OUT = Query("fan-out", POS_INVOICES, _fan_out, lambda settings: f"{settings.checkpoint_dir}/fan-out")
LOYALTY = Query(
    "loyalty", POS_INVOICES, _loyalty, lambda settings: f"{settings.checkpoint_dir}/loyalty", LOYALTY_BALANCES
)
SALES = Query("sales", POS_INVOICES, _sales, lambda settings: f"{settings.checkpoint_dir}/sales")
# Beside its files (and unseen by readers of Parquet, as the underscore says): neither is of use without the other.
EXPORT = Query(
    "export",
    HADOOP,
    _export,
    lambda settings: f"{settings.export_dir}/_checkpoint",
    interval=lambda settings: settings.export_interval,
)

QUERIES = {query.name: query for query in (FAN_OUT, LOYALTY, SALES, EXPORT)}
