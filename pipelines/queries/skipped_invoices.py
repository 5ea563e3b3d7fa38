"""Finds the invoices that the loyalty query has skipped, because it did not know the ids of their schemas.

The fan-out query writes the dead letters of invoices. It can learn an id before it reads such an invoice, and then it
accepts the invoice. Without a dead letter nobody could replay the invoice, and its points would be lost.
"""

import json
from collections.abc import Collection
from contextlib import closing

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError, read_json
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.queries.branches import dead_letters
from pipelines.runtime.query import QueryContext
from pipelines.sinks.kafka import write_batch
from pipelines.sources.kafka import read_batch
from schemas.topics import POS_INVOICES
from services.messaging.avro import header
from services.messaging.clients import consumer
from services.messaging.schema_ids import UnknownSchemaIdError
from services.messaging.topic_reader import watermarks_of

_SCHEMA_IDS = "schema-ids.json"
"""The file in the checkpoint with the schema ids of pos-invoices that the query knew at its last start."""


def write_skipped_invoices(context: QueryContext, checkpoint: str) -> None:
    """Write a dead letter for each invoice that has a new schema id and is before the position of the checkpoint.

    The fan-out query may have written the same dead letters. Their readers ignore duplicates.

    Raises CheckpointMismatchError if a former id is gone. Each invoice with this id would get no points.
    """
    spark, settings = context.spark, context.settings
    known, before = sorted(context.ids.known(POS_INVOICES)), read_json(spark, checkpoint, _SCHEMA_IDS)
    if lost := sorted(set(before).difference(known)):
        raise CheckpointMismatchError(
            f"the schema ids {lost} of {settings.name_of(POS_INVOICES)} are gone, and the checkpoint {checkpoint} "
            "names them. Invoices with these ids would get no points: correct LOYALTY_SCHEMA_REGISTRY_URL, restore the "
            "Schema Registry, or install the newer release again "
            "(docs/how-to/back-up-and-restore.md#the-schema-registry)"
        )
    new = set(known).difference(before)
    if before and new:
        write_batch(dead_letters(_read_invoices(context, checkpoint, new), settings), settings)
    if known != before:
        Files(spark, checkpoint).write(_SCHEMA_IDS, json.dumps(known))


def _read_invoices(context: QueryContext, checkpoint: str, ids: Collection[int]) -> DataFrame:
    """The records before the position of the checkpoint. Those with one of these schema ids have a ``reason``."""
    spark, settings = context.spark, context.settings
    topic = settings.name_of(POS_INVOICES)
    with closing(consumer(settings, "loyalty-pipeline")) as client:
        watermarks = watermarks_of(client, topic)
    positions = CheckpointReader(spark, checkpoint).positions().get(topic, {})
    begins = {partition: begin for partition, (begin, _) in watermarks.items()}
    ends = {each: min(end, max(begin, positions.get(each, begin))) for each, (begin, end) in watermarks.items()}
    reasons = (F.when(F.startswith("value", F.lit(header(each))), str(UnknownSchemaIdError(each))) for each in ids)
    records = read_batch(spark, POS_INVOICES, settings, begins, ends)
    return records.withColumn("reason", F.coalesce(*reasons))
