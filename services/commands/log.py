"""Publishes commands for the loyalty query, and a mark before each command. The mark says that it was requested."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas import topics
from schemas.topics import Topic
from services import tracing
from services.messaging import clients
from services.messaging.avro import Record, encoder
from services.messaging.headers import cloud_event
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError, schema_ids
from services.settings import Settings

log = structlog.get_logger(__name__)

DELIVERY_SECONDS = 5.0
"""After this number of seconds a record without an acknowledgement counts as not published."""

_POLL_SECONDS = 0.1


class CommandLog:
    """Publishes marks to the topic loyalty-decisions and commands to the topic loyalty-commands.

    ``mark`` and ``send`` return after the broker has acknowledged the record, or raise PublishError.

    It uses the synchronous producer, with a thread that polls for acknowledgements. The producer of
    confluent_kafka.aio has no headers and delays a single record for up to a second.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # While the Schema Registry does not answer, commands fill these threads. Scans, tokens and programmes use those
        # of asyncio, and must not wait.
        self._threads = ThreadPoolExecutor(thread_name_prefix="commands")
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._timed_out = False
        self._next_check = 0.0
        self._encoders: dict[Topic, Callable[[Mapping[str, Any]], bytes]] = {}
        self._poller: threading.Thread | None = None
        self._closing = threading.Event()

    async def mark(self, mark: Record) -> None:
        await self._publish(topics.LOYALTY_DECISIONS, mark["CommandID"], mark)

    async def send(self, command: Record) -> None:
        """Publish a command. The loyalty query decides a command once, even if it is published twice."""
        await self._publish(topics.LOYALTY_COMMANDS, command["CustomerCardNo"], command)

    def close(self) -> None:
        """Send the queued records and stop."""
        self._closing.set()
        if self._poller:
            self._poller.join()

    async def _publish(self, topic: Topic, key: str, record: Record) -> None:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[KafkaError | None] = loop.create_future()

        def complete(error: KafkaError | None) -> None:
            if not outcome.done():  # otherwise the request was cancelled
                outcome.set_result(error)

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is not None and error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001 - the code has no other name
                self._timed_out = True
            with suppress(RuntimeError):  # the loop has ended, so no caller waits for the outcome
                loop.call_soon_threadsafe(complete, error)

        with tracing.span(f"publish {topic.name}", "producer"):
            headers: Mapping[str, str | bytes] = cloud_event(record["CommandID"], topic.value) | tracing.headers()
            try:
                async with asyncio.timeout(DELIVERY_SECONDS):
                    producer, value = await loop.run_in_executor(self._threads, self._prepare, topic, record)
            except TimeoutError as late:
                raise PublishError(
                    f"topic {topic.name}: the record could not be prepared in time; the Schema Registry may not answer"
                ) from late
            # No thread may do this later: another instance may own the command then, and may have decided it.
            try:
                producer.produce(
                    self._settings.name_of(topic), value, key.encode(), headers=dict(headers), on_delivery=on_delivery
                )
            except (BufferError, KafkaException) as error:
                raise PublishError(f"topic {topic.name}: {error}") from error
            try:
                async with asyncio.timeout(2 * DELIVERY_SECONDS):
                    failure = await outcome
            except TimeoutError as late:
                raise PublishError(f"topic {topic.name}: no broker acknowledged the record in time") from late
            if failure is not None:
                raise PublishError(f"topic {topic.name}: {failure.str()}")

    def _prepare(self, topic: Topic, record: Record) -> tuple[Producer, bytes]:
        """The producer and the value of a record. It can wait for the Schema Registry and for Kafka."""
        value = self._encoder(topic)(record)
        try:
            return self._ready_producer(), value
        except KafkaException as error:
            raise PublishError(f"topic {topic.name}: {error}") from error

    def _encoder(self, topic: Topic) -> Callable[[Mapping[str, Any]], bytes]:
        if topic not in self._encoders:
            try:
                self._encoders[topic] = encoder(topic, schema_ids(self._settings))
            except SchemaRegistryUnavailableError as error:
                raise PublishError(str(error)) from error
        return self._encoders[topic]

    def _ready_producer(self) -> Producer:
        """The producer. It is a new one after a fatal error, and after the former one has lost all brokers."""
        with self._lock:
            if self._producer is None:
                options: dict[str, clients.Option] = {
                    "message.timeout.ms": int(DELIVERY_SECONDS * 1000),
                    "linger.ms": 0,  # a client waits for this record, so send it at once
                }
                self._producer = clients.producer(self._settings, "loyalty-api-commands", **options)
                poll = partial(self._poll, self._producer)
                self._poller = threading.Thread(target=poll, name="command-log", daemon=True)
                self._poller.start()
            return self._producer

    def _poll(self, producer: Producer) -> None:
        """Process acknowledgements until ``close``. Discard a producer that has failed or has lost all brokers.

        The next command then creates a new one. Waiting requests get an error at once.
        """
        try:
            while not self._is_lost(producer):
                if self._closing.is_set():
                    clients.flush(producer, DELIVERY_SECONDS)
                    return
                producer.poll(_POLL_SECONDS)
        except KafkaException as error:
            reason = error.args[0].str()
            log.warning("the producer of commands has failed; the next command creates a new one", error=reason)
        with self._lock:
            self._producer = None
        clients.discard(producer)

    def _is_lost(self, producer: Producer) -> bool:
        if not self._timed_out or self._closing.is_set() or time.monotonic() < self._next_check:
            return False
        self._timed_out = False
        self._next_check = time.monotonic() + clients.LOST_SECONDS
        return clients.has_lost_all_brokers(producer, self._settings)
