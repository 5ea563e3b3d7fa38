"""The queries of the pipeline, as data: what each reads, does and writes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.accounts.operator import STATE_VERSION
from pipelines.checkpoints import retention
from pipelines.checkpoints.manifest import CheckpointMismatchError, claim, is_new
from pipelines.queries import archive, export, fan_out, loyalty, sales
from pipelines.sinks.foreach_batch import in_few_words
from pipelines.sinks.kafka import stream_to_kafka
from pipelines.sources import commands, invoices
from schemas.topics import HADOOP, LOYALTY_BALANCES, LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.messaging.administration import is_empty, longest_stay
from services.messaging.schema_ids import SchemaIds
from services.programmes.topic import load_programmes
from services.pseudonyms import pseudonyms
from services.settings import Settings

_REMEDIES = {"state": "`loyalty rebuild` makes one that this release can go on with (docs/operations.md)"}

Read = Callable[[Topic], DataFrame]
"""Gives the records of a topic, as ``invoices.read_topic`` describes them."""


class RepeatHorizonError(RuntimeError):
    """Records stay in a topic for longer than repeats are remembered."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What a new checkpoint begins with in place of nothing.

    Attributes:
        accounts: CustomerCardNo string, account binary (as encode_account gives it).
        offsets: by topic and partition, the first record that is not in these accounts.
    """

    accounts: DataFrame
    offsets: Mapping[Topic, Mapping[int, int]]

    def starting_offsets(self, topic: Topic, settings: Settings) -> str:
        """In the words of Spark's Kafka source."""
        offsets = {str(partition): offset for partition, offset in self.offsets[topic].items()}
        return json.dumps({settings.name_of(topic): offsets})


Writer = Callable[[Read, SchemaIds, Settings, Seed | None], DataStreamWriter]


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query.

    Attributes:
        sources: the topics it reads; fixed, with their order, for the life of a checkpoint.
        writer: takes a function that reads a topic and returns the stream writer behind the whole query.
        checkpoint: its folder, given the settings.
        changelog: whose sequences go on from the checkpoint; with a new one they would begin again, and be ignored.
        state_version: of what Python keeps in the state store.
        longest_wait: how long records may wait for a full micro-batch, given the settings.
    """

    name: str
    sources: Sequence[Topic]
    writer: Writer
    checkpoint: Callable[[Settings], str]
    changelog: Topic | None = None
    state_version: str | None = None
    longest_wait: Callable[[Settings], timedelta] = lambda _: timedelta(0)

    def start(
        self,
        spark: SparkSession,
        ids: SchemaIds,
        settings: Settings,
        *,
        available_now: bool,
        seed: Seed | None = None,
    ) -> StreamingQuery:
        """Start, or go on where the checkpoint stands; with ``available_now`` end once what is there has been read.

        Args:
            seed: for a new checkpoint of the loyalty query; its accounts have gone on with the changelog's sequences.

        Raises:
            CheckpointMismatchError: the settings do not fit the checkpoint, or a seed is given and it is not new.
            RepeatHorizonError, TillTimeError: records would be dropped as late.
            RecordsLostError: retention has deleted what the checkpoint had not read.
        """
        for source in self.sources:
            _check_repeat_horizon(source, settings)
        checkpoint = self.checkpoint(settings)
        self._check_beginning(spark, settings, seed)
        claim(spark, checkpoint, self._made_with(settings), _REMEDIES)
        if not settings.accept_data_loss:
            retention.check(spark, checkpoint, self.sources, settings)
        # What is there now is to be read now.
        longest_wait = timedelta(0) if available_now else self.longest_wait(settings)
        read = partial(_read, spark, settings, seed, longest_wait)
        writer = self.writer(read, ids, settings, seed).queryName(self.name).option("checkpointLocation", checkpoint)
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{settings.trigger_interval.total_seconds():.3f} seconds").start()

    def _check_beginning(self, spark: SparkSession, settings: Settings, seed: Seed | None) -> None:
        checkpoint = self.checkpoint(settings)
        new = is_new(spark, checkpoint)
        if seed and not new:
            raise CheckpointMismatchError(f"{checkpoint} is not new: accounts can only be handed to a new checkpoint")
        if self.changelog and new and not seed and not is_empty(self.changelog, settings):
            raise CheckpointMismatchError(
                f"{checkpoint} is new, but {settings.name_of(self.changelog)} goes on from another: its readers would "
                "ignore every balance of this one. Restore that checkpoint, make a new one with `loyalty rebuild`, or "
                "delete the topic too"
            )

    def _made_with(self, settings: Settings) -> dict[str, str]:
        made_with = {
            "query": self.name,
            "source": ", ".join(settings.name_of(source) for source in self.sources),
            "shuffle_partitions": str(settings.shuffle_partitions),
        }
        return made_with | ({"state": self.state_version} if self.state_version else {})


def _check_repeat_horizon(topic: Topic, settings: Settings) -> None:
    """Spark drops rows that are older than its watermark: with this horizon, none that the topic still holds can be."""
    stay = longest_stay(topic, settings)
    if stay is None or stay > settings.repeat_horizon:
        raise RepeatHorizonError(
            f"records stay in {settings.name_of(topic)} for {stay or 'ever'}, but LOYALTY_REPEAT_HORIZON is "
            f"{settings.repeat_horizon}: old invoices would be lost as late, and their repeats counted twice"
        )


def _read(
    spark: SparkSession, settings: Settings, seed: Seed | None, longest_wait: timedelta, topic: Topic
) -> DataFrame:
    starting_offsets = seed.starting_offsets(topic, settings) if seed else "earliest"
    return invoices.read_topic(spark, topic, settings, starting_offsets, longest_wait)


def _fan_out(read: Read, ids: SchemaIds, settings: Settings, _: Seed | None) -> DataStreamWriter:
    return stream_to_kafka(fan_out.fan_out(invoices.checked(read(POS_INVOICES), ids), ids, settings), settings)


def _loyalty(read: Read, ids: SchemaIds, settings: Settings, seed: Seed | None) -> DataStreamWriter:
    records = loyalty.loyalty(
        invoices.checked(read(POS_INVOICES), ids),
        commands.checked(read(LOYALTY_COMMANDS), ids),
        load_programmes(settings),
        ids,
        settings,
        seed.accounts if seed else None,
    )
    return stream_to_kafka(records, settings)


def _sales(read: Read, ids: SchemaIds, settings: Settings, _: Seed | None) -> DataStreamWriter:
    return stream_to_kafka(sales.sales(invoices.checked(read(POS_INVOICES), ids), ids, settings), settings).outputMode(
        "update"
    )


def _export(read: Read, ids: SchemaIds, settings: Settings, _: Seed | None) -> DataStreamWriter:
    write = export.write_batch(settings.export_dir, ids, settings)
    return export.decoded(read(HADOOP), ids, settings).writeStream.foreachBatch(in_few_words(write))


def _archive(read: Read, ids: SchemaIds, settings: Settings, _: Seed | None) -> DataStreamWriter:
    happened = loyalty.events(
        invoices.checked(read(POS_INVOICES), ids),
        commands.checked(read(LOYALTY_COMMANDS), ids),
        load_programmes(settings),
        settings,
    )
    archived = archive.archived(happened, pseudonyms(Path(settings.pseudonym_key_file)))
    return archived.writeStream.foreachBatch(in_few_words(archive.write_batch(settings.archive_dir)))


FAN_OUT = Query("fan-out", [POS_INVOICES], _fan_out, lambda settings: f"{settings.checkpoint_dir}/fan-out")
LOYALTY = Query(
    "loyalty",
    [POS_INVOICES, LOYALTY_COMMANDS],
    _loyalty,
    lambda settings: f"{settings.checkpoint_dir}/loyalty",
    LOYALTY_BALANCES,
    STATE_VERSION,
)
SALES = Query(
    "sales",
    [POS_INVOICES],
    _sales,
    lambda settings: f"{settings.checkpoint_dir}/sales",
    longest_wait=lambda settings: settings.sales_interval,
)
# Beside its files (and unseen by readers of Parquet, as the underscore says): neither is of use without the other.
EXPORT = Query(
    "export",
    [HADOOP],
    _export,
    lambda settings: f"{settings.export_dir}/_checkpoint",
    longest_wait=lambda settings: settings.export_interval,
)
ARCHIVE = Query(
    "archive", [POS_INVOICES, LOYALTY_COMMANDS], _archive, lambda settings: f"{settings.archive_dir}/_checkpoint"
)

CONTINUOUS = (FAN_OUT, LOYALTY, SALES, EXPORT)
"""What runs unless something else is asked for."""

QUERIES = {query.name: query for query in (*CONTINUOUS, ARCHIVE)}
