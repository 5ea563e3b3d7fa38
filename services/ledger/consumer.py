"""Reads the topic loyalty and appends its entries to the ledger."""

import time
from collections.abc import Callable, Sequence

import structlog
from confluent_kafka import Message, TopicCollection, TopicPartition

from schemas.topics import LOYALTY
from services import tracing
from services.ledger.appender import Appender, Batch
from services.ledger.database import AWAY
from services.ledger.metrics import Metrics
from services.ledger.positions import PositionMovedError, Span
from services.ledger.records import CardEntry, Undecodable, entry_of
from services.messaging import clients
from services.messaging.avro import Record, UndecodableError
from services.messaging.dead_letters import RecordPosition
from services.messaging.log_reader import LogReader
from services.messaging.record_headers import headers_of
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings

log = structlog.get_logger(__name__)

CLIENT_ID = "loyalty-ledger"

# A batch must fit into memory. A larger one would not be faster, because the rows cost far more time than the commit.
_BATCH_RECORDS = 5_000
# Longer than ``fetch.wait.max.ms`` (0.5 s): the first poll after an error must return the records that caused it.
_POLL_SECONDS = 1.0
_BROKER_SECONDS = 5.0
_CHECK_SECONDS = 5.0
_PARTITIONS_SECONDS = 60.0
_STALLED_SECONDS = 120.0

_TEMPORARY = (*AWAY, SchemaRegistryUnavailableError, PositionMovedError)
"""After these errors the consumer reads the positions again and continues there. It skips nothing."""


class LedgerConsumer:
    """Appends all records of the topic until it is stopped.

    It is not a member of a consumer group: the database stores the positions, in the transactions of the entries.
    """

    def __init__(
        self, settings: Settings, appender: Appender, decode: Callable[[bytes], Record], metrics: Metrics
    ) -> None:
        self._settings = settings
        self._topic = settings.name_of(LOYALTY)
        self._appender = appender
        self._decode = decode
        self._metrics = metrics
        self._reader = LogReader(settings, CLIENT_ID, retry_on=_TEMPORARY, **{"enable.partition.eof": False})
        self._is_set_up = False
        self._positions: dict[int, int] = {}
        self._next_check = 0.0
        self._next_partitions_check = time.monotonic() + _PARTITIONS_SECONDS
        metrics.ready.set_function(lambda: self.problem is None)

    @property
    def problem(self) -> str | None:
        """Why the ledger cannot append now, for an operator; None if it can."""
        if self._reader.error:
            return self._reader.error
        if time.monotonic() > self._reader.last_step_time + _STALLED_SECONDS:
            return "the database has not finished a transaction for two minutes: check its host and its locks"
        return None if self._reader.connected else "not connected"

    def stop(self) -> None:
        """Make ``run`` return after the current transaction."""
        self._reader.stop()

    def run(self) -> None:
        """Append until ``stop``. Raises LedgerError."""
        self._reader.run(self._connect, self._poll_once)

    def _connect(self) -> None:
        """Set up the ledger, read the positions from the database and continue there."""
        if not self._is_set_up:
            self._appender.set_up()
            self._is_set_up = True
        admin = clients.admin(self._settings, CLIENT_ID)
        (future,) = admin.describe_topics(TopicCollection([self._topic]), request_timeout=_BROKER_SECONDS).values()
        topic = future.result()
        consumer = self._reader.consumer
        before = self._appender.stored_offsets()
        partitions = [TopicPartition(self._topic, each.id) for each in topic.partitions]
        marks = {each.partition: consumer.get_watermark_offsets(each, timeout=_BROKER_SECONDS) for each in partitions}
        self._positions = self._appender.open(str(topic.topic_id), marks, before)
        self._metrics.gaps.set(self._appender.count_gaps())
        consumer.assign([TopicPartition(self._topic, number, start) for number, start in self._positions.items()])
        if not self._reader.connected:
            log.info("following", topic=self._topic, positions=self._positions)

    def _poll_once(self) -> None:
        if time.monotonic() >= self._next_partitions_check:
            self._follow_new_partitions()
        try:
            self._append_or_check()
        except PositionMovedError:
            # This is no failure: a second ledger has appended these records. Without a pause, two ledgers would do the
            # same work again, and one of them would connect for each batch.
            time.sleep(_POLL_SECONDS)
            before = self._positions
            self._connect()
            if any(self._positions.get(partition, 0) < position for partition, position in before.items()):
                # `loyalty ledger reread` has run. Or a ledger of another Kafka cluster uses this database: each of them
                # then deletes the positions of the other one again and again, and an operator must see it.
                raise
        self._appender.checkpoint_after_erasure()
        for partition, position in self._positions.items():
            self._metrics.position.labels(self._topic, partition).set(position)
            self._metrics.lag.labels(partition).set(max(0, self._reader.end_offset(self._topic, partition) - position))

    def _follow_new_partitions(self) -> None:
        """Connect again if somebody has added partitions to the topic: the consumer gets no records from them."""
        found = self._reader.consumer.list_topics(self._topic, timeout=_BROKER_SECONDS).topics[self._topic].partitions
        if not self._positions.keys() >= found.keys():
            log.info("the topic has new partitions", topic=self._topic, partitions=len(found))
            self._connect()
        self._next_partitions_check = time.monotonic() + _PARTITIONS_SECONDS

    def _append_or_check(self) -> None:
        records = self._reader.read(_BATCH_RECORDS, _POLL_SECONDS).records
        if records:
            messages = [message for of_partition in records.values() for message in of_partition]
            with tracing.batch("append to the ledger", map(headers_of, messages)):
                self._append(messages)
        elif time.monotonic() >= self._next_check:
            # Without new records, only this check finds an unavailable database, or a run of `loyalty ledger reread`.
            self._appender.check(self._positions)
            self._next_check = time.monotonic() + _CHECK_SECONDS

    def _append(self, messages: Sequence[Message]) -> None:
        batch = self._batch(messages)
        with self._metrics.transaction_seconds.time():
            appended = self._appender.append(batch)
        self._positions |= {partition: span.end for partition, span in batch.spans.items()}
        self._metrics.entries.inc(appended.entries)
        self._metrics.repeats.inc(len(batch.entries) - appended.entries)
        self._metrics.undecodable.inc(len(batch.undecodable))
        self._metrics.erased.inc(appended.erased)
        self._metrics.gaps.inc(appended.gaps)
        self._metrics.gaps_opened.inc(appended.gaps_opened)
        for record in batch.undecodable:
            # The log never shows the key, because it is a card number.
            log.error(
                "a record is not an entry; `loyalty ledger undecodable` lists all of them",
                topic=self._topic,
                partition=record.partition,
                offset=record.offset,
                reason=record.reason,
            )

    def _batch(self, messages: Sequence[Message]) -> Batch:
        entries: list[CardEntry] = []
        undecodable: list[Undecodable] = []
        ends: dict[int, int] = {}
        for message in messages:
            partition, offset = RecordPosition.of(message)
            ends[partition] = offset + 1
            try:
                entries.append(self._entry(message))
            except UndecodableError as error:
                undecodable.append(Undecodable(partition, offset, message.timestamp()[1], str(error)))
        spans = {partition: Span(self._positions[partition], end) for partition, end in ends.items()}
        return Batch(entries, undecodable, spans)

    def _entry(self, message: Message) -> CardEntry:
        value = message.value()
        if value is None:
            raise UndecodableError("it has no value")
        return entry_of(self._decode(value), message.key())
