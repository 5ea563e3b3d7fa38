"""What the status says about Kafka, on a mock broker: services.status."""

from schemas import topics
from services.status import status_of
from tests.support.mock_kafka import lose_leader, mock_broker


def test_a_partition_without_a_leader_hides_only_its_topic() -> None:
    """The replication factor is 1, and one broker of several is down."""
    with mock_broker() as (settings, broker):
        for topic in topics.ALL:
            broker.produce(settings.name_of(topic), b"value")
        broker.flush()
        lose_leader(broker, topics.SHIPMENT.name)

        found = status_of(settings, {"api": "http://127.0.0.1:1"})

    assert "topic shipment: partition 0 has no leader" in str(found.parts[0].problem)
    assert {each.name for each in topics.ALL} - {topics.SHIPMENT.name} == found.records.keys()
    assert 1 == found.dead_letters
