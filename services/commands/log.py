"""Commands on their way to the loyalty query: a mark that one was asked for, then the command itself."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas import topics
from schemas.topics import Topic
from services.messaging import clients
from services.messaging.avro import Record, encoder
from services.messaging.headers import cloud_event
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import schema_ids
from services.settings import Settings

log = structlog.get_logger(__name__)

DELIVERY_SECONDS = 5.0
"""Until a record that no broker has acknowledged counts as not published; the caller is there, waiting."""

PENDING, DONE = "pending", "done"
ERASE = "erase"
MARK_SEQUENCE, DECISION_SEQUENCE = 1, 2
"""Sequences of a command's records on loyalty-decisions."""

_POLL_SECONDS = 0.1


def mark_of(command_id: str, kind: str, request_hash: str) -> Record:
    """The record that a command has been asked for. It names no customer: one that is erased leaves none behind."""
    return {
        "CommandID": command_id,
        "Sequence": MARK_SEQUENCE,
        "Status": PENDING,
        "Kind": kind,
        "CustomerCardNo": "",
        "RequestHash": request_hash,
        "Points": None,
        "RedemptionID": "",
        "Reason": "",
        "AccountSequence": 0,
        "OpenedTime": 0,
        "TotalLoyaltyPoints": None,
        "AvailableLoyaltyPoints": None,
        "ExpiresTime": 0,
        "UpdatedTime": 0,
    }


class CommandLog(Protocol):
    """Where commands go. Both calls return once the record cannot be lost, and raise PublishError otherwise."""

    async def mark(self, mark: Record) -> None:
        """Write down that a command was asked for."""

    async def send(self, command: Record) -> None:
        """Give a command to whoever decides. One that was given before is not decided twice."""

    def close(self) -> None:
        """Send what is under way, and end."""


class KafkaCommandLog:
    """The topics loyalty-decisions and loyalty-commands.

    confluent_kafka.aio's producer has no headers and keeps a lone record for up to a second; so this is the plain one,
    with a thread that takes in its acknowledgements.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._encoders: dict[Topic, Callable[[Mapping[str, Any]], bytes]] = {}
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="command-log", daemon=True)

    async def mark(self, mark: Record) -> None:
        await self._publish(topics.LOYALTY_DECISIONS, mark["CommandID"], mark["CommandID"], mark)

    async def send(self, command: Record) -> None:
        await self._publish(topics.LOYALTY_COMMANDS, command["CustomerCardNo"], command["CommandID"], command)

    def close(self) -> None:
        self._closing.set()
        if self._poller.is_alive():
            self._poller.join()
        if self._producer:
            self._producer.flush(DELIVERY_SECONDS)

    async def _publish(self, topic: Topic, key: str, identity: str, record: Record) -> None:
        loop = asyncio.get_running_loop()
        acknowledged: asyncio.Future[None] = loop.create_future()

        def settle(error: KafkaError | None) -> None:
            if acknowledged.done():  # the request was given up meanwhile
                return
            if error is None:
                acknowledged.set_result(None)
            else:
                acknowledged.set_exception(PublishError(f"topic {topic.name}: {error.str()}"))

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(settle, error)

        # The first record of all asks the Schema Registry, where there is one.
        await asyncio.to_thread(self._hand_over, topic, key, identity, record, on_delivery)
        try:
            async with asyncio.timeout(2 * DELIVERY_SECONDS):
                await acknowledged
        except TimeoutError as error:
            raise PublishError(f"topic {topic.name}: no word of a record") from error

    def _hand_over(
        self,
        topic: Topic,
        key: str,
        identity: str,
        record: Record,
        on_delivery: Callable[[KafkaError | None, Message], None],
    ) -> None:
        headers: Mapping[str, str | bytes] = {**cloud_event(identity, str(topic.value))}
        value = self._encoder(topic)(record)
        try:
            self._ready_producer().produce(
                self._settings.name_of(topic), value, key.encode(), headers=dict(headers), on_delivery=on_delivery
            )
        except (BufferError, KafkaException) as error:
            raise PublishError(f"topic {topic.name}: {error}") from error

    def _encoder(self, topic: Topic) -> Callable[[Mapping[str, Any]], bytes]:
        if topic not in self._encoders:
            try:
                self._encoders[topic] = encoder(topic, schema_ids(self._settings))
            # Whatever the registry's client, or its HTTP library, raises.
            except Exception as error:
                raise PublishError(f"the Schema Registry gave no id for {topic.value}: {error}") from error
        return self._encoders[topic]

    def _ready_producer(self) -> Producer:
        """The producer; a new one after an error that ends its predecessor."""
        with self._lock:
            if self._producer is None:
                options: dict[str, clients.Option] = {
                    "message.timeout.ms": int(DELIVERY_SECONDS * 1000),
                    "linger.ms": 0,  # somebody waits for this one record
                    "error_cb": self._note,
                }
                self._producer = clients.producer(self._settings, "loyalty-api-commands", **options)
                if not self._poller.is_alive():
                    self._poller.start()
            return self._producer

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            log.error("the producer of commands has to be replaced", error=error.str())
            with self._lock:
                self._producer = None

    def _poll(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                producer = self._producer
            if producer is None:
                self._closing.wait(_POLL_SECONDS)
            else:
                producer.poll(_POLL_SECONDS)
