"""The records that a topic has now: services.messaging.topic_reader."""

from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import Consumer, Producer

from schemas import topics
from services.messaging.topic_reader import decoded, read_range
from services.settings import Settings


def test_a_tombstone_is_no_value(mocked_broker: tuple[Settings, Producer]) -> None:
    """Any tool can write one into a compacted topic."""
    settings, producer = mocked_broker
    producer.produce("api-keys", None, b"key")
    producer.flush(10)
    assert [] == list(decoded(settings, topics.API_KEYS, "test"))


def test_records_that_arrive_during_the_read_are_left_out() -> None:
    """The first partition is read to its end, and another record arrives there before the record of the second one."""
    places = iter([(0, 0), (0, 1), (1, 0)])

    def poll(_: float) -> Any:
        partition, offset = next(places)
        return SimpleNamespace(error=lambda: None, partition=lambda: partition, offset=lambda: offset)

    consumer = cast(Consumer, SimpleNamespace(assign=lambda _: None, poll=poll))
    found = read_range(consumer, "topic", {0: (0, 1), 1: (0, 1)})
    assert [(0, 0), (1, 0)] == [(each.partition(), each.offset()) for each in found]
