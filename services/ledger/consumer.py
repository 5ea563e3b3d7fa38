"""Follows the topic loyalty and appends what it says; outside of any group, as the offsets are the database's."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import stamina
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition

from schemas.topics import LOYALTY
from services.ledger.appender import Appender, Batch
from services.ledger.database import AWAY
from services.ledger.metrics import Metrics
from services.ledger.positions import PositionMovedError, Span, Watermarks
from services.ledger.records import CardEntry, Undecodable, entry_of
from services.messaging import clients
from services.messaging.avro import Record, UndecodableError
from services.messaging.schema_ids import SchemaRegistryUnavailableError, UnknownSchemaIdError
from services.settings import Settings

log = structlog.get_logger(__name__)

CLIENT_ID = "loyalty-ledger"

# Enough for the cost of a commit to vanish beside the rows, few enough to hold in memory whatever their texts are.
_BATCH_RECORDS = 5_000
_POLL_SECONDS = 0.5
_BROKER_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 5.0
_CHECK_SECONDS = 5.0

_PASSING = (*AWAY, KafkaException, SchemaRegistryUnavailableError, PositionMovedError)
"""What is over some time. Nothing is skipped because of it: the positions are read again, and reading goes on there."""


class LedgerConsumer:
    """Reads on until it is told to stop.

    Attributes:
        trouble: what keeps the ledger from following now, in words for an operator; None: nothing.
    """

    def __init__(
        self, settings: Settings, appender: Appender, decode: Callable[[bytes], Record], metrics: Metrics
    ) -> None:
        self._settings = settings
        self._topic = settings.name_of(LOYALTY)
        self._appender = appender
        self._decode = decode
        self._metrics = metrics
        self._stopping = threading.Event()
        self._positions: dict[int, int] = {}
        self._next_check = 0.0
        self.trouble: str | None = "starting"

    def stop(self) -> None:
        """Let ``run`` return after the transaction that it is in."""
        self._stopping.set()

    def run(self) -> None:
        """Follow until ``stop``. Raises LedgerError, and whatever is a defect."""
        consumer = self._consumer()
        try:
            while not self._stopping.is_set():
                for attempt in stamina.retry_context(
                    on=self._may_pass, attempts=None, timeout=None, wait_max=_LONGEST_PAUSE_SECONDS
                ):
                    with attempt:
                        self._turn(consumer)
        except _PASSING:
            if not self._stopping.is_set():
                raise
        finally:
            self._note("stopped")
            consumer.close()

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, _PASSING) and not self._stopping.is_set()

    def _consumer(self) -> Consumer:
        def note(error: KafkaError) -> None:
            self._note(f"Kafka: {error.str()}")

        # An offset that the broker does not have must surface: a jump would skip what nobody has appended.
        overrides: dict[str, clients.Option] = {"auto.offset.reset": "error", "error_cb": note}
        return clients.consumer(self._settings, CLIENT_ID, **overrides, **{"enable.partition.eof": False})

    def _turn(self, consumer: Consumer) -> None:
        try:
            if not self._positions:
                self._attach(consumer)
            messages = self._poll(consumer)
            if messages:
                self._append(messages)
            self._appender.tidy()
            self._note_lag(consumer)
        except _PASSING as error:
            self._positions = {}
            self._note(f"{type(error).__name__}: {error}".partition("\n")[0])
            raise

    def _attach(self, consumer: Consumer) -> None:
        """Ask the database where to go on, and go there."""
        admin = clients.admin(self._settings, CLIENT_ID)
        (future,) = admin.describe_topics(TopicCollection([self._topic]), request_timeout=_BROKER_SECONDS).values()
        topic = future.result()
        places = [TopicPartition(self._topic, each.id) for each in topic.partitions]
        marks = {
            place.partition: Watermarks(*consumer.get_watermark_offsets(place, timeout=_BROKER_SECONDS))
            for place in places
        }
        positions = self._appender.open(str(topic.topic_id), marks)
        self._metrics.gaps.set(self._appender.count_gaps())
        consumer.assign([TopicPartition(self._topic, number, start) for number, start in positions.items()])
        self._positions = positions
        self._note(None)
        log.info("following", topic=self._topic, positions=positions)

    def _poll(self, consumer: Consumer) -> list[Message]:
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            self._idle(consumer)
            return []
        # No waiting for more: what has arrived meanwhile is taken along, a lone entry is appended at once.
        messages = [first, *consumer.consume(_BATCH_RECORDS - 1, 0)]
        if errors := [error for message in messages if (error := message.error())]:
            raise KafkaException(errors[0])
        return messages

    def _idle(self, consumer: Consumer) -> None:
        """Find out what a quiet topic does not tell: whether the database is there, and `loyalty ledger reread`."""
        if self.trouble:
            # librdkafka reconnects by itself but says nothing when it has.
            consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=_BROKER_SECONDS)
            self._note(None)
        if time.monotonic() >= self._next_check:
            self._appender.check(self._positions)
            self._next_check = time.monotonic() + _CHECK_SECONDS

    def _append(self, messages: Sequence[Message]) -> None:
        batch = self._batch(messages)
        with self._metrics.transaction_seconds.time():
            appended = self._appender.append(batch)
        self._positions |= {partition: span.end for partition, span in batch.spans.items()}
        self._note(None)
        self._metrics.entries.inc(appended.entries)
        self._metrics.repeats.inc(len(batch.entries) - appended.entries)
        self._metrics.undecodable.inc(len(batch.undecodable))
        self._metrics.erased.inc(appended.erased)
        self._metrics.gaps.inc(appended.gaps)
        for record in batch.undecodable:
            # Never the key: it is a card number.
            place = {"topic": self._topic, "partition": record.partition, "offset": record.offset}
            log.error("a record is no entry", **place, reason=record.reason)

    def _batch(self, messages: Sequence[Message]) -> Batch:
        entries: list[CardEntry] = []
        undecodable: list[Undecodable] = []
        ends: dict[int, int] = {}
        for message in messages:
            # The types allow None for what only a message that is not from a consumer lacks.
            partition, offset = cast(int, message.partition()), cast(int, message.offset())
            ends[partition] = offset + 1
            try:
                entries.append(self._entry(message))
            except (UndecodableError, UnknownSchemaIdError) as error:
                undecodable.append(Undecodable(partition, offset, message.timestamp()[1], str(error)))
        spans = {partition: Span(self._positions[partition], end) for partition, end in ends.items()}
        return Batch(entries, undecodable, spans)

    def _entry(self, message: Message) -> CardEntry:
        value = message.value()
        if value is None:
            raise UndecodableError("it has no value")
        return entry_of(self._decode(value), message.key())

    def _note(self, trouble: str | None) -> None:
        self.trouble = trouble
        self._metrics.ready.set(trouble is None)

    def _note_lag(self, consumer: Consumer) -> None:
        for partition, position in self._positions.items():
            _, high = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
            self._metrics.position.labels(partition).set(position)
            self._metrics.lag.labels(partition).set(max(0, high - position))
