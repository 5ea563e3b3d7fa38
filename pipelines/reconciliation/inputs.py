"""What happened to accounts, read as a batch: from the topics, and what those have forgotten from the archive.

The loyalty query drops repeats as they come, and of several records of one number the first that it *saw* counts.
Which one that was only the record can say: those count that have an entry, and where none has, the first appended.
"""

import json
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pipelines.checkpoints.reader import Positions, Progress
from pipelines.columns import avro
from pipelines.queries.loyalty import with_repeats
from pipelines.sources import commands, invoices
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.audit.extent import TopicExtent, extent_of
from services.domain.formats import to_datetime
from services.domain.programme import Programmes
from services.messaging.schema_ids import FolderSchemaIds, SchemaIds
from services.pseudonyms import Pseudonyms
from services.settings import Settings

_PURCHASES = Topic("purchases", key="InvoiceNumber", value="Purchase")
"""No topic, but what the archive keeps of one."""


@dataclass(frozen=True, slots=True)
class Context:
    """What every step needs."""

    spark: SparkSession
    settings: Settings
    ids: SchemaIds
    programmes: Programmes
    pseudonyms: Pseudonyms


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that happened to accounts, up to a cut.

    Attributes:
        records: identity, append_time, and what happened where it concerns an account: pseudonym, card (null in the
            archive), topic, partition, offset, event. Of repeats, all copies.
        cut: by topic the first offsets that were not read.
        complete_from: events of before may be missing (milliseconds since the epoch); 0: all are there.
        notes: what is missing, in words.
    """

    records: DataFrame
    cut: dict[Topic, TopicExtent]
    complete_from: int
    notes: list[str] = field(default_factory=list)


def read(context: Context, now: int, *, archive: bool) -> Inputs:
    """Read to the ends that the topics have now; with ``archive``, what they have lost from there.

    Raises NoTopicError, PublishError, AnalysisException (no archive).
    """
    settings, ids = context.settings, context.ids
    cut = {topic: extent_of(topic, settings, now) for topic in (POS_INVOICES, LOYALTY_COMMANDS)}
    checked_invoices = invoices.checked(read_batch(context, cut[POS_INVOICES]), ids)
    checked_commands = commands.checked(read_batch(context, cut[LOYALTY_COMMANDS]), ids)
    both = with_repeats(checked_invoices, checked_commands, context.programmes)
    happened = F.get(F.col("events"), F.lit(0))
    records = both.select(
        "identity",
        F.unix_millis("timestamp").alias("append_time"),
        pseudonym_of(context.pseudonyms, happened.getField("CustomerCardNo")).alias("pseudonym"),
        happened.getField("CustomerCardNo").alias("card"),
        *(happened.getField(name).alias(name) for name in ("topic", "partition", "offset", "event")),
    )
    lost = {extent.topic: extent.complete_from for extent in cut.values()}
    notes = []
    if archive:
        records = records.unionByName(_archived(context, cut))
        progress = Progress(context.spark, f"{settings.archive_dir}/_checkpoint")
        begins, ends = progress.beginning(), progress.positions()
        lost = {topic: time if _has_gap(cut[topic], begins, ends, settings) else 0 for topic, time in lost.items()}
    for topic, time in lost.items():
        if time:
            where = "neither in the topic nor in the archive" if archive else "no longer in the topic"
            notes.append(f"{settings.name_of(topic)}: records of before {in_words(time)} are {where}")
    return Inputs(records, cut, max(lost.values()), notes)


def in_words(milliseconds: int) -> str:
    return to_datetime(milliseconds).strftime("%Y-%m-%d %H:%M:%S UTC")


def read_batch(context: Context, extent: TopicExtent) -> DataFrame:
    """The records of a topic between its beginning and end as they were when its extent was asked for."""
    name = context.settings.name_of(extent.topic)

    def offsets(by_partition: object) -> str:
        return json.dumps({name: by_partition})

    return (
        context.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", context.settings.kafka_bootstrap_servers)
        .option("subscribe", name)
        .option("startingOffsets", offsets(extent.begins))
        .option("endingOffsets", offsets(extent.ends))
        .option("includeHeaders", "true")
        .load()
    )


def pseudonym_of(pseudonyms: Pseudonyms, card: Column) -> Column:
    """The pseudonym of a card; null for null."""
    # Spark takes the type hints of a function of its own for those of a vectorised one, and warns.
    return F.udf(lambda name: name and pseudonyms.of(name), "string")(card)


def once(records: DataFrame, recorded: DataFrame, settings: Settings) -> DataFrame:
    """Of the copies of each event those that count; ``is_recorded`` says which have an entry.

    Args:
        recorded: pseudonym and event_id of every entry that an event has led to.
    """
    horizon = int(settings.repeat_horizon.total_seconds() * 1000)
    # The sign that keeps invoices and commands apart goes in front of the number.
    with_id = records.withColumn("event_id", F.substring("identity", 2, 2**31 - 1))
    known = recorded.distinct().withColumn("is_recorded", F.lit(True))
    marked = with_id.join(known, ["pseudonym", "event_id"], "left").withColumn(
        "is_recorded", F.coalesce("is_recorded", F.lit(False))
    )
    copies = Window.partitionBy("identity")
    first = copies.orderBy("append_time", "topic", "partition", "offset")
    is_first = (F.row_number().over(first) == 1) | (
        # After that long at the latest Spark has forgotten the first.
        F.col("append_time") - F.min("append_time").over(copies) > 2 * horizon
    )
    counts = F.col("is_recorded") | (is_first & ~F.max("is_recorded").over(copies))
    return marked.withColumn("counts", counts).where(F.col("counts") & F.col("event").isNotNull()).drop("counts")


def counted_twice(events: DataFrame, settings: Settings) -> DataFrame:
    """Identities with entries in the accounts of several customers, though within the horizon: identity, pseudonyms."""
    horizon = int(settings.repeat_horizon.total_seconds() * 1000)
    several = (
        events.where("is_recorded")
        .groupBy("identity")
        .agg(
            F.collect_set("pseudonym").alias("pseudonyms"),
            (F.max("append_time") - F.min("append_time")).alias("apart"),
        )
    )
    return several.where((F.size("pseudonyms") > 1) & (F.col("apart") <= horizon)).drop("apart")


def beyond(positions: Positions) -> Column:
    """Whether a record is one that the query has not come to yet; without any position, all are."""
    reached = F.lit(False)
    for topic, partitions in positions.items():
        for partition, position in partitions.items():
            here = (F.col("topic") == topic) & (F.col("partition") == partition)
            reached |= here & (F.col("offset") < position)
    return ~reached


def _archived(context: Context, cut: dict[Topic, TopicExtent]) -> DataFrame:
    """What the archive has of before the topics begin."""
    settings, ids = context.settings, FolderSchemaIds()
    gone = F.lit(False)
    for topic, extent in cut.items():
        for partition, begin in extent.begins.items():
            here = (F.col("topic") == settings.name_of(topic)) & (F.col("partition") == partition)
            gone |= here & (F.col("offset") < begin)
    invoice, _ = avro.decode(F.col("event"), _PURCHASES, ids)
    command, _ = avro.decode(F.col("event"), LOYALTY_COMMANDS, ids)
    identity = F.coalesce(
        F.concat(F.lit("#"), invoice.getField("InvoiceNumber")), F.concat(F.lit("!"), command.getField("CommandID"))
    )
    return (
        context.spark.read.parquet(settings.archive_dir)
        .where(gone)
        .withColumn("identity", identity)
        .withColumn("card", F.lit(None).cast("string"))
        .select("identity", "append_time", "pseudonym", "card", "topic", "partition", "offset", "event")
    )


def _has_gap(extent: TopicExtent, begins: Positions, ends: Positions, settings: Settings) -> bool:
    """Whether the topic has lost records of which the archive did not see all."""
    name = settings.name_of(extent.topic)
    starts, reached = begins.get(name, {}), ends.get(name, {})
    return any(
        low > 0 and (starts.get(partition, low) > 0 or reached.get(partition, 0) < low)
        for partition, low in extent.begins.items()
    )
