"""Clients of a broker that hangs while another broker has its partitions, on two brokers that librdkafka contains."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer, TopicPartition

from services.messaging import clients
from services.messaging.log_reader import LogReader
from services.messaging.publishing import connected_producer, publish
from services.settings import Settings
from tests.support.mock_kafka import _LIBRDKAFKA, _handle, hanging
from tests.support.waiting import wait_for

TOPIC, PARTITIONS = "topic", 4


@pytest.fixture
def mocked_broker() -> Iterator[tuple[Settings, Producer]]:
    """The first broker leads the topic, except its last partition."""
    broker = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 2, "log_level": 0})
    brokers = broker.list_topics(TOPIC, timeout=10).brokers  # creates the topic
    first, second = brokers
    for partition in range(PARTITIONS):
        lead(broker, partition, second if partition == PARTITIONS - 1 else first)
    yield Settings(kafka_bootstrap_servers=",".join(f"{each.host}:{each.port}" for each in brokers.values())), broker
    broker.close()


@contextmanager
def first_broker_hangs(settings: Settings, broker: Producer) -> Iterator[Settings]:
    """During the block, the first broker hangs, and the second one leads the topic. Yields its address."""
    _, second = broker.list_topics(timeout=10).brokers
    with hanging(broker):
        for partition in range(PARTITIONS - 1):  # A consumer would notice a new epoch of the last one.
            lead(broker, partition, second)
        _, address = settings.kafka_bootstrap_servers.split(",")
        yield settings.model_copy(update={"kafka_bootstrap_servers": address})


def lead(broker: Producer, partition: int, number: int) -> None:
    """Make the broker with this number the leader of a partition."""
    cluster = _LIBRDKAFKA.rd_kafka_handle_mock_cluster(_handle(broker))
    _LIBRDKAFKA.rd_kafka_mock_partition_set_leader(cluster, TOPIC.encode(), partition, number)


def produce(settings: Settings, partition: int) -> None:
    # An idempotent producer asks any broker for its id, also the one that hangs.
    producer = clients.producer(settings, "test", **{"enable.idempotence": False, "log_level": 0})
    producer.produce(TOPIC, b"value", partition=partition)
    assert 0 == clients.flush(producer, 10)


@pytest.mark.parametrize("others", [[PARTITIONS - 1], []], ids=["knows another broker", "knows no other broker"])
def test_a_reader_follows_a_partition_to_its_new_leader(
    mocked_broker: tuple[Settings, Producer], monkeypatch: pytest.MonkeyPatch, others: list[int]
) -> None:
    """Otherwise the ledger and the webhooks would stand still for a minute. A consumer connects only to leaders."""
    monkeypatch.setattr(clients, "_HANGING_BROKER_MS", 1_000)
    read: list[int] = []
    partitions = [0, *others]
    with LogReader(mocked_broker[0], "test", log_level=0) as reader:

        def has_read(expected: list[int]) -> bool:
            for (_, partition), records in reader.read(10, 0.1).records.items():
                read.extend(partition for _ in records)
            return expected == sorted(read)

        reader.consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in partitions])
        for partition in partitions:
            produce(mocked_broker[0], partition)
        wait_for("the first records", lambda: has_read(partitions))
        with first_broker_hangs(*mocked_broker) as settings:
            produce(settings, 0)
            wait_for("the record of the new leader", lambda: has_read([0, *partitions]), 9)


def test_a_publication_continues_with_a_new_leader(
    mocked_broker: tuple[Settings, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `loyalty simulate` and `loyalty replay` would fail after 30 seconds."""
    monkeypatch.setattr(clients, "_HANGING_BROKER_MS", 1_000)
    producer = connected_producer(mocked_broker[0], "test", [TOPIC])
    records = [(b"%d" % number, b"value") for number in range(100)]  # of all partitions
    publish(records, producer, TOPIC)
    with first_broker_hangs(*mocked_broker):
        assert 100 == publish(records, producer, TOPIC)
