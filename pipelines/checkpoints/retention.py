"""Finds records that retention deleted before a stopped query had read them, so that no loss goes unnoticed."""

from collections.abc import Iterable

from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from pipelines.checkpoints.reader import CheckpointReader
from schemas.topics import Topic
from services.messaging.clients import consumer
from services.messaging.publishing import BROKER_TIMEOUT
from services.settings import Settings


class RecordsLostError(RuntimeError):
    """Retention has deleted records that the query had not read. The message names them."""


def check(spark: SparkSession, checkpoint: str, sources: Iterable[Topic], settings: Settings) -> None:
    """Raise RecordsLostError if a topic begins after the offset at which the checkpoint continues."""
    positions = CheckpointReader(spark, checkpoint).positions()
    lost = []
    client = consumer(settings, "loyalty-pipeline")
    try:
        for topic in map(settings.name_of, sources):
            for partition, position in positions.get(topic, {}).items():
                begin, _ = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=BROKER_TIMEOUT)
                if position < begin:
                    lost.append(f"{topic} {partition} from offset {position} to {begin - 1}")
    finally:
        client.close()
    if lost:
        raise RecordsLostError(
            f"retention has deleted records that {checkpoint} had not read: {'; '.join(lost)}. With "
            "LOYALTY_ACCEPT_DATA_LOSS=true the query continues after them; see docs/how-to/manage-checkpoints.md"
        )
