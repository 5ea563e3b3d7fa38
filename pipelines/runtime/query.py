"""A streaming query: its definition, and how it starts."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.checkpoints import manifest, retention
from pipelines.checkpoints.learned_ids import EarlierIds, LearnedIds
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.columns import traces
from pipelines.runtime import query_metrics
from pipelines.sources.kafka import read_stream
from schemas.topics import LOYALTY_PROGRAMMES, Topic
from services.errors import SettingsError
from services.messaging.administration import max_record_age
from services.messaging.schema_ids import SchemaIds
from services.messaging.topic_reader import Offsets
from services.settings import Settings
from services.yaml_files.scalars import in_iso

SHUFFLE_PARTITIONS = "shuffle_partitions"
"""A setting, and the value of the manifest."""

DEDUPLICATION = "deduplication"
"""The format that manifests of release 0.1 lack. Those checkpoints continue with Spark's own operator."""

FORMATS = {DEDUPLICATION: "segments"}
"""The formats of a new checkpoint of any query."""


@dataclass(frozen=True, slots=True)
class QueryContext:
    """The values that a query needs at its start.

    Attributes:
        name: of the query.
        longest_wait: how long records may wait for a full micro-batch.
        formats: by name, the formats that the checkpoint has. An older checkpoint lacks later names.
    """

    name: str
    spark: SparkSession
    ids: SchemaIds
    settings: Settings
    longest_wait: timedelta
    formats: Mapping[str, str]

    def read(self, topic: Topic, start: Offsets | None = None) -> DataFrame:
        """Stream the records of a topic, see ``sources.kafka.read_stream``."""
        return traces.sample(read_stream(self.spark, topic, self.settings, start, self.longest_wait), topic)


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query.

    Attributes:
        sources: the topics that it reads. They and their order are fixed for the life of a checkpoint.
        build: returns the stream writer of the whole query.
        checkpoint: takes the settings, and returns the folder or another Hadoop URI of the checkpoint.
        longest_wait: takes the settings, and returns how long records may wait for a full micro-batch.
        if_it_cannot_run: empty: the process ends if this query cannot run. Otherwise the other queries run without it,
            and the log has this text.
        reads_programme: whether it must start again for a new version of the programme.
        formats: by name, the formats of a new checkpoint. An older one keeps the formats that it has.
        fixed: takes the settings, and returns further names and values that are fixed for the life of a checkpoint.
        remedies: by the name of a fixed value, what to do if it differs and no setting can restore it.
        check: takes the session, the schema ids, the checkpoint, the settings, and whether the checkpoint is new.
            Raises CheckpointMismatchError if the query must not start.
        learn: takes the context of the query, its checkpoint, and the schema ids that the query did not know. It must
            repair what the query has skipped. If the start then fails, it can run again.
    """

    name: str
    sources: Sequence[Topic]
    build: Callable[[QueryContext], DataStreamWriter]
    checkpoint: Callable[[Settings], str]
    longest_wait: Callable[[Settings], timedelta] = lambda _: timedelta(0)
    if_it_cannot_run: str = ""
    reads_programme: bool = False
    formats: Mapping[str, str] = field(default_factory=lambda: FORMATS)
    fixed: Callable[[Settings], Mapping[str, str]] = lambda _: {}
    remedies: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[SparkSession, SchemaIds, str, Settings, bool], None] = lambda *_: None
    learn: Callable[[QueryContext, str, LearnedIds], None] = lambda *_: None

    def check_start(self, spark: SparkSession, ids: SchemaIds, settings: Settings) -> None:
        """Do the checks that need no change of the checkpoint.

        Raises:
            CheckpointMismatchError: the query must not start on its checkpoint.
            SettingsError: the query would forget repeats too early.
        """
        for source in self.sources:
            _check_repeat_horizon(source, settings)
        checkpoint = self.checkpoint(settings)
        self.check(spark, ids, checkpoint, settings, not manifest.read(spark, checkpoint))

    def start(self, spark: SparkSession, ids: SchemaIds, settings: Settings, *, available_now: bool) -> StreamingQuery:
        """Start the query where its checkpoint ends. With ``available_now`` it ends after the records that exist now.

        If there are new schema ids and an unfinished micro-batch, first run this micro-batch without the new ids. If it
        fails, return the failed query.

        Raises:
            CheckpointMismatchError: the settings or the schema ids do not fit the checkpoint.
            SettingsError: the query would forget repeats too early.
            UserError: retention has deleted records that the query had not read, or a topic was created again.
        """
        self.check_start(spark, ids, settings)
        checkpoint = self.checkpoint(settings)
        before = manifest.read(spark, checkpoint)
        if SHUFFLE_PARTITIONS in before and SHUFFLE_PARTITIONS not in settings.model_fields_set:
            settings = settings.model_copy(update={SHUFFLE_PARTITIONS: int(before[SHUFFLE_PARTITIONS])})
        spark.conf.set("spark.sql.shuffle.partitions", settings.shuffle_partitions)
        formats = {name: before[name] for name in self.formats if name in before} if before else self.formats
        made_with = {SHUFFLE_PARTITIONS: str(settings.shuffle_partitions), **formats, **self._made_with(settings)}
        manifest.claim(spark, checkpoint, made_with, self.remedies)
        # A new topic of the programme lacks versions, so later invoices would earn other points.
        programme = [LOYALTY_PROGRAMMES] if self.reads_programme else []
        query_metrics.announce(self.name, CheckpointReader(spark, checkpoint).positions())
        retention.check(spark, checkpoint, [*self.sources, *programme], settings)
        longest_wait = timedelta(0) if available_now else self.longest_wait(settings)
        context = QueryContext(self.name, spark, ids, settings, longest_wait, formats)

        def writer_with(ids: SchemaIds) -> DataStreamWriter:
            writer = self.build(replace(context, ids=ids))
            return writer.queryName(self.name).option("checkpointLocation", checkpoint)

        learned = LearnedIds(spark, checkpoint, self.sources, ids, settings)
        if learned.new:
            if CheckpointReader(spark, checkpoint).has_unfinished_batch:
                replay = writer_with(EarlierIds(ids, learned.new)).trigger(once=True).start()
                with suppress(StreamingQueryException):
                    replay.awaitTermination()
                if CheckpointReader(spark, checkpoint).has_unfinished_batch:
                    return replay
            self.learn(context, checkpoint, learned)
        learned.save()
        writer = writer_with(ids)
        if available_now:
            return writer.trigger(availableNow=True).start()
        interval = trigger_interval(longest_wait, settings).total_seconds()
        return writer.trigger(processingTime=f"{interval:.3f} seconds").start()

    def check_settings(self, spark: SparkSession, ids: SchemaIds, settings: Settings) -> None:
        """Raise CheckpointMismatchError if the checkpoint has another value of a setting that a new one must keep.

        Also raise it if a schema id is gone or has another schema.
        """
        before = manifest.read(spark, self.checkpoint(settings))
        kept = before.keys() - self.remedies.keys()
        same = {name: value for name, value in self._made_with(settings).items() if name in kept}
        manifest.require_same(self.checkpoint(settings), before, before | same)
        LearnedIds(spark, self.checkpoint(settings), self.sources, ids, settings)

    def _made_with(self, settings: Settings) -> dict[str, str]:
        sources = ", ".join(settings.name_of(source) for source in self.sources)
        return {"query": self.name, "source": sources, **self.fixed(settings)}


def trigger_interval(longest_wait: timedelta, settings: Settings) -> timedelta:
    """The shortest time between the starts of two micro-batches of a query.

    Each trigger asks Kafka for the end offsets, also while there is nothing to do. A backlog is read at this pace, so
    the time is much shorter than a long wait.
    """
    return max(settings.trigger_interval, min(longest_wait / 2, max(timedelta(seconds=2), longest_wait / 360)))


def _check_repeat_horizon(topic: Topic, settings: Settings) -> None:
    """Check that the query remembers an invoice at least as long as its record can stay in the topic."""
    age = max_record_age(topic, settings)
    if age is None or age > settings.repeat_horizon:
        raise SettingsError(
            f"records stay in {settings.name_of(topic)} for {in_iso(age) if age else 'ever'}, but "
            f"LOYALTY_REPEAT_HORIZON is {in_iso(settings.repeat_horizon)}: the query would forget old invoices too "
            "early and count their duplicates. "
            "Set a longer LOYALTY_REPEAT_HORIZON or a shorter retention of the topic"
        )


def without_plan(reason: str) -> str:
    """The error of a query and its causes in one line, without stack traces and Spark's plan (17 kB and more)."""
    lines = reason.partition("\n=== Streaming Query ===")[0].splitlines()
    return " | ".join(line for line in lines if line and not line[0].isspace())
