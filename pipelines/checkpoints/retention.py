"""Finds records that retention deleted before a stopped query could read them."""

import json
from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.reader import CheckpointReader
from schemas.topics import Topic
from services.messaging.clients import consumer
from services.messaging.publishing import BROKER_TIMEOUT
from services.settings import Settings

_LOST_RECORDS = "lost-records.json"


class RecordsLostError(RuntimeError):
    """Retention has deleted records that the query had not read. The message names them."""


class LostRecords(NamedTuple):
    """Records of a partition that a query has not read, from ``start`` (inclusive) to ``end`` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition} from offset {self.start} to {self.end - 1}"


def check(spark: SparkSession, checkpoint: str, sources: Iterable[Topic], settings: Settings) -> None:
    """Raise RecordsLostError if a topic begins after the offset at which the checkpoint continues.

    If the settings accept the loss, keep a list of lost records beside the checkpoint instead.
    """
    lost = _lost_records(spark, checkpoint, sources, settings)
    if not lost:
        return
    if not settings.accept_data_loss:
        raise RecordsLostError(
            f"retention has deleted records that {checkpoint} had not read: {'; '.join(map(str, lost))}. With "
            "LOYALTY_ACCEPT_DATA_LOSS=true the query continues after them; see docs/how-to/manage-checkpoints.md"
        )
    # A restart may find the same loss again, with more deleted records.
    ends = {each[:3]: each.end for each in (*accepted_losses(spark, checkpoint), *lost)}
    Files(spark, checkpoint).write(_LOST_RECORDS, json.dumps([[*key, end] for key, end in ends.items()]))


def accepted_losses(spark: SparkSession, checkpoint: str) -> list[LostRecords]:
    """The records that the query has skipped so far, because the settings accepted their loss."""
    files = Files(spark, checkpoint)
    return [LostRecords(*each) for each in json.loads(files.read(_LOST_RECORDS))] if files.exists(_LOST_RECORDS) else []


def _lost_records(
    spark: SparkSession, checkpoint: str, sources: Iterable[Topic], settings: Settings
) -> list[LostRecords]:
    reader = CheckpointReader(spark, checkpoint)
    # Before its first commit a query continues where it began.
    positions = reader.positions() or reader.first_positions()
    lost = []
    with closing(consumer(settings, "loyalty-pipeline")) as client:
        for topic in map(settings.name_of, sources):
            for partition, position in positions.get(topic, {}).items():
                begin, _ = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=BROKER_TIMEOUT)
                if position < begin:
                    lost.append(LostRecords(topic, partition, position, begin))
    return lost
