"""Delivers the notifications of one endpoint."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from confluent_kafka import Message as KafkaMessage
from structlog.contextvars import bound_contextvars

from schemas import topics
from services import tracing
from services.messaging.dead_letters import RecordPosition
from services.messaging.record_headers import headers_of
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings
from services.webhooks.dead_letters import DeadLetterWriter
from services.webhooks.decoding import WaitingDecoder
from services.webhooks.delivery import UndeliveredError
from services.webhooks.endpoints import Endpoint
from services.webhooks.group_reader import GroupReader
from services.webhooks.message import Message
from services.webhooks.metrics import Metrics

_IDLE_SECONDS = 0.5
_BUSY_SECONDS = 0.05
_LAG_SECONDS = 2.0
_MILLISECONDS = 1_000


class EndpointDispatcher:
    """Delivers every notification to one endpoint at least once, in the order of each customer.

    The endpoint has its own consumer group, so several processes share its partitions.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: Settings,
        ids: SchemaIds,
        deliver: Callable[[Message], Awaitable[None]],
        dead_letters: DeadLetterWriter,
        metrics: Metrics,
    ) -> None:
        self._endpoint = endpoint
        self._topic = settings.name_of(topics.LOYALTY)
        self._decoder = WaitingDecoder(endpoint.name, ids)
        self._deliver = deliver
        self._dead_letters = dead_letters
        self._metrics = metrics
        for outcome in ("delivered", "dead"):
            metrics.messages.labels(endpoint.name, outcome)  # exports 0: alerts need a sample before the first increase
        self._reader = GroupReader(endpoint.name, settings)
        self._deliveries: set[asyncio.Task[None]] = set()
        self._last_of_key: dict[bytes | None, asyncio.Task[None]] = {}
        self._next_lag_time = 0.0
        self._failure: Exception | None = None

    @property
    def problem(self) -> str | None:
        """Why the dispatcher cannot read or decode notifications now; None if it can."""
        return self._reader.problem or self._decoder.problem

    async def run(self, stopping: threading.Event) -> None:
        """Deliver until ``stopping`` is set. The next start reads the records that are not committed again.

        Raises KafkaException and PublishError (a dead letter could not be written).
        """
        with self._reader:
            try:
                while not stopping.is_set() and self._failure is None:
                    await self._poll_once()
            finally:
                await self._cancel_deliveries()
                self._decoder.close()
        if self._failure is not None:
            raise self._failure

    async def _poll_once(self) -> None:
        records, is_revoked = await self._reader.read(_BUSY_SECONDS if self._deliveries else _IDLE_SECONDS)
        if is_revoked:
            await self._cancel_deliveries()
        for record in records:
            self._start_delivery(record)
        await self._reader.commit()
        if time.monotonic() >= self._next_lag_time:
            self._next_lag_time = time.monotonic() + _LAG_SECONDS
            if (unread := await self._reader.unread()) is not None:
                self._metrics.lag.labels(self._endpoint.name, self._topic).set(unread + len(self._deliveries))

    async def _cancel_deliveries(self) -> None:
        for task in self._deliveries:
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)

    def _start_delivery(self, record: KafkaMessage) -> None:
        key = record.key()
        task = asyncio.create_task(self._process_after(self._last_of_key.get(key), record))
        self._deliveries.add(task)
        self._last_of_key[key] = task

        def forget(done: asyncio.Task[None]) -> None:
            self._deliveries.discard(done)
            if self._last_of_key.get(key) is done:
                del self._last_of_key[key]

        task.add_done_callback(forget)

    async def _process_after(self, previous: asyncio.Task[None] | None, record: KafkaMessage) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        try:
            if self._failure is None:
                await self._process(record)
                self._reader.finish(record)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._failure = error

    async def _process(self, record: KafkaMessage) -> None:
        name = self._endpoint.name
        try:
            message = Message.of(await self._decoder.decode(record.value() or b""))
        except (ValueError, OverflowError) as error:
            # The value cannot be decoded, or it has a time outside of the years 1 to 9999.
            await self._write_dead_letter(record, str(error))
            return
        if message.kind not in self._endpoint.kinds:
            return
        try:
            with (
                tracing.span("deliver a notification", "client", headers_of(record), endpoint=name),
                # The log has the position, because whoever reads a webhook-id can find the card by trial.
                bound_contextvars(**RecordPosition.of(record)._asdict()),
            ):
                await self._deliver(message)
        except UndeliveredError as error:
            await self._write_dead_letter(record, str(error))
            return
        self._metrics.messages.labels(name, "delivered").inc()
        self._metrics.delay.labels(name).observe(_age_seconds(record))

    async def _write_dead_letter(self, record: KafkaMessage, reason: str) -> None:
        await self._dead_letters.write(record, f"webhook {self._endpoint.name}: {reason}")
        self._metrics.messages.labels(self._endpoint.name, "dead").inc()


def _age_seconds(record: KafkaMessage) -> float:
    """The time since the broker appended the record."""
    return max(0.0, time.time() - record.timestamp()[1] / _MILLISECONDS)
