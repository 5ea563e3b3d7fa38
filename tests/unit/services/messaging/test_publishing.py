"""Publications, on the broker that librdkafka contains."""

import pytest
from confluent_kafka import Producer

from services.messaging import publishing
from services.messaging.publishing import PublishError, connected_producer
from services.settings import Settings


def test_the_check_of_a_topic_does_not_create_it(
    mocked_broker: tuple[Settings, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This broker creates topics that clients name. Such a topic has the wrong partitions, and is never compacted."""
    monkeypatch.setattr(publishing, "TOPIC_TIMEOUT", 0.0)
    settings, broker = mocked_broker
    with pytest.raises(PublishError, match="`loyalty topics create` creates it"):
        connected_producer(settings, "test", ["misspelt"])
    assert "misspelt" not in broker.list_topics(timeout=10).topics
