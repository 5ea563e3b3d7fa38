"""Producers that librdkafka has ended by a fatal error, or whose queue is full, on the broker that it contains."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, Producer
from structlog.testing import capture_logs

from services.messaging import clients
from services.messaging.publishing import Publisher, PublishError, connected_producer, publish
from services.messaging.resending import ResendingProducer
from services.settings import Settings
from tests.support.mock_kafka import fail, hanging, mock_broker, refuse_next
from tests.support.waiting import wait_for

_PRODUCE, _INIT_PRODUCER_ID = 0, 22


@contextmanager
def broker_with_topic() -> Iterator[tuple[Settings, Producer]]:
    with mock_broker() as (settings, broker):
        broker.list_topics("topic", timeout=10)  # creates it
        yield settings, broker


@pytest.fixture
def settings(mocked_broker: tuple[Settings, Producer]) -> Settings:
    settings, broker = mocked_broker
    broker.list_topics("topic", timeout=10)  # creates it
    return settings


def test_records_without_an_acknowledgement_are_sent_by_another_producer(settings: Settings) -> None:
    """The failed producer drops these records. Their user gets one report for each, when Kafka has it."""
    results: list[tuple[bytes, KafkaError | None]] = []
    producer = ResendingProducer(settings, "test")

    def send(value: bytes) -> None:
        producer.produce("topic", value, b"key", [], lambda error: results.append((value, error)))

    def all_are_acknowledged() -> bool:
        producer.poll(0.1)
        return not len(producer)

    send(b"first")
    fail(producer._producer)
    producer.poll(0)
    send(b"second")
    wait_for("the acknowledgements", all_are_acknowledged, 20)
    producer.close(1)
    assert [(b"first", None), (b"second", None)] == results


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_record_is_sent_again_after_an_error_that_can_pass(code: int) -> None:
    """A broker that is going away can answer so, or a right is missing until somebody grants it."""
    results: list[KafkaError | None] = []
    with broker_with_topic() as (settings, broker):
        producer = ResendingProducer(settings, "test", log_level=0)
        refuse_next(broker, _PRODUCE, code)
        producer.produce("topic", b"value", b"key", [], results.append)
        wait_for("the acknowledgement", lambda: producer.poll(0.1) or not len(producer), 20)
        producer.close(1)
    assert [None] == results


def test_a_record_that_the_broker_refuses_is_reported() -> None:
    """The broker would refuse it again. It must not block the records after it."""
    results: list[int] = []
    with broker_with_topic() as (settings, broker):
        producer = ResendingProducer(settings, "test", log_level=0)
        refuse_next(broker, _PRODUCE, KafkaError.INVALID_RECORD)
        producer.produce("topic", b"value", b"key", [], lambda error: results.append(error.code() if error else 0))
        wait_for("the report", lambda: producer.poll(0.1) or results, 20)
        producer.close(1)
    assert [KafkaError.INVALID_RECORD] == results


def test_no_further_record_is_taken_while_records_wait_for_a_new_producer() -> None:
    """A right can be missing for days. Memory would grow without a limit."""
    with broker_with_topic() as (settings, broker):
        producer = ResendingProducer(settings, "test", log_level=0)
        refuse_next(broker, _PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED, 2)
        producer.produce("topic", b"value", b"key", [], lambda _: None)
        with pytest.raises(BufferError):
            wait_for("the second error", lambda: producer.poll(0.1) or produce_another(producer), 20)
        producer.close(0)


def produce_another(producer: ResendingProducer) -> None:
    producer.produce("topic", b"value", b"key", [], lambda _: None)


def test_a_client_that_gets_an_answer_has_not_lost_its_brokers(settings: Settings) -> None:
    """A new client gets an answer, too."""
    assert not clients.has_lost_all_brokers(clients.producer(settings, "test"), settings)


def test_no_record_is_lost_while_each_new_producer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """New producers fail while they get the waiting records. An error would end the thread of the audit trail."""
    monkeypatch.setattr(clients, "LOST_SECONDS", 0.0)
    results: list[KafkaError | None] = []
    with broker_with_topic() as (settings, broker):
        producer = ResendingProducer(settings, "test", log_level=0)
        for _ in range(10_000):
            producer.produce("topic", b"value", b"key", [], results.append)
        fail(producer._producer)
        refuse_next(broker, _INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED, 5)

        def all_are_acknowledged() -> bool:
            producer.poll(0.1)
            return not len(producer)

        wait_for("the acknowledgements", all_are_acknowledged, 60)
        producer.close(1)
    assert 10_000 * [None] == results


def test_producers_that_fail_at_once_are_replaced_at_intervals() -> None:
    """A right can be missing for days. Each new producer opens connections and writes log lines."""
    results: list[KafkaError | None] = []
    with broker_with_topic() as (settings, broker), capture_logs() as lines:
        producer = ResendingProducer(settings, "test", log_level=0)
        with hanging(broker):  # It acknowledges none of the records.
            for _ in range(10_000):
                producer.produce("topic", b"value", b"key", [], results.append)
            fail(producer._producer)
        refuse_next(broker, _INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED, 5)
        producer.poll(0.1)
        second = producer._producer

        def has_failed_again() -> bool:
            producer.poll(0.1)
            return len(lines) > 1

        wait_for("the second failure", has_failed_again)
        # librdkafka reports all records as purged. They wait for the next producer.
        for _ in range(10):
            producer.poll(0.1)
        assert (second, 10_000, []) == (producer._producer, len(producer), results)
        producer.close(0)
    assert 10_000 == len(results)


def test_a_producer_that_fails_while_it_is_discarded_reports_its_records(settings: Settings) -> None:
    """An error would end the thread that sends the commands of an instance."""
    results: list[int] = []
    producer = clients.producer(settings, "test", log_level=0)
    producer.produce("topic", b"value", on_delivery=lambda error, _: results.append(error.code()))
    fail(producer)
    clients.discard(producer)
    assert [KafkaError._PURGE_QUEUE] == results


def test_a_producer_that_fails_while_it_closes_reports_its_records(settings: Settings) -> None:
    """The broker has none of them."""
    results: list[KafkaError | None] = []
    producer = ResendingProducer(settings, "test")
    producer.produce("topic", b"value", None, [], results.append)
    fail(producer._producer)
    producer.close(1)
    assert [KafkaError._PURGE_QUEUE] == [error and error.code() for error in results]


def test_records_that_wait_for_a_new_producer_are_sent_at_the_end(settings: Settings) -> None:
    """After the second failure, a new producer comes only after a pause. The process ends before it."""
    results: list[KafkaError | None] = []
    producer = ResendingProducer(settings, "test")
    fail(producer._producer)
    producer.poll(0)
    producer.produce("topic", b"value", None, [], results.append)
    fail(producer._producer)
    producer.poll(0)
    producer.close(30)
    assert [None] == results


def test_a_publication_waits_while_the_queue_is_full(settings: Settings) -> None:
    """A file can have more records than the queue of a producer."""
    producer = connected_producer(settings, "test", ["topic"], **{"queue.buffering.max.messages": 1})
    assert 3 == publish([(None, b"value")] * 3, producer, "topic")


def test_the_error_of_a_caller_is_not_replaced_by_that_of_its_producer(settings: Settings) -> None:
    """The caller has the cause, for example a line of a file that cannot be read."""
    producer = connected_producer(settings, "test", [])
    with pytest.raises(LookupError), Publisher(producer) as publisher:  # noqa: PT012 - its end could raise
        publisher.publish("topic", None, b"value")
        fail(producer)
        raise LookupError


def test_a_publication_says_that_its_producer_failed(settings: Settings) -> None:
    """A command of the operator prints this line. Otherwise it would print a traceback."""
    producer = connected_producer(settings, "test", [])
    with pytest.raises(PublishError, match="not delivered: test_fatal_error"), Publisher(producer) as publisher:  # noqa: PT012 - its end raises
        publisher.publish("topic", None, b"value")
        fail(producer)
