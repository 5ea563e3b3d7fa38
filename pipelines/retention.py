"""Retention that has overtaken a stopped pipeline: what was deleted unread is told, never skipped in silence."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from schemas.topics import Topic
from services.messaging.clients import consumer
from services.settings import Settings

_BROKER_TIMEOUT = 30.0


class RecordsLostError(RuntimeError):
    """Records were deleted before the query had read them; the message says which."""


def check(spark: SparkSession, checkpoint: str, sources: Iterable[Topic], settings: Settings) -> None:
    """Raise RecordsLostError where a topic begins behind the place at which the checkpoint goes on."""
    positions = next_offsets(spark, checkpoint)
    lost = [
        f"{topic} {partition}: offsets {position} to {beginning - 1}"
        for topic, partitions in _beginnings(sources, settings).items()
        for partition, beginning in partitions.items()
        if (position := positions.get(topic, {}).get(partition, beginning)) < beginning
    ]
    if lost:
        raise RecordsLostError(
            f"retention has deleted what {checkpoint} had not read: {'; '.join(lost)}. "
            "With LOYALTY_ACCEPT_DATA_LOSS=true it goes on behind the gap; docs/operations.md says what that means"
        )


def next_offsets(spark: SparkSession, checkpoint: str) -> dict[str, dict[int, int]]:
    """The offset by topic and partition at which the next batch begins; empty for a new checkpoint.

    A batch that was planned and not committed is done again: it begins where the one before it ended.
    """
    planned, committed = _numbers(spark, f"{checkpoint}/offsets"), _numbers(spark, f"{checkpoint}/commits")
    ended = [number for number in planned if number in set(committed)]
    if not ended:
        return {}
    # A version, the batch's metadata, and a line for each source: {"topic": {"partition": offset}}.
    _, _, *sources = _read(spark, f"{checkpoint}/offsets/{max(ended)}").splitlines()
    offsets: dict[str, dict[int, int]] = {}
    for source in sources:
        for topic, partitions in _offsets(source).items():
            offsets[topic] = {int(partition): int(offset) for partition, offset in partitions.items()}
    return offsets


def _offsets(source: str) -> Mapping[str, Mapping[str, int]]:
    read = json.loads(source) if source.startswith("{") else {}
    return read if all(isinstance(partitions, dict) for partitions in read.values()) else {}


def _beginnings(sources: Iterable[Topic], settings: Settings) -> dict[str, dict[int, int]]:
    client = consumer(settings, "loyalty-retention-check")
    try:
        return {
            settings.name_of(topic): {
                partition: client.get_watermark_offsets(
                    TopicPartition(settings.name_of(topic), partition), timeout=_BROKER_TIMEOUT
                )[0]
                for partition in client.list_topics(settings.name_of(topic), timeout=_BROKER_TIMEOUT)
                .topics[settings.name_of(topic)]
                .partitions
            }
            for topic in sources
        }
    finally:
        client.close()


def _numbers(spark: SparkSession, folder: str) -> list[int]:
    files, path = _files(spark, folder)
    if not files.exists(path):
        return []
    names = [str(status.getPath().getName()) for status in files.listStatus(path)]
    return [int(name) for name in names if name.isdigit()]


def _read(spark: SparkSession, file: str) -> str:
    files, path = _files(spark, file)
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()


def _files(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm  # noqa: SLF001  # PySpark has no public way to Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), path  # noqa: SLF001
