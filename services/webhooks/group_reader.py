"""Reads the topic loyalty as a member of the consumer group of an endpoint."""

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas import topics
from services.messaging import clients
from services.messaging.dead_letters import RecordPosition
from services.messaging.log_reader import NO_ANSWER, LogReader
from services.settings import Settings
from services.webhooks.uncommitted_offsets import UncommittedOffsets

log = structlog.get_logger(__name__)

MAX_UNCOMMITTED = 500
"""The most records of one partition that are read and not committed. A crash repeats at most this number of deliveries.

With a smaller number, a crash repeats fewer deliveries. With a larger number, other customers wait less often while one
notification is retried.
"""

_BROKER_SECONDS = 10.0
# Longer than ``fetch.wait.max.ms`` (0.5 s), because the question for an end offset waits behind a fetch.
_END_SECONDS = 2.0
_LONGEST_POLL_INTERVAL_MS = 300_000

Result = TypeVar("Result")


class GroupReader:
    """Reads the records of the partitions that the group gives to this member, and commits the finished records.

    A new group starts at the end of the topic. The reader commits this start too. So the endpoint gets all later
    records, even if the process ends before the first one.

    One thread makes all calls of the Kafka consumer between ``__enter__`` and ``__exit__``. librdkafka runs the
    callbacks of a rebalance and of a commit during these calls. ``finish`` and ``__exit__`` run in the event
    loop. ``__exit__`` first ends the thread.

    No call waits for the answer to a commit, because a broker that hangs does not answer for minutes. A record counts
    as uncommitted until the answer arrives. The broker receives a commit before the request that gives up its
    partition.
    """

    def __init__(self, endpoint: str, settings: Settings) -> None:
        self._endpoint = endpoint
        self._topic = settings.name_of(topics.LOYALTY)
        group = f"{settings.topic_prefix}loyalty-webhooks-{endpoint}"
        options: dict[str, clients.Option] = {
            **clients.member_options(settings, group, _LONGEST_POLL_INTERVAL_MS),
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
            "on_commit": self._on_commit,
        }
        self._reader = LogReader(settings, "loyalty-webhooks", retry_on=(), **options)
        self._thread = ThreadPoolExecutor(1, f"kafka-{endpoint}")
        self._records: list[Message] = []
        self._uncommitted = UncommittedOffsets()
        self._is_committing = False
        self._paused: set[int] = set()
        self._ends: dict[int, int] = {}
        self._questions = itertools.count()
        self._is_revoked = False
        self._failure: KafkaException | None = None

    def __enter__(self) -> Self:
        self._reader.__enter__()
        self._subscribe()
        return self

    def __exit__(self, *error: object) -> None:
        """Commit the finished records, and leave the group."""
        self._thread.shutdown()
        self._commit(is_last=True)
        self._reader.__exit__(*error)

    @property
    def problem(self) -> str | None:
        """Why the reader cannot read now; None if it can."""
        return self._reader.error

    async def read(self, seconds: float) -> tuple[list[Message], bool]:
        """Wait for the first record, and return all available records. No records while the broker does not answer.

        The second value says whether partitions were revoked. Then the caller must stop its work on all earlier
        records: the next owner of a partition, perhaps this process, reads the rest again.

        Raises KafkaException for other errors.
        """
        return await self._call(lambda: self._read(seconds))

    def finish(self, record: Message) -> None:
        """Note that a record needs no more work. ``commit`` then commits it."""
        self._uncommitted.finish(RecordPosition.of(record))

    async def commit(self) -> None:
        """Commit each partition up to its first record that is not finished."""
        await self._call(self._commit)

    async def unread(self) -> int | None:
        """The number of records that are not read yet; None if the broker does not answer in time."""
        return await self._call(self._unread)

    async def _call(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _subscribe(self) -> None:
        self._reader.consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _read(self, seconds: float) -> tuple[list[Message], bool]:
        try:
            self._read_available(seconds)
        except KafkaException as error:
            if error.args[0].code() not in NO_ANSWER:
                raise
            # librdkafka connects again, or the new consumer connects.
            if self._reader.renew():
                # The former consumer may get no answer to its commit for minutes.
                self._is_committing = False
                self._subscribe()
        if self._failure is not None:
            raise self._failure
        found = self._records, self._is_revoked
        self._records, self._is_revoked = [], False
        return found

    def _read_available(self, seconds: float) -> None:
        """Read one record per call.

        After a rebalance, one call for several records could return records of revoked partitions.
        """
        while len(self._records) < MAX_UNCOMMITTED:
            found = self._reader.read(1, seconds).records
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
        """Start at the committed offsets, or at the ends for a new endpoint. ``read`` raises any error of it."""
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
        log.info("following", endpoint=self._endpoint, partitions=sorted(each.partition for each in assigned))

    def _on_revoke(self, _: Consumer, __: list[TopicPartition]) -> None:
        """Commit the finished records, and forget all others."""
        self._commit(is_last=True)
        self._records.clear()
        self._uncommitted = UncommittedOffsets()
        self._paused.clear()
        self._is_revoked = True

    def _commit(self, *, is_last: bool = False) -> None:
        """Commit each partition up to its first unfinished record.

        Do not send a commit before the broker has answered the earlier one: librdkafka repeats a commit after some
        errors, so an earlier offset could replace a later one. The last commit cannot wait for this answer.
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
            log.warning("a commit has failed; the next one repeats it", endpoint=self._endpoint, error=reason.str())
        self._uncommitted.remove_committed({each.partition: each.offset for each in committed})
        if ready := [each for each in self._paused if self._uncommitted.count(each) <= MAX_UNCOMMITTED // 2]:
            self._reader.consumer.resume([TopicPartition(self._topic, partition) for partition in ready])
            self._paused.difference_update(ready)

    def _unread(self) -> int | None:
        consumer = self._reader.consumer
        assigned = consumer.assignment()
        asked = self._next_question()
        unread = 0
        for each in consumer.position(assigned) if assigned else []:
            if each.offset >= 0:
                _, end = consumer.get_watermark_offsets(each, cached=True)
                if each.partition == asked:
                    try:
                        _, end = consumer.get_watermark_offsets(each, timeout=_END_SECONDS)
                    except KafkaException as error:
                        if error.args[0].code() in NO_ANSWER:
                            return None
                        # The partition has no leader, so nothing is appended, and the known end is correct.
                if each.partition in self._paused:
                    end = max(end, self._ends.get(each.partition, 0))
                self._ends[each.partition] = end
                unread += max(0, end - each.offset)
        return unread

    def _next_question(self) -> int | None:
        """The paused partition to ask for its end offset. librdkafka fetches nothing from it, so the known end is old.

        The partitions take turns, because nothing is read while the question waits behind a fetch.
        """
        paused = sorted(self._paused)
        return paused[next(self._questions) % len(paused)] if paused else None
