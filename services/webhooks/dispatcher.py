"""Follows the topic loyalty for one endpoint: at least once, in order for each customer, nothing skipped."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from schemas import topics
from services.messaging import clients
from services.messaging.avro import decoder
from services.messaging.dead_letters import DeadLetterWriter
from services.messaging.record_position import RecordPosition
from services.messaging.schema_ids import SchemaIds, UnknownSchemaIdError
from services.settings import Settings
from services.webhooks.delivery import UndeliveredError
from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Message
from services.webhooks.metrics import Metrics

log = structlog.get_logger(__name__)

# Records on their way at most: few enough that a crash repeats little, many enough that some which are tried again and
# again do not hold up those of other customers.
_WINDOW = 500
_IDLE_SECONDS = 0.5
_BUSY_SECONDS = 0.05
_BROKER_SECONDS = 10.0
_MILLISECONDS = 1_000


class EndpointDispatcher:
    """Reads as a member of the endpoint's own group, so that several processes share the partitions.

    An endpoint that is new begins at the end of the topic, and that place is committed at once: what comes later is
    delivered, also if the process ends before anything came.

    The group is polled in a thread, one call at a time; rebalances are taken in there. All else is the event loop's.
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
        self._decode = decoder(topics.LOYALTY, ids)
        self._deliver = deliver
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._consumer = self._group_member(settings)
        self._read: list[KafkaMessage] = []
        self._on_their_way: set[asyncio.Task[None]] = set()
        self._last_of: dict[bytes | None, asyncio.Task[None]] = {}
        self._offsets: defaultdict[int, deque[int]] = defaultdict(deque)
        self._done: set[RecordPosition] = set()
        self._taken = False
        self._paused = False
        self._failure: Exception | None = None

    def _group_member(self, settings: Settings) -> Consumer:
        return clients.consumer(
            settings,
            "loyalty-webhooks",
            **{
                "group.id": f"{settings.topic_prefix}loyalty-webhooks-{self._endpoint.name}",
                "session.timeout.ms": str(int(settings.session_timeout.total_seconds() * _MILLISECONDS)),
                "enable.partition.eof": "false",
            },
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Deliver until it is to stop. Raises KafkaException, PublishError: what is not done then comes again."""
        self._consumer.subscribe([self._topic], on_assign=self._take, on_revoke=self._give_up, on_lost=self._give_up)
        try:
            while not stopping.is_set() and self._failure is None:
                await self._turn()
        finally:
            await self._abandon()
            await asyncio.to_thread(self._consumer.close)
        if self._failure is not None:
            raise self._failure

    async def _turn(self) -> None:
        await asyncio.to_thread(self._poll, _BUSY_SECONDS if self._on_their_way else _IDLE_SECONDS)
        if self._taken:
            await self._abandon()
            self._taken = False
        for record in self._read:
            self._send_off(record)
        self._read.clear()
        self._keep_to_window()
        await asyncio.to_thread(self._commit)
        self._note_lag()

    def _poll(self, seconds: float) -> None:
        """Read what there is. One by one: each record that comes is of the partitions as they are then."""
        while len(self._read) < _WINDOW and (message := self._consumer.poll(seconds)) is not None:
            seconds = 0
            if (error := message.error()) is None:
                self._read.append(message)
            elif not error.retriable():
                raise KafkaException(error)

    def _take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = consumer.committed(partitions, timeout=_BROKER_SECONDS)
        new = [place for place in places if place.offset < 0]
        for place in new:
            _, place.offset = consumer.get_watermark_offsets(place, timeout=_BROKER_SECONDS)
        consumer.assign(places)
        if new:
            consumer.commit(offsets=new, asynchronous=False)
        self._paused = False
        log.info("following", endpoint=self._endpoint.name, partitions=sorted(place.partition for place in places))

    def _give_up(self, _: Consumer, __: list[TopicPartition]) -> None:
        """Others get these partitions, or this one again: from behind what is done."""
        self._commit()
        self._read.clear()
        self._taken = True

    async def _abandon(self) -> None:
        """Stop what is on its way: it is not done, so it comes again."""
        for task in self._on_their_way:
            task.cancel()
        await asyncio.gather(*self._on_their_way, return_exceptions=True)
        if not self._taken:
            await asyncio.to_thread(self._commit)
        self._offsets.clear()
        self._done.clear()

    def _send_off(self, record: KafkaMessage) -> None:
        key = record.key()
        task = asyncio.create_task(self._handle_after(self._last_of.get(key), record))
        position = _position_of(record)
        self._offsets[position.partition].append(position.offset)
        self._on_their_way.add(task)
        self._last_of[key] = task

        def forget(done: asyncio.Task[None]) -> None:
            self._on_their_way.discard(done)
            if self._last_of.get(key) is done:
                del self._last_of[key]

        task.add_done_callback(forget)

    async def _handle_after(self, before: asyncio.Task[None] | None, record: KafkaMessage) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            if self._failure is None:
                await self._handle(record)
                self._done.add(_position_of(record))
        except Exception as error:  # noqa: BLE001 - raised where the follower ends
            self._failure = error

    async def _handle(self, record: KafkaMessage) -> None:
        name = self._endpoint.name
        try:
            message = Message.of(self._decode(record.value() or b""))
        except (ValueError, OverflowError, UnknownSchemaIdError) as error:
            # Undecodable, or a time that no calendar has.
            await self._set_aside(record, str(error))
            return
        if message.kind not in self._endpoint.kinds:
            return
        try:
            await self._deliver(message)
        except UndeliveredError as error:
            await self._set_aside(record, str(error))
            return
        self._metrics.messages.labels(name, "delivered").inc()
        self._metrics.delay.labels(name).observe(_age(record))

    async def _set_aside(self, record: KafkaMessage, reason: str) -> None:
        await self._dead_letters.write(record, f"webhook {self._endpoint.name}: {reason}")
        self._metrics.messages.labels(self._endpoint.name, "dead").inc()

    def _keep_to_window(self) -> None:
        """Paused partitions give no records, and polling on keeps the place in the group."""
        if not self._paused and len(self._on_their_way) >= _WINDOW:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
        elif self._paused and len(self._on_their_way) <= _WINDOW // 2:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _commit(self) -> None:
        """Commit each partition up to its first record that is not done."""
        behind = []
        for partition, offsets in self._offsets.items():
            last = None
            while offsets and (partition, offsets[0]) in self._done:
                last = offsets.popleft()
                self._done.discard((partition, last))
            if last is not None:
                behind.append(TopicPartition(self._topic, partition, last + 1))
        if not behind:
            return
        try:
            self._consumer.commit(offsets=behind, asynchronous=False)
        except KafkaException as error:
            # The next commit covers it; if there is none, what was delivered comes again with the same ids.
            log.warning("not committed", endpoint=self._endpoint.name, error=error.args[0].str())

    def _note_lag(self) -> None:
        assigned = self._consumer.assignment()
        positions = self._consumer.position(assigned) if assigned else []
        ends = [self._consumer.get_watermark_offsets(place, cached=True)[1] for place in positions]
        unread = sum(
            max(0, end - place.offset) for place, end in zip(positions, ends, strict=True) if place.offset >= 0
        )
        self._metrics.lag.labels(self._endpoint.name).set(unread + len(self._on_their_way))


def _position_of(record: KafkaMessage) -> RecordPosition:
    return RecordPosition(int(record.partition() or 0), int(record.offset() or 0))


def _age(record: KafkaMessage) -> float:
    """Seconds since the broker had it."""
    return max(0.0, time.time() - record.timestamp()[1] / _MILLISECONDS)
