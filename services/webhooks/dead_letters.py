"""Sets aside what could not be delivered, as the pipeline does with what it cannot read."""

import asyncio

from confluent_kafka import Message as KafkaMessage

from schemas import topics
from services.messaging import headers
from services.messaging.publishing import DELIVERY_TIMEOUT, PublishError, connected_producer
from services.settings import Settings


class DeadLetters:
    """Writes to the topic dead-letters; raises PublishError at once if there is no broker or no such topic."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.name_of(topics.DEAD_LETTERS)
        self._producer = connected_producer(settings, "loyalty-webhooks", [self._topic])

    async def add(self, message: KafkaMessage, reason: str) -> None:
        """Set a record aside with its reason; returns once the broker has it, raises PublishError if it never does."""
        await asyncio.to_thread(self._add, message, reason)

    def _add(self, message: KafkaMessage, reason: str) -> None:
        origin = {
            headers.DEAD_LETTER_TOPIC: message.topic(),
            headers.DEAD_LETTER_PARTITION: message.partition(),
            headers.DEAD_LETTER_OFFSET: message.offset(),
            headers.DEAD_LETTER_REASON: reason,
        }
        failures: list[str] = ["no broker has acknowledged it"]

        def delivered(error: object, _: object) -> None:
            failures.clear()
            if error is not None:
                failures.append(str(error))

        self._producer.produce(
            self._topic,
            message.value(),
            message.key(),
            headers=[*(message.headers() or ()), *((name, str(value).encode()) for name, value in origin.items())],
            on_delivery=delivered,
        )
        self._producer.flush(DELIVERY_TIMEOUT)
        if failures:
            raise PublishError(f"topic {self._topic}: a dead letter was not delivered: {failures[0]}")
