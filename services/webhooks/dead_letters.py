"""Writes each notification that an endpoint cannot receive into the topic dead-letters."""

import asyncio
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException, Message, Producer

from services.messaging import headers
from services.messaging.publishing import PublishError
from services.messaging.record_headers import headers_of

_SHORTEST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0


class DeadLetterWriter:
    """Writes records to the topic of dead letters. All endpoints share it.

    It uses no threads of the event loop, because these threads also look up host names for the other notifications of
    the endpoint.
    """

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic

    async def write(self, record: Message, reason: str) -> None:
        """Write a record and the reason. Raises PublishError if the broker does not acknowledge the record."""
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
        texts = [(name, str(text).encode()) for name, text in origin.items()]
        try:
            error = await self._produce(key, value, [*others, *texts])
        except KafkaException as failure:
            error = failure
        if error is not None:
            raise PublishError(f"topic {self._topic}: a dead letter was not delivered: {error}")

    async def _produce(self, key: bytes | None, value: bytes | None, record_headers: list[Any]) -> object:
        """Write a record and wait for the report. Returns its error; None if the broker has acknowledged the record."""
        loop = asyncio.get_running_loop()
        report: asyncio.Future[object] = loop.create_future()

        def on_delivery(error: object, _: object) -> None:
            # The loop of another endpoint can run this, also after the end of this endpoint.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(report.set_result, error)

        pause, is_queued = _SHORTEST_PAUSE_SECONDS, False
        while not report.done():  # librdkafka reports an error after DELIVERY_TIMEOUT
            if not is_queued:
                # BufferError: dead letters of other endpoints fill the queue.
                with suppress(BufferError):
                    self._producer.produce(self._topic, value, key, headers=record_headers, on_delivery=on_delivery)
                    is_queued = True
            self._producer.poll(0)  # serves the reports of all dead letters
            await asyncio.wait([report], timeout=pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return report.result()
