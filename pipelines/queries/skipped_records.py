"""Finds the records that a query has skipped, because it did not know the ids of their schemas.

Queries learn ids at different times. Another query may have accepted such a record meanwhile. Without a repair, the
points of the record, or its event in the archive, would be lost.
"""

from collections.abc import Callable, Iterable
from contextlib import closing

import structlog
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.checkpoints.learned_ids import LearnedIds
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.queries.branches import dead_letters
from pipelines.runtime.query import QueryContext
from pipelines.sinks.kafka import write_batch
from pipelines.sources.kafka import read_batch
from schemas.topics import POS_INVOICES, Topic
from services.messaging.avro import header
from services.messaging.clients import consumer
from services.messaging.schema_ids import UnknownSchemaIdError
from services.messaging.topic_reader import watermarks_of

log = structlog.get_logger()


def write_skipped_invoices(context: QueryContext, checkpoint: str, learned: LearnedIds) -> None:
    """Write a dead letter for each invoice that the query has read, and that has a new schema id.

    The fan-out query writes the dead letters of invoices. It can learn an id before it reads such an invoice, and then
    it accepts the invoice. Without a dead letter nobody could replay the invoice, and its points would be lost. The
    fan-out query may have written the same dead letters. Their readers ignore duplicates.
    """
    if POS_INVOICES in learned.new:
        reason = by_schema_id(learned.new[POS_INVOICES], lambda each: str(UnknownSchemaIdError(each)))
        records = read_again(context, checkpoint, POS_INVOICES).withColumn("reason", reason)
        write_batch(dead_letters(records, context.settings), context.settings)


def read_again(context: QueryContext, checkpoint: str, topic: Topic) -> DataFrame:
    """The records that the query has read and that the topic still has."""
    name = context.settings.name_of(topic)
    with closing(consumer(context.settings, "loyalty-pipeline")) as client:
        watermarks = watermarks_of(client, name)
    read = CheckpointReader(context.spark, checkpoint).positions().get(name, {})
    begins = {each: begin for each, (begin, _) in watermarks.items()}
    ends = {each: min(end, max(begin, read.get(each, 0))) for each, (begin, end) in watermarks.items()}
    log.info(
        "the query learns a schema id, so it reads records again: do not restart, because a restart repeats the work "
        "from the beginning",
        query=context.name,
        topic=name,
        records=sum(ends.values()) - sum(begins.values()),
    )
    return read_batch(context.spark, topic, context.settings, begins, ends)


def by_schema_id(ids: Iterable[int], value_of: Callable[[int], object]) -> Column:
    """The value that the function returns for the schema id of a record. Null if the record has none of these ids."""
    return F.coalesce(*(F.when(F.startswith("value", F.lit(header(each))), F.lit(value_of(each))) for each in ids))
