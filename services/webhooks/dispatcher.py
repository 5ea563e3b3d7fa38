"""Reads the topic loyalty for one endpoint and delivers its notifications."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from structlog.contextvars import bound_contextvars

from schemas import topics
from services import tracing
from services.messaging import clients
from services.messaging.avro import decoder
from services.messaging.dead_letters import RecordPosition
from services.messaging.log_reader import NO_ANSWER, LogReader
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings
from services.webhooks.dead_letters import DeadLetterWriter
from services.webhooks.delivery import UndeliveredError
from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Message
from services.webhooks.metrics import Metrics
from services.webhooks.uncommitted_offsets import UncommittedOffsets

log = structlog.get_logger(__name__)

MAX_UNCOMMITTED = 500
"""The most records of one partition that are read and not committed. A crash repeats at most this number of deliveries.

With a smaller number, a crash repeats fewer deliveries. With a larger number, other customers wait less often while one
notification is retried.
"""

_IDLE_SECONDS = 0.5
_BUSY_SECONDS = 0.05
_BROKER_SECONDS = 10.0
_LAG_SECONDS = 2.0
# Longer than ``fetch.wait.max.ms`` (0.5 s), because the question for an end offset waits behind a fetch.
_END_SECONDS = 2.0
_LONGEST_POLL_INTERVAL_MS = 300_000
_MILLISECONDS = 1_000


class EndpointDispatcher:
    """Delivers every notification to one endpoint at least once, in the order of each customer.

    The endpoint has its own consumer group, so several processes share its partitions. A new endpoint starts at the end
    of the topic. The dispatcher commits this start too. So the endpoint gets all later records, even if the process
    ends before the first one.

    While it runs, one thread makes all calls of the Kafka consumer. librdkafka runs the callbacks of a rebalance and of
    a commit during these calls. All other code runs in the event loop, which also makes the last commit.

    No call waits for the answer to a commit, because a broker that hangs does not answer for minutes. A record counts
    as uncommitted until the answer arrives. The broker receives a commit before the request that gives up its
    partition.
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
        for outcome in ("delivered", "dead"):
            metrics.messages.labels(endpoint.name, outcome)  # exports 0: alerts need a sample before the first increase
        self._reader = self._group_reader(settings)
        self._records: list[KafkaMessage] = []
        self._deliveries: set[asyncio.Task[None]] = set()
        self._last_of_key: dict[bytes | None, asyncio.Task[None]] = {}
        self._uncommitted = UncommittedOffsets()
        self._is_committing = False
        self._paused: set[int] = set()
        self._next_lag_time = 0.0
        self._revoked = False
        self._failure: Exception | None = None

    def _group_reader(self, settings: Settings) -> LogReader:
        group = f"{settings.topic_prefix}loyalty-webhooks-{self._endpoint.name}"
        options: dict[str, clients.Option] = {
            **clients.member_options(settings, group, _LONGEST_POLL_INTERVAL_MS),
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
            "on_commit": self._on_commit,
        }
        return LogReader(settings, "loyalty-webhooks", retry_on=(), **options)

    @property
    def problem(self) -> str | None:
        """Why the dispatcher cannot read notifications now; None if it can."""
        return self._reader.error

    async def run(self, stopping: threading.Event) -> None:
        """Deliver until ``stopping`` is set. The next start reads the records that are not committed again.

        Raises KafkaException, PublishError (a dead letter could not be written) and SchemaRegistryUnavailableError.
        """
        kafka_thread = ThreadPoolExecutor(1, f"kafka-{self._endpoint.name}")
        with kafka_thread, self._reader:
            self._subscribe()
            try:
                while not stopping.is_set() and self._failure is None:
                    await self._poll_once(kafka_thread)
            finally:
                await self._cancel_deliveries()
                self._commit(is_last=True)
        if self._failure is not None:
            raise self._failure

    def _subscribe(self) -> None:
        self._reader.consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    async def _poll_once(self, kafka_thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        seconds = _BUSY_SECONDS if self._deliveries else _IDLE_SECONDS
        await loop.run_in_executor(kafka_thread, self._read, seconds)
        if self._revoked:
            await self._cancel_deliveries()
            self._revoked = False
        for record in self._records:
            self._start_delivery(record)
        self._records.clear()
        await loop.run_in_executor(kafka_thread, self._commit)
        if time.monotonic() >= self._next_lag_time:
            self._next_lag_time = time.monotonic() + _LAG_SECONDS
            await loop.run_in_executor(kafka_thread, self._update_lag)

    def _read(self, seconds: float) -> None:
        """Read the available records. Wait for the first one.

        It reads one record per call: after a rebalance, a call for several could return records of revoked partitions.
        """
        while len(self._records) < MAX_UNCOMMITTED:
            try:
                found = self._reader.read(1, seconds).records
            except KafkaException as error:
                if error.args[0].code() not in NO_ANSWER:
                    raise
                if self._reader.renew():
                    self._subscribe()
                return  # librdkafka connects again, or the new consumer connects
            self._reader.error = None
            if not found:
                return
            for (_, partition), records in found.items():
                self._records += records
                for record in records:
                    self._uncommitted.add(RecordPosition.of(record))
                if self._uncommitted.count(partition) >= MAX_UNCOMMITTED:
                    self._reader.consumer.pause([TopicPartition(self._topic, partition)])
                    self._paused.add(partition)
            seconds = 0

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start at the committed offsets, or at the ends for a new endpoint. Any error ends the dispatcher."""
        try:
            self._assign(consumer, partitions)
        except KafkaException as error:
            self._failure = error
            raise

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assigned = consumer.committed(partitions, timeout=_BROKER_SECONDS)
        for each in assigned:
            if each.error:  # the offset is not known; without this check, the endpoint would start at the end
                raise KafkaException(each.error)
        new = [each for each in assigned if each.offset < 0]
        for each in new:
            _, each.offset = consumer.get_watermark_offsets(each, timeout=_BROKER_SECONDS)
        consumer.assign(assigned)
        # librdkafka keeps partitions paused that were paused before they were revoked.
        consumer.resume(assigned)
        for each in new:
            self._uncommitted.start(each.partition, each.offset)
        log.info("following", endpoint=self._endpoint.name, partitions=sorted(each.partition for each in assigned))

    def _on_revoke(self, _: Consumer, __: list[TopicPartition]) -> None:
        """Commit the finished records. The next owner of a partition, perhaps this process, reads the rest again."""
        self._commit(is_last=True)
        self._records.clear()
        self._uncommitted = UncommittedOffsets()
        self._paused.clear()
        self._revoked = True

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
                self._uncommitted.finish(RecordPosition.of(record))
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._failure = error

    async def _process(self, record: KafkaMessage) -> None:
        name = self._endpoint.name
        try:
            message = Message.of(self._decode(record.value() or b""))
        except (ValueError, OverflowError) as error:
            # The value cannot be decoded, or it has a time outside of the years 1 to 9999.
            await self._write_dead_letter(record, str(error))
            return
        if message.kind not in self._endpoint.kinds:
            return
        try:
            with (
                tracing.span("deliver a notification", "client", record.headers(), endpoint=name),
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

    def _commit(self, *, is_last: bool = False) -> None:
        """Commit each partition up to its first record that is not finished.

        Make no commit before the earlier one is answered: librdkafka repeats a commit after some errors, so an earlier
        offset could replace a later one. The last commit cannot wait for this answer.
        """
        offsets = self._uncommitted.committable()
        if not offsets or (self._is_committing and not is_last):
            return
        self._is_committing = True
        positions = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        try:
            self._reader.consumer.commit(offsets=positions, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], positions)

    def _on_commit(self, error: KafkaError | None, positions: list[TopicPartition]) -> None:
        """Forget the committed records, and resume paused partitions that have few uncommitted records."""
        self._is_committing = False
        committed = [each for each in positions if not (error or each.error)]
        if len(committed) < len(positions):
            # ``_commit`` tries again. If the process ends before that, the receiver gets the same ids again.
            reason = error or next(each.error for each in positions if each.error)
            log.warning(
                "a commit has failed; the next one repeats it", endpoint=self._endpoint.name, error=reason.str()
            )
        self._uncommitted.remove_committed({each.partition: each.offset for each in committed})
        if ready := [each for each in self._paused if self._uncommitted.count(each) <= MAX_UNCOMMITTED // 2]:
            self._reader.consumer.resume([TopicPartition(self._topic, partition) for partition in ready])
            self._paused.difference_update(ready)

    def _update_lag(self) -> None:
        """Set the lag. If the broker does not answer in time, it stays as it is."""
        consumer = self._reader.consumer
        assigned = consumer.assignment()
        unread = 0
        for each in consumer.position(assigned) if assigned else []:
            if each.offset >= 0:
                # librdkafka fetches nothing from a paused partition, so the end offset that it knows is old.
                is_known = each.partition not in self._paused
                try:
                    _, end = consumer.get_watermark_offsets(each, timeout=_END_SECONDS, cached=is_known)
                except KafkaException as error:
                    if error.args[0].code() in NO_ANSWER:
                        return
                    # The partition has no leader, so nothing is appended.
                    _, end = consumer.get_watermark_offsets(each, cached=True)
                unread += max(0, end - each.offset)
        self._metrics.lag.labels(self._endpoint.name, self._topic).set(unread + len(self._deliveries))


def _age_seconds(record: KafkaMessage) -> float:
    """The time since the broker appended the record."""
    return max(0.0, time.time() - record.timestamp()[1] / _MILLISECONDS)
