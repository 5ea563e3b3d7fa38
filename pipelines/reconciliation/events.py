"""Reads the events of accounts as a batch: from the topics, and deleted events from the archive."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.accounts.events import command_events, events_with_duplicates, invoice_events
from pipelines.checkpoints.reader import CheckpointReader, Positions
from pipelines.checkpoints.retention import LostRecords, accepted_losses
from pipelines.columns.decoding import decode_avro
from pipelines.columns.returns import names_original
from pipelines.queries.archive import ARCHIVE, check_origin
from pipelines.reconciliation.context import Context
from pipelines.sources.kafka import read_batch
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.audit.extent import TopicExtent, extent_of
from services.domain.formats import seconds_text
from services.errors import SettingsError
from services.messaging.schema_ids import FolderSchemaIds
from services.messaging.topic_reader import Offsets
from services.pseudonyms import Pseudonyms

_PURCHASES = Topic("purchases", key="InvoiceNumber", value="Purchase")
"""This is no topic on a broker. It only gives the schema of archived purchases."""

_NO_FILES = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
"""Spark's conditions for a folder that does not exist, and for one without files of Parquet."""


@dataclass(frozen=True, slots=True)
class Events:
    """All events of accounts up to the end offsets of their topics.

    Attributes:
        records: all records, with duplicates: identity, append_time, topic, partition, offset; and of each event also
            pseudonym, card, event, and the original that a return names. The card is null in the archive. Pseudonym and
            card are null for a return without a card.
        extents: by topic, the offsets that were read.
        complete_from: earlier events may be missing (milliseconds since the epoch). 0 if none is missing.
        notes: what is missing, in words.
        lost_records: records that the archive query can have skipped, because the settings accepted their loss.
    """

    records: DataFrame
    extents: dict[Topic, TopicExtent]
    complete_from: int
    notes: list[str] = field(default_factory=list)
    lost_records: list[LostRecords] = field(default_factory=list)


def read_events(context: Context, now: int, *, archive: bool) -> Events:
    """Read the topics to their current end offsets. With ``archive``, also read deleted records from the archive.

    Raises UserError if the topics cannot be read, or if the archive cannot, or has another key or other topics.
    """
    settings, ids = context.settings, context.ids
    extents = {topic: extent_of(topic, settings, now) for topic in (POS_INVOICES, LOYALTY_COMMANDS)}
    invoices = invoice_events(read_topic(context, extents[POS_INVOICES]), context.programmes, ids)
    commands = command_events(read_topic(context, extents[LOYALTY_COMMANDS]), ids)
    card = F.col("CustomerCardNo")
    records = events_with_duplicates(invoices, commands).select(
        "identity",
        F.unix_millis("timestamp").alias("append_time"),
        pseudonym_of(context.pseudonyms, card).alias("pseudonym"),
        card.alias("card"),
        *("topic", "partition", "offset", "event", "original"),
    )
    incomplete_before = {extent.topic: extent.complete_from for extent in extents.values()}
    where = "no longer in the topic"
    lost: list[LostRecords] = []
    if archive:
        checkpoint = ARCHIVE.checkpoint(settings)
        check_origin(context.spark, settings)
        where = "neither in the topic nor in the archive"
        reader = CheckpointReader(context.spark, checkpoint)
        # The query may be running. Spark lists the files afterwards, so they have all records before these positions.
        first, end, lost = reader.first_positions(), reader.positions(), accepted_losses(context.spark, checkpoint)
        records = records.unionByName(_archived(context, extents))
        incomplete_before = {
            topic: time if has_gap(settings.name_of(topic), extents[topic].begins, first, end, lost) else 0
            for topic, time in incomplete_before.items()
        }
    notes = [
        f"{settings.name_of(topic)}: records of before {seconds_text(time)} are {where}"
        for topic, time in incomplete_before.items()
        if time
    ] + [f"the archive can lack {lost_records}" for lost_records in lost]
    return Events(records, extents, max(incomplete_before.values()), notes, lost)


def read_topic(context: Context, extent: TopicExtent) -> DataFrame:
    """The records of a topic between its begin and end offsets at the time of the extent."""
    return read_batch(context.spark, extent.topic, context.settings, extent.begins, extent.ends)


def pseudonym_of(pseudonyms: Pseudonyms, card: Column) -> Column:
    """The pseudonym of a card, null for null."""
    # Use a lambda: with the type hints of a function, Spark would expect a vectorised function and log a warning.
    return F.udf(lambda name: name and pseudonyms.of(name), "string")(card)


def is_before(positions: Positions) -> Column:
    """Whether a record is before the position of its partition. A partition without a position has no such record."""
    result = F.lit(False)
    for topic, partitions in positions.items():
        for partition, position in partitions.items():
            same_partition = (F.col("topic") == topic) & (F.col("partition") == partition)
            result |= same_partition & (F.col("offset") < position)
    return result


def read_archive(spark: SparkSession, folder: str) -> DataFrame:
    """The records of the archive. Raises SettingsError if it has none."""
    try:
        return spark.read.parquet(folder)
    except AnalysisException as error:
        if error.getCondition() not in _NO_FILES:
            raise
        raise SettingsError(
            f"{folder} has no archived events: set LOYALTY_ARCHIVE_DIR to the archive, or stop the pipeline and run "
            "`loyalty archive`"
        ) from error


def _archived(context: Context, extents: dict[Topic, TopicExtent]) -> DataFrame:
    """The archived events from before the begin offsets of the topics."""
    settings, ids = context.settings, FolderSchemaIds()
    rows = read_archive(context.spark, settings.archive_dir).where(
        is_before({settings.name_of(topic): extent.begins for topic, extent in extents.items()})
    )
    rows = decode_avro(rows, "event", _PURCHASES.value, ids.known(_PURCHASES), into="purchase")
    rows = decode_avro(rows, "event", LOYALTY_COMMANDS.value, ids.known(LOYALTY_COMMANDS), into="command")
    identity = F.coalesce(F.concat(F.lit("#"), "purchase.InvoiceNumber"), F.concat(F.lit("!"), "command.CommandID"))
    invoice = F.col("purchase")
    return (
        rows.withColumn("identity", identity)
        .withColumn("card", F.lit(None).cast("string"))
        .withColumn("original", F.when(names_original(invoice), invoice.getField("OriginalInvoiceNumber")))
        .select("identity", "append_time", "pseudonym", "card", "topic", "partition", "offset", "event", "original")
    )


def has_gap(topic: str, begins: Offsets, first: Positions, end: Positions, lost: Collection[LostRecords]) -> bool:
    """Whether the topic has deleted records that the archive did not read.

    Args:
        begins: by partition, the begin offset of the topic.
        first, end: the positions at which the archive began and ended.
        lost: the records that it has skipped in between.
    """
    starts, ends = first.get(topic), end.get(topic, {})
    return any(each.topic == topic for each in lost) or any(
        # The archive reads a partition that was added later from its first record.
        begin > 0 and (starts is None or starts.get(partition, 0) > 0 or ends.get(partition, 0) < begin)
        for partition, begin in begins.items()
    )
