"""The local broker (infra.local.broker) across restarts."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from infra.local.broker import LocalBroker
from infra.local.processes import ProcessFailedError
from infra.local.stack import LocalStack, private_settings
from schemas.topics import LOYALTY_BALANCES, POS_INVOICES
from services.messaging import clients
from services.settings import Settings


def send(settings: Settings, value: bytes) -> None:
    producer: Producer = clients.producer(settings, "test")
    producer.produce(POS_INVOICES.name, key=b"STR1", value=value)
    assert producer.flush(60) == 0


def values(settings: Settings, count: int) -> list[bytes | None]:
    consumer: Consumer = clients.consumer(settings, "test", **{"enable.partition.eof": False})
    try:
        # Assign partitions, so that no group must form on a broker that has just restarted.
        consumer.assign([TopicPartition(POS_INVOICES.name, number, 0) for number in range(settings.partitions)])
        return [message.value() for message in consumer.consume(count, timeout=60)]
    finally:
        consumer.close()


def test_records_survive_a_stop_and_a_kill(tmp_path: Path) -> None:
    """Acknowledged records survive an orderly stop and a kill, on the same port, in a folder with any name.

    `make kafka` starts the broker with its topics, and no other part.
    """
    folder = tmp_path / "Meine Märkte"
    stack = LocalStack(folder, private_settings(folder))
    broker, settings = stack.broker, stack.settings
    try:
        stack.start(services=[])
        assert ["kafka"] == [process.name for process in stack.processes if process.pid]
        send(settings, b"first")
        broker.stop()
        broker.start()
        send(settings, b"second")
        broker.process.kill()
        broker.start()
        assert [b"first", b"second"] == values(settings, 2)
        assert LOYALTY_BALANCES.name in clients.admin(settings).list_topics(timeout=60).topics
    finally:
        broker.stop()


def test_a_broker_that_cannot_start_says_why(kafka: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The port is in use. The start fails with the message of the broker."""
    if request.config.getoption("--kafka-bootstrap-servers") or request.config.getoption("--containers"):
        pytest.skip("the run's broker is not on this machine's loopback")
    broker = LocalBroker(tmp_path, port=int(kafka.rpartition(":")[2]))
    with pytest.raises(ProcessFailedError, match=r"(?s)kafka ended before it was ready.*Address already in use"):
        broker.start()
