"""Writes each notification that an endpoint cannot receive into the topic dead-letters."""

import asyncio
import threading

from confluent_kafka import KafkaException, Message, Producer

from services.messaging import headers
from services.messaging.publishing import PublishError
from services.messaging.record_headers import headers_of

_POLL_SECONDS = 0.1


class DeadLetterWriter:
    """Writes records to the topic of dead letters."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic

    async def write(self, record: Message, reason: str) -> None:
        """Write a record and the reason. Raises PublishError if the broker does not acknowledge the record."""
        cancelled = threading.Event()
        try:
            await asyncio.to_thread(self._write, record, reason, cancelled)
        finally:
            cancelled.set()  # ends the thread, because the event loop cannot close before it

    def _write(self, record: Message, reason: str, cancelled: threading.Event) -> None:
        key, value, others = record.key(), record.value(), headers_of(record)
        size = len(key or b"") + sum(len(name.encode()) + len(text or b"") + 6 for name, text in others)
        if size > headers.LARGEST_HEADERS:
            key, others, reason = None, [], reason + headers.WITHOUT_HEADERS
        if len(value or b"") > headers.LARGEST_VALUE:
            value, reason = None, f"{reason}; {headers.TOO_LARGE}"
        origin = {
            headers.DEAD_LETTER_TOPIC: record.topic(),
            headers.DEAD_LETTER_PARTITION: record.partition(),
            headers.DEAD_LETTER_OFFSET: record.offset(),
            headers.DEAD_LETTER_REASON: reason,
        }
        errors: list[object] = []

        def on_delivery(error: object, _: object) -> None:
            errors.append(error)

        texts = [(name, str(value).encode()) for name, value in origin.items()]
        try:
            while not cancelled.is_set():
                try:
                    self._producer.produce(self._topic, value, key, headers=[*others, *texts], on_delivery=on_delivery)
                    break
                except BufferError:  # dead letters of other endpoints fill the queue
                    self._producer.poll(_POLL_SECONDS)
            while not errors and not cancelled.is_set():  # librdkafka reports an error after DELIVERY_TIMEOUT
                self._producer.poll(_POLL_SECONDS)
        except KafkaException as error:
            raise PublishError(f"topic {self._topic}: a dead letter was not delivered: {error}") from error
        if any(errors):
            raise PublishError(f"topic {self._topic}: a dead letter was not delivered: {errors[0]}")
