"""Finds which part of a topic exists now: the first offsets after retention, and the end offsets."""

from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaException

from schemas.topics import Topic
from services.errors import UserError
from services.messaging import clients
from services.messaging.topic_reader import Offsets, first_append_time, watermarks_of
from services.settings import Settings


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """The part of a topic that exists now.

    Attributes:
        begins: the first offset that still exists, by partition.
        ends: the end offset, by partition.
        complete_from: the topic has all records from this time on, in milliseconds since the epoch. 0 if no partition
            has lost records. Otherwise it is the latest append time of the first records of the partitions that have
            lost some. A partition that has lost all records counts with the current time.
        first_time: 0 if a partition has lost records. Otherwise the append time of the first record, or the current
            time if the topic is empty. A topic that was created again has lost all older records. Only this time shows
            that.
    """

    topic: Topic
    begins: Offsets
    ends: Offsets
    complete_from: int
    first_time: int


def extent_of(topic: Topic, settings: Settings, now: int) -> TopicExtent:
    """Find the extent of a topic. ``now`` is the time in milliseconds. Raises UserError if the topic cannot be read."""
    name = settings.name_of(topic)
    with closing(clients.bounded_consumer(settings, "loyalty-audit")) as consumer:
        try:
            spans = watermarks_of(consumer, name)
            times = {
                partition: first_append_time(consumer, name, partition, low, high, now)
                for partition, (low, high) in spans.items()
            }
        except KafkaException as error:
            raise UserError(f"topic {name}: {error.args[0].str()}") from error
    after_loss = [time for partition, time in times.items() if spans[partition][0] > 0]
    return TopicExtent(
        topic=topic,
        begins={partition: low for partition, (low, _) in spans.items()},
        ends={partition: high for partition, (_, high) in spans.items()},
        complete_from=max(after_loss, default=0),
        first_time=0 if after_loss else min(times.values(), default=now),
    )
