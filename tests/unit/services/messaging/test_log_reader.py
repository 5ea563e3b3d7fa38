"""The log reader: its batches, its errors, and how it connects again."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
import stamina
import structlog
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Producer, TopicPartition

from services.messaging import clients
from services.messaging.log_reader import LogReader
from services.settings import Settings


class FakeError:
    """An error of a message. Instances of KafkaError for messages cannot be made in Python with a partition."""

    def __init__(self, code: int) -> None:
        self._code = code

    def code(self) -> int:
        return self._code


class FakeMessage:
    def __init__(self, partition: int, offset: int, error: int | None = None) -> None:
        self._partition = partition
        self._offset = offset
        self._error = error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> FakeError | None:
        return None if self._error is None else FakeError(self._error)


class FakeConsumer:
    """A consumer that returns these messages, and answers metadata requests unless it is offline."""

    def __init__(self, *messages: FakeMessage) -> None:
        self.messages = list(messages)
        self.offline = False
        self.closed = False

    def poll(self, _: float) -> FakeMessage | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, number: int, _: float) -> list[FakeMessage]:
        taken, self.messages = self.messages[:number], self.messages[number:]
        return taken

    def list_topics(self, timeout: float) -> None:
        if self.offline:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def no_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=1_000):
        yield


def reader_of(monkeypatch: pytest.MonkeyPatch, consumer: FakeConsumer, **arguments: Any) -> LogReader:
    monkeypatch.setattr("services.messaging.clients.consumer", lambda *_, **__: consumer)
    return LogReader(Settings(), "test", **arguments)


def test_a_consumer_commits_no_offset_by_itself(mocked_broker: tuple[Settings, Producer]) -> None:
    """Otherwise a process that ends would lose the records that it has read and not processed."""
    settings, producer = mocked_broker
    producer.produce("t", b"value", partition=0)
    producer.flush(10)
    place = TopicPartition("t", 0, 0)
    with closing(clients.consumer(settings, "test")) as consumer:
        consumer.assign([place])
        assert b"value" == next(iter(consumer.consume(1, 30))).value()
    with closing(clients.consumer(settings, "test")) as consumer:
        assert [OFFSET_INVALID] == [each.offset for each in consumer.committed([place], 30)]


def test_a_position_that_the_broker_does_not_have_is_an_error(mocked_broker: tuple[Settings, Producer]) -> None:
    """A jump to the first record would process records twice, and a jump to the end would lose some."""
    settings, producer = mocked_broker
    producer.produce("t", b"value", partition=0)
    producer.flush(10)
    with LogReader(settings, "test") as reader:
        reader.consumer.assign([TopicPartition("t", 0, 5)])
        with pytest.raises(KafkaException) as raised:
            reader.read(10, 30)
    assert KafkaError._AUTO_OFFSET_RESET == raised.value.args[0].code()


def test_a_batch_has_the_arrived_records_of_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are grouped in the order of their offsets, up to the maximum. End offsets are reported separately."""
    end = FakeMessage(1, 9, KafkaError._PARTITION_EOF)
    consumer = FakeConsumer(FakeMessage(0, 3), FakeMessage(1, 7), FakeMessage(0, 4), end, FakeMessage(0, 5))
    with reader_of(monkeypatch, consumer) as reader:
        first, second, third = (reader.read(4, 0) for _ in range(3))

    offsets = {key: [message.offset() for message in messages] for key, messages in first.records.items()}
    assert {("t", 0): [3, 4], ("t", 1): [7]} == offsets
    assert {("t", 1): 9} == first.ends
    assert [5] == [message.offset() for message in second.records["t", 0]]
    assert ({}, {}) == third
    assert consumer.closed


def test_an_error_of_a_partition_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user reads again from its stored positions, so no record of the batch is lost."""
    consumer = FakeConsumer(FakeMessage(0, 3), FakeMessage(0, -1, KafkaError._AUTO_OFFSET_RESET))
    with reader_of(monkeypatch, consumer) as reader, pytest.raises(KafkaException):
        reader.read(10, 0)


def test_a_client_error_ends_when_a_broker_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka reports a lost connection, but not that it has reconnected. A quiet topic must not hide that."""
    consumer = FakeConsumer()
    with reader_of(monkeypatch, consumer) as reader:
        cast(Any, reader._options["error_cb"])(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        assert_error_while_offline(reader, consumer)


def test_a_broker_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka reports no error as long as the connection is open. A reader without records asks for itself."""
    consumer = FakeConsumer()
    monkeypatch.setattr("services.messaging.clients.LOST_SECONDS", -1.0)
    with reader_of(monkeypatch, consumer) as reader:
        assert_error_while_offline(reader, consumer)


def assert_error_while_offline(reader: LogReader, consumer: FakeConsumer) -> None:
    """The reader has an error after the first read without an answer. A read with an answer raises none."""
    consumer.offline = True
    with pytest.raises(KafkaException):
        reader.read(10, 0)
    assert reader.error is not None
    consumer.offline = False
    reader.read(10, 0)


def test_an_old_client_error_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka can report a refused connection after the next one works. A broker that answers is proof enough."""
    with reader_of(monkeypatch, FakeConsumer()) as reader:
        with structlog.testing.capture_logs() as logs:
            cast(Any, reader._options["error_cb"])(KafkaError(KafkaError._TRANSPORT))
            reader.read(10, 0)

        assert (None, []) == (reader.error, logs)


@pytest.mark.usefixtures("no_waiting")
def test_a_reader_connects_again_after_each_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors in connect and in poll_once are retried. The reader says why it does not read, until poll_once succeeds:
    the process is not ready if only connect succeeds.
    """
    calls: list[str] = []
    errors: list[str | None] = []
    outcomes = iter([KafkaException(KafkaError(KafkaError._TIMED_OUT)), None, TimeoutError("the database is away")])

    def connect() -> None:
        calls.append("connect")
        errors.append(reader.error)
        if error := next(outcomes, None):
            raise error

    def poll_once() -> None:
        calls.append("poll_once")
        errors.append(reader.error)
        if error := next(outcomes, None):
            raise error
        if len(calls) > 6:
            assert reader.connected
            reader.stop()

    reader = reader_of(monkeypatch, FakeConsumer(), retry_on=(TimeoutError,))
    reader.run(connect, poll_once)

    assert ["connect", "connect", "poll_once", "connect", "poll_once", "poll_once", "poll_once"] == calls
    no_answer, away = "Kafka does not answer: Local: Timed out", "TimeoutError: the database is away"
    assert [None, no_answer, no_answer, away, away, None, None] == errors
    assert not reader.connected


@pytest.mark.usefixtures("no_waiting")
def test_any_other_error_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect is not retried, and the consumer is closed."""
    consumer = FakeConsumer()

    def fail() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        reader_of(monkeypatch, consumer).run(lambda: None, fail)

    assert consumer.closed


@pytest.mark.usefixtures("no_waiting")
def test_a_reader_stops_while_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop ends the retries, without an error."""
    reader, steps = reader_of(monkeypatch, FakeConsumer()), []

    def connect() -> None:
        steps.append("connect")
        reader.stop()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    reader.run(connect, lambda: steps.append("poll"))

    assert ["connect"] == steps
    assert not reader.connected
