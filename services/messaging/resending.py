"""A producer for records that must not be lost while no broker answers."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Message

from services.messaging import clients
from services.settings import Settings

log = structlog.get_logger(__name__)

OnDelivery = Callable[[KafkaError | None], None]
"""Its argument is None if a broker has acknowledged the record."""

Headers = Sequence[tuple[str, str | bytes | None]]

_FINAL_CODES = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError._PURGE_QUEUE,  # noqa: SLF001 - the code has no other name
    KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
)
"""The broker refuses the record itself, or ``close`` has given it up. Any other error can pass, for example a missing
right, a missing topic, or an error of a broker that is going away.
"""


class _Record(NamedTuple):
    topic: str
    value: bytes
    key: bytes | None
    headers: Headers
    on_delivery: OnDelivery


class ResendingProducer:
    """Sends each record until a broker acknowledges it, or refuses the record itself.

    The caller calls ``poll`` regularly. A new producer replaces one that has failed, that gets any other error for a
    record, or that has lost all brokers. It sends the records without an acknowledgement again. Kafka may have some of
    them already, so readers must recognise a duplicate by its id.
    """

    def __init__(self, settings: Settings, client_id: str, **overrides: clients.Option) -> None:
        options: dict[str, clients.Option] = {**overrides, "message.timeout.ms": 0}
        self._settings = settings
        self._new_producer = partial(clients.producer, settings, client_id, **options)
        self._producer = self._new_producer()
        self._numbers = count()
        self._unacknowledged: dict[int, _Record] = {}
        self._answered_time = 0.0
        self._next_replacement, self._has_failed = 0.0, False

    def __len__(self) -> int:
        """The number of records without an acknowledgement."""
        return len(self._unacknowledged)

    def produce(self, topic: str, value: bytes, key: bytes | None, headers: Headers, on_delivery: OnDelivery) -> None:
        """Take a record. Raises KafkaException, and BufferError.

        BufferError: ``queue.buffering.max.messages`` records wait, or all records wait for a new producer.
        """
        if self._has_failed:
            raise BufferError("the records wait for a new producer")  # the queue of the failed one would not count them
        if not self._unacknowledged:
            self._answered_time = time.monotonic()
        number, record = next(self._numbers), _Record(topic, value, key, headers, on_delivery)
        self._send(number, record)
        self._unacknowledged[number] = record

    def poll(self, seconds: float) -> None:
        """Process acknowledgements for at most this time. Replace a producer that has failed or lost all brokers."""
        try:
            self._producer.poll(seconds)
        except KafkaException as error:
            self._note_failure(error.args[0])
        if self._has_failed:
            # A pause is necessary, because each new producer fails at once if a right is missing.
            if time.monotonic() >= self._next_replacement:
                self._next_replacement, self._has_failed = time.monotonic() + clients.LOST_SECONDS, False
                self._replace()
            return
        if not self._unacknowledged or time.monotonic() < self._answered_time + clients.LOST_SECONDS:
            return
        if clients.has_lost_all_brokers(self._producer, self._settings):
            self._replace()
        self._answered_time = time.monotonic()

    def close(self, seconds: float) -> None:
        """Wait for acknowledgements for at most this time. Then report the other records as not delivered."""
        if self._has_failed:
            self._replace()
        with suppress(KafkaException):
            clients.flush(self._producer, seconds)
        clients.discard(self._producer)
        for record in self._unacknowledged.values():  # a failed producer has refused these records
            record.on_delivery(KafkaError(KafkaError._FATAL))  # noqa: SLF001 - the code has no other name

    def _note_failure(self, error: KafkaError) -> None:
        if not self._has_failed:
            log.warning("a producer has failed; a new one replaces it within ten seconds", error=error.str())
        self._has_failed = True

    def _replace(self) -> None:
        former, self._producer = self._producer, self._new_producer()
        clients.discard(former)  # frees the callbacks of its records
        try:
            for number, record in self._unacknowledged.items():
                self._send(number, record)
        except KafkaException as error:  # the new one has failed too; ``poll`` replaces it and sends all records again
            self._note_failure(error.args[0])

    def _send(self, number: int, record: _Record) -> None:
        producer = self._producer

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if producer is not self._producer or (error and self._has_failed):
                return  # a new producer has the record, or will have it
            if error and error.code() not in _FINAL_CODES:
                self._note_failure(error)
                return
            self._answered_time = time.monotonic()
            del self._unacknowledged[number]
            record.on_delivery(error)

        arguments: dict[str, Any] = {"headers": list(record.headers), "on_delivery": on_delivery}
        producer.produce(record.topic, record.value, record.key, **arguments)
