"""Retention that has overtaken a stopped pipeline: what was deleted unread is told, never skipped in silence."""

from collections.abc import Iterable

from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from pipelines.checkpoints.reader import Progress
from schemas.topics import Topic
from services.messaging.clients import consumer
from services.messaging.publishing import BROKER_TIMEOUT
from services.settings import Settings


class RecordsLostError(RuntimeError):
    """Records were deleted before the query had read them; the message says which."""


def check(spark: SparkSession, checkpoint: str, sources: Iterable[Topic], settings: Settings) -> None:
    """Raise RecordsLostError where a topic begins behind the place at which the checkpoint goes on."""
    positions = Progress(spark, checkpoint).positions()
    lost = []
    client = consumer(settings, "loyalty-pipeline")
    try:
        for topic in map(settings.name_of, sources):
            for partition, position in positions.get(topic, {}).items():
                place = TopicPartition(topic, partition)
                beginning, _ = client.get_watermark_offsets(place, timeout=BROKER_TIMEOUT)
                if position < beginning:
                    lost.append(f"{topic} {partition} from offset {position} to {beginning - 1}")
    finally:
        client.close()
    if lost:
        raise RecordsLostError(
            f"retention has deleted what {checkpoint} had not read: {'; '.join(lost)}. "
            "LOYALTY_ACCEPT_DATA_LOSS=true skips the lost records: see docs/how-to/manage-checkpoints.md"
        )
