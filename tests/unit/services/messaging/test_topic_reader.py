"""The records that a topic has now: services.messaging.topic_reader."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from schemas import topics
from services.messaging.topic_reader import decoded, first_offsets, read_range
from services.settings import Settings


def test_a_tombstone_is_no_value(mocked_broker: tuple[Settings, Producer]) -> None:
    """Any tool can write one into a compacted topic."""
    settings, producer = mocked_broker
    producer.produce("api-keys", None, b"key")
    producer.flush(10)
    assert [] == list(decoded(settings, topics.API_KEYS, "test"))


def test_an_error_of_a_partition_does_not_mean_that_it_has_no_record() -> None:
    """For example, the partition has another leader now."""
    refused = SimpleNamespace(partition=0, offset=-1, error=KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    consumer = cast(Consumer, SimpleNamespace(offsets_for_times=lambda *_, **__: [refused]))
    with pytest.raises(KafkaException):
        first_offsets(consumer, "topic", [0], since=1)


def test_records_that_arrive_during_the_read_are_left_out() -> None:
    """The first partition is read to its end, and another record arrives there before the record of the second one."""
    places = iter([(0, 0), (0, 1), (1, 0)])

    def poll(_: float) -> Any:
        partition, offset = next(places)
        return SimpleNamespace(error=lambda: None, partition=lambda: partition, offset=lambda: offset)

    consumer = cast(Consumer, SimpleNamespace(assign=lambda _: None, poll=poll))
    found = read_range(consumer, "topic", {0: (0, 1), 1: (0, 1)})
    assert [(0, 0), (1, 0)] == [(each.partition(), each.offset()) for each in found]
