"""Publishing many records, each of them for certain or with an error that says why not."""

import time
from collections.abc import Callable, Iterable
from typing import Protocol, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin._metadata import TopicMetadata

from services.messaging import clients
from services.settings import Settings

BROKER_TIMEOUT = 10.0
"""Seconds until a broker that does not answer counts as unreachable."""

TOPIC_TIMEOUT = 3.0
"""Seconds until a topic that the broker does not know counts as missing."""

DELIVERY_TIMEOUT = 30.0
"""Seconds until a record that no broker has acknowledged counts as lost."""

_ASK_AGAIN = 0.1
_QUEUE_POLL = 0.1
_SERVE_EVERY = 256


class PublishError(RuntimeError):
    """Records did not reach the broker; the message says which broker or topic, and why."""


class Record(Protocol):
    """What can be published."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


def connected_producer(settings: Settings, client_id: str, topics: Iterable[str]) -> Producer:
    """A producer whose broker answers and has these topics; raises PublishError otherwise, within BROKER_TIMEOUT."""
    diagnosis = clients.ConnectionDiagnosis()
    overrides: dict[str, clients.Option] = {
        "error_cb": diagnosis.on_error,
        "message.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
        # Long runs fill larger batches; a record that has to wait for its batch costs nobody anything here.
        "linger.ms": 20,
        "queue.buffering.max.messages": 200_000,
        # librdkafka's own lines would break progress bars; whatever matters comes back as an error.
        "log_level": 0,
    }
    producer = clients.producer(settings, client_id, **overrides)
    try:
        producer.list_topics(timeout=BROKER_TIMEOUT)
        for topic in topics:
            find_topic(producer, topic)
    except KafkaException as error:
        producer.poll(0)
        raise PublishError(diagnosis.explain(settings)) from error
    return producer


def require_broker(settings: Settings) -> None:
    """Raise PublishError unless a broker answers, within BROKER_TIMEOUT."""
    connected_producer(settings, "loyalty-check", [])


def find_topic(client: Producer | Consumer, topic: str) -> TopicMetadata:
    """The topic as the broker describes it; raises PublishError if there is none.

    A broker learns of a new topic a moment after its creation was acknowledged, so it is asked for TOPIC_TIMEOUT.
    """
    deadline = time.monotonic() + TOPIC_TIMEOUT
    while True:
        found: TopicMetadata = client.list_topics(topic, timeout=BROKER_TIMEOUT).topics[topic]
        if found.error is None:
            return found
        if time.monotonic() > deadline:
            break
        time.sleep(_ASK_AGAIN)
    hint = "; `loyalty topics create` makes it" if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART else ""
    raise PublishError(f"topic {topic}: {found.error.str()}{hint}")


class Publisher:
    """Publishes records and remembers the first delivery that failed.

    Use it as a context manager: leaving it waits until every record is acknowledged, and raises PublishError if one
    was not.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._failure: str | None = None
        self._since_served = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, error: object, trace: object) -> None:
        if error_type is not None:
            # What is on its way still arrives or fails; the caller already has an error to show.
            self._producer.flush(DELIVERY_TIMEOUT)
            return
        while self._producer.flush(1.0):
            self._raise_failure()
        self._raise_failure()

    def publish(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Hand a record over; waits while the send queue is full. Raises PublishError once a delivery has failed."""
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=self._delivered)
                break
            except BufferError:
                self.serve(_QUEUE_POLL)
            except KafkaException as error:
                raise PublishError(f"topic {topic}: {error.args[0].str()}") from error
        self._since_served += 1
        if self._since_served >= _SERVE_EVERY:
            self._since_served = 0
            self.serve(0)

    def serve(self, seconds: float) -> None:
        """Take in acknowledgements for so long at most."""
        self._producer.poll(seconds)
        self._raise_failure()

    def _delivered(self, error: KafkaError | None, message: KafkaMessage) -> None:
        if error is not None and self._failure is None:
            self._failure = f"topic {message.topic()}: a record was not delivered: {error.str()}"

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise PublishError(self._failure)


def publish(
    records: Iterable[Record],
    producer: Producer,
    topic: str,
    rate: float = 0,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Publish all records, in their order; returns how many, all of them acknowledged.

    Args:
        rate: records per second; 0 as fast as possible.
        on_progress: called with the number handed over so far, now and then.

    Raises PublishError for the first record that could not be delivered; the ones after it are not all sent.
    """
    started = time.monotonic()
    number = 0
    every = min(1_000, int(rate) or 1) if rate else 1_000
    with Publisher(producer) as publisher:
        for number, record in enumerate(records, start=1):
            publisher.publish(topic, record.key, record.value)
            if rate:
                _wait_until(started + number / rate, publisher)
            if on_progress and number % every == 0:
                on_progress(number)
    if on_progress:
        on_progress(number)
    return number


def _wait_until(due: float, publisher: Publisher) -> None:
    while (left := due - time.monotonic()) > 0:
        publisher.serve(min(left, 1.0))
