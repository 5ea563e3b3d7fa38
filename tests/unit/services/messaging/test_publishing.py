"""Publications, on the broker that librdkafka contains."""

import pytest
from confluent_kafka import Producer

from services.messaging import clients, publishing
from services.messaging.publishing import PublishError, connected_producer, publish
from services.settings import Settings
from tests.support.mock_kafka import hanging


def test_the_check_of_a_topic_does_not_create_it(
    mocked_broker: tuple[Settings, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This broker creates topics that clients name. Such a topic has the wrong partitions, and is never compacted."""
    monkeypatch.setattr(publishing, "TOPIC_TIMEOUT", 0.0)
    settings, broker = mocked_broker
    with pytest.raises(PublishError, match="`loyalty topics create` creates it"):
        connected_producer(settings, "test", ["misspelt"])
    assert "misspelt" not in broker.list_topics(timeout=10).topics


def test_a_slow_broker_limits_the_queue(mocked_broker: tuple[Settings, Producer]) -> None:
    """Otherwise the records would need up to 1 GiB of memory."""
    settings, broker = mocked_broker
    broker.list_topics("topic", timeout=10)  # creates it
    producer = connected_producer(settings, "test", ["topic"])
    value = bytes(clients.LARGEST_REQUEST_BYTES // 4)
    with hanging(broker), pytest.raises(BufferError):  # noqa: PT012 - the number of records that fit is not exact
        for _ in range(8):
            producer.produce("topic", value)
    clients.discard(producer)


def test_the_largest_record_fits_into_the_queue(mocked_broker: tuple[Settings, Producer]) -> None:
    """Otherwise its publication would wait for ever."""
    settings, broker = mocked_broker
    broker.list_topics("topic", timeout=10)  # creates it
    producer = connected_producer(settings, "test", ["topic"])
    assert 1 == publish([(None, bytes(clients.LARGEST_REQUEST_BYTES - 1_000))], producer, "topic")
