"""Finds the invoices that the loyalty query has skipped, because it did not know the ids of their schemas.

The fan-out query writes the dead letters of invoices. It can learn an id before it reads such an invoice, and then it
accepts the invoice. Without a dead letter nobody could replay the invoice, and its points would be lost.
"""

from contextlib import closing

from pyspark.sql import DataFrame

from pipelines.checkpoints.learned_ids import reason_of_ids
from pipelines.queries.branches import dead_letters
from pipelines.runtime.query import QueryContext
from pipelines.sinks.kafka import write_batch
from pipelines.sources.kafka import read_batch
from schemas.topics import POS_INVOICES
from services.messaging.clients import consumer
from services.messaging.topic_reader import watermarks_of


def write_skipped_invoices(context: QueryContext) -> None:
    """Write a dead letter for each invoice that has a new schema id and is in a planned micro-batch.

    The fan-out query may have written the same dead letters. Their readers ignore duplicates.
    """
    if new := context.learned.new[POS_INVOICES]:
        records = _read_invoices(context).withColumn("reason", reason_of_ids(new))
        write_batch(dead_letters(records, context.settings), context.settings)


def _read_invoices(context: QueryContext) -> DataFrame:
    """The invoices in planned micro-batches."""
    settings = context.settings
    topic = settings.name_of(POS_INVOICES)
    with closing(consumer(settings, "loyalty-pipeline")) as client:
        watermarks = watermarks_of(client, topic)
    positions = context.learned.planned.get(topic, {})
    begins = {partition: begin for partition, (begin, _) in watermarks.items()}
    ends = {each: min(end, max(begin, positions.get(each, begin))) for each, (begin, end) in watermarks.items()}
    return read_batch(context.spark, POS_INVOICES, settings, begins, ends)
