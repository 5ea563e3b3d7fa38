"""How much of a topic there is: what retention has taken, and where its end is now."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from schemas.topics import Topic
from services.messaging import clients
from services.messaging.publishing import BROKER_TIMEOUT, find_topic
from services.settings import Settings

Offsets = Mapping[int, int]
"""By partition."""


class NoTopicError(RuntimeError):
    """A topic cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """A topic as it is now.

    Attributes:
        begins: by partition the first offset that is still there.
        ends: by partition the offset behind the last record.
        complete_from: when the oldest record of those partitions was appended that have lost some, the latest of these
            times (milliseconds since the epoch); 0 where none has lost any. A partition that has lost all of its
            records is as complete as nothing: then the time is that of now.
    """

    topic: Topic
    begins: Offsets
    ends: Offsets
    complete_from: int


def extent_of(topic: Topic, settings: Settings, now: int) -> TopicExtent:
    """Raises NoTopicError."""
    name = settings.name_of(topic)
    with _consumer(settings, name) as consumer:
        places = [TopicPartition(name, partition) for partition in find_topic(consumer, name).partitions]
        spans = {each.partition: consumer.get_watermark_offsets(each, timeout=BROKER_TIMEOUT) for each in places}
        lost = {partition: low for partition, (low, _) in spans.items() if low > 0}
        times = [append_time(consumer, name, partition, low, spans[partition][1]) for partition, low in lost.items()]
        return TopicExtent(
            topic,
            {partition: low for partition, (low, _) in spans.items()},
            {partition: high for partition, (_, high) in spans.items()},
            max((now if time is None else time for time in times), default=0),
        )


def append_time(consumer: Consumer, topic: str, partition: int, low: int, high: int) -> int | None:
    """When the first record between two offsets was appended, milliseconds since the epoch. None: there is none.

    Raises NoTopicError, KafkaException.
    """
    if low >= high:
        return None
    consumer.assign([TopicPartition(topic, partition, low)])
    while message := consumer.poll(BROKER_TIMEOUT):
        if (error := message.error()) is None:
            return message.timestamp()[1]
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
            return None  # nothing but markers of transactions is left
        raise KafkaException(error)
    raise NoTopicError(f"the broker gave no record of {topic} for {BROKER_TIMEOUT:.0f} s")


@contextmanager
def _consumer(settings: Settings, topic: str) -> Iterator[Consumer]:
    consumer = clients.consumer(settings, "loyalty-audit", log_level=0)
    try:
        yield consumer
    except KafkaException as error:
        raise NoTopicError(f"topic {topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()
