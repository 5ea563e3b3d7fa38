"""Finds the invoices that the loyalty query has skipped, because it did not know the ids of their schemas.

The fan-out query writes the dead letters of invoices. It can learn an id before it reads such an invoice, and then it
accepts the invoice. Without a dead letter nobody could replay the invoice, and its points would be lost.
"""

from collections.abc import Collection, Mapping
from contextlib import closing

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.checkpoints.reader import CheckpointReader
from pipelines.queries.branches import dead_letters
from pipelines.sinks.kafka import write_batch
from pipelines.sources.kafka import read_batch
from schemas.topics import POS_INVOICES, Topic
from services.messaging.avro import header
from services.messaging.clients import consumer
from services.messaging.schema_ids import UnknownSchemaIdError
from services.messaging.topic_reader import watermarks_of
from services.settings import Settings


def write_skipped_invoices(
    spark: SparkSession, checkpoint: str, settings: Settings, new: Mapping[Topic, Collection[int]]
) -> None:
    """Write a dead letter for each invoice that the query has read, and that has one of these new schema ids.

    The fan-out query may have written the same dead letters. Their readers ignore duplicates.
    """
    if POS_INVOICES in new:
        records = _read_invoices(spark, checkpoint, settings).withColumn("reason", _reason_of_ids(new[POS_INVOICES]))
        write_batch(dead_letters(records, settings), settings)


def _read_invoices(spark: SparkSession, checkpoint: str, settings: Settings) -> DataFrame:
    """The invoices before the position of the checkpoint."""
    topic = settings.name_of(POS_INVOICES)
    with closing(consumer(settings, "loyalty-pipeline")) as client:
        watermarks = watermarks_of(client, topic)
    positions = CheckpointReader(spark, checkpoint).positions().get(topic, {})
    begins = {partition: begin for partition, (begin, _) in watermarks.items()}
    ends = {each: min(end, max(begin, positions.get(each, begin))) for each, (begin, end) in watermarks.items()}
    return read_batch(spark, POS_INVOICES, settings, begins, ends)


def _reason_of_ids(ids: Collection[int]) -> Column:
    """The reason of a record that has one of these schema ids, as if the query did not know the id. Otherwise null."""
    return F.coalesce(
        *(F.when(F.startswith("value", F.lit(header(each))), str(UnknownSchemaIdError(each))) for each in ids)
    )
