"""Publishes records. The broker acknowledges each record, or an error says why not."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin._metadata import TopicMetadata

from services import tracing
from services.errors import UserError
from services.messaging import clients
from services.settings import Settings

BROKER_TIMEOUT = 10.0
"""After this number of seconds a broker that does not answer counts as unreachable."""

TOPIC_TIMEOUT = 3.0
"""After this number of seconds a topic that the broker does not know counts as missing."""

DELIVERY_TIMEOUT = 30.0
"""After this number of seconds a record without an acknowledgement counts as lost."""

_RETRY_SECONDS = 0.1
_QUEUE_POLL_SECONDS = 0.1
_RECORDS_PER_POLL = 256
_SEND_AGAIN = "later records may be missing too. Send all of them again when Kafka answers"
_TOO_LARGE = "later records may be missing too. Raise max.message.bytes of the topic, or send only the other records"


class PublishError(UserError):
    """Records did not reach the broker. The message names the broker or topic, and the reason."""


class NoBrokerError(PublishError):
    """No broker can be used. Each further attempt would wait for BROKER_TIMEOUT, too."""


def connected_producer(settings: Settings, client_id: str, topics: Iterable[str], **more: clients.Option) -> Producer:
    """A producer, after a check that the broker answers and has these topics.

    Raises PublishError if the check fails, after BROKER_TIMEOUT at the latest. NoBrokerError: no broker answers.
    """
    diagnosis = clients.ConnectionDiagnosis()
    overrides: dict[str, clients.Option] = {
        "error_cb": diagnosis.on_error,
        "message.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
        # Larger batches are faster, and no caller waits for a single record.
        "linger.ms": 20,
        # With librdkafka's default of 1 GiB, records of 8 MiB took 943 MiB of memory. With 96 MiB, they take 232 MiB.
        # The queue must have room for the largest record. A record that waits in the queue can still time out: 20,000
        # records of 20 kB arrived at a broker that needs 0.3 s for each request, and not at one that needs 0.5 s.
        "queue.buffering.max.kbytes": 3 * clients.LARGEST_REQUEST_BYTES // 2 // 1024,
        "queue.buffering.max.messages": 20_000,
        # librdkafka's log would break progress bars. All important errors are raised.
        "log_level": 0,
        **more,
    }
    try:
        producer = clients.producer(settings, client_id, **overrides)
    except KafkaException as error:
        raise PublishError(f"the settings of Kafka do not work: {error.args[0].str()}") from error
    try:
        producer.list_topics(timeout=BROKER_TIMEOUT)
        for topic in topics:
            find_topic(producer, topic)
    except KafkaException as error:
        producer.poll(0)
        raise NoBrokerError(diagnosis.explain(settings)) from error
    return producer


def require_broker(settings: Settings) -> None:
    """Raise PublishError if no broker answers within BROKER_TIMEOUT."""
    connected_producer(settings, "loyalty-check", [])


def find_topic(client: Producer | Consumer, topic: str) -> TopicMetadata:
    """The broker's description of a topic. Raises PublishError if the topic does not exist.

    A broker can learn of a new topic a moment after its creation, so the function retries for TOPIC_TIMEOUT.
    """
    deadline = time.monotonic() + TOPIC_TIMEOUT
    while True:
        found: TopicMetadata = client.list_topics(topic, timeout=BROKER_TIMEOUT).topics[topic]
        if (error := found.error) is None:
            return found
        if time.monotonic() > deadline:
            hint = "; `loyalty topics create` creates it" if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART else ""
            raise PublishError(f"topic {topic}: {error.str()}{hint}")
        time.sleep(_RETRY_SECONDS)


class Publisher:
    """Publishes records, as a context manager.

    ``__exit__`` waits until every record is acknowledged, and raises PublishError for the first record that was not.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._failure: str | None = None
        self._since_poll = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, error: object, trace: object) -> None:
        if error_type is not None:
            # The caller already has an error. Only wait for the last records.
            with suppress(KafkaException):
                clients.flush(self._producer, DELIVERY_TIMEOUT)
            return
        while self._process(partial(clients.flush, self._producer), 1.0):
            pass

    def publish(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Mapping[str, str] | Sequence[tuple[str, str | bytes | None]] = (),
        name: str = "a record",
    ) -> None:
        """Queue a record; wait while the queue is full. Raises PublishError after a delivery has failed.

        Args:
            name: the name of the record in the error.
        """
        on_delivery = partial(self._on_delivery, name)
        # A list, because a record can have several headers with the same name.
        pairs: Any = list(headers.items() if isinstance(headers, Mapping) else headers)
        while True:
            try:
                self._producer.produce(topic, value, key, headers=pairs, on_delivery=on_delivery)
                break
            except BufferError:
                self.poll(_QUEUE_POLL_SECONDS)
            except KafkaException as error:
                raise PublishError(f"topic {topic}: {error.args[0].str()}") from error
        self._since_poll += 1
        if self._since_poll >= _RECORDS_PER_POLL:
            self._since_poll = 0
            self.poll(0)

    def poll(self, seconds: float) -> None:
        """Process acknowledgements for at most this time. Raises PublishError after a delivery has failed."""
        self._process(self._producer.poll, seconds)

    def _process(self, wait: Callable[[float], int], seconds: float) -> int:
        try:
            number = wait(seconds)
        except KafkaException as error:
            raise PublishError(f"a record was not delivered: {error.args[0].str()}; {_SEND_AGAIN}") from error
        if self._failure is not None:
            raise PublishError(self._failure)
        return number

    def _on_delivery(self, name: str, error: KafkaError | None, message: KafkaMessage) -> None:
        if error is not None and self._failure is None:
            advice = _TOO_LARGE if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else _SEND_AGAIN
            self._failure = f"topic {message.topic()}: {name} was not delivered: {error.str()}; {advice}"


def publish(
    records: Iterable[tuple[bytes | None, bytes | None]],
    producer: Producer,
    topic: str,
    rate: float = 0,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Publish all records in order. Each begins a trace. Returns their number after all are acknowledged.

    Args:
        rate: records per second; 0 for no limit.
        on_progress: called at intervals with the number of queued records.

    Raises PublishError for the first record that could not be delivered. Later records may not be sent.
    """
    started = time.monotonic()
    number = 0
    every = max(1, min(1_000, int(rate or 1_000)))
    with Publisher(producer) as publisher:
        for number, (key, value) in enumerate(records, start=1):
            with tracing.span(f"publish {topic}", "producer"):
                publisher.publish(topic, key, value, tracing.headers())
            if rate:
                _wait_until(started + number / rate, publisher)
            if on_progress and number % every == 0:
                on_progress(number)
    if on_progress:
        on_progress(number)
    return number


def _wait_until(due: float, publisher: Publisher) -> None:
    while (left := due - time.monotonic()) > 0:
        publisher.poll(min(left, 1.0))
