"""The topics as tables: each record once, up to the current end offsets."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cached_property
from itertools import takewhile
from threading import Event

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from schemas import topics
from schemas.topics import Topic
from services.domain.formats import to_datetime
from services.domain.validation import LARGEST_INVOICE
from services.messaging import avro, clients, dead_letters
from services.messaging.avro import UndecodableError
from services.messaging.publishing import require_broker
from services.messaging.record_headers import headers_of
from services.messaging.schema_ids import schema_ids
from services.messaging.topic_reader import records_of, watermarks_of
from services.settings import Settings
from services.sql.arrow import Row, batches, record_fields
from services.verdicts import judge_of_invoices

CLIENT_ID = "loyalty-sql"
_RECORD = (
    ("AppendTime", pa.timestamp("ms")),
    ("RecordPartition", pa.int32()),
    ("RecordOffset", pa.int64()),
)
_DEAD_LETTER = (
    ("OriginTopic", pa.string()),
    ("OriginPartition", pa.int32()),
    ("OriginOffset", pa.int64()),
    ("Reason", pa.string()),
    ("Key", pa.binary()),
    ("Value", pa.binary()),
)
_VERSION = ("OpenedTime", "Sequence")
"""The fields that order the records of a key. A record without them is newer than all before it."""
_DECISION_VERSION = ("Sequence",)
"""The record that replaces the decision of an erased customer names no account, so its ``OpenedTime`` is 0."""

_judge = judge_of_invoices({})
_POLL_SECONDS = 0.5
_MOST_RECORDS = 1_000


def table_name(topic: Topic) -> str:
    """The name of a topic in SQL: store-sales is store_sales."""
    return topic.name.replace("-", "_")


def is_topic(table: str) -> bool:
    return table in map(table_name, topics.ALL)


def topic_schema(topic: Topic) -> pa.Schema:
    """The fields of the newest schema, and then the time and the position of the record."""
    fields = record_fields(topic.value) if topic.value else [pa.field(*each) for each in _DEAD_LETTER]
    return pa.schema([*fields, *(pa.field(*each) for each in _RECORD)])


class TopicSource:
    """Reads one topic.

    It drops duplicates: records with the ``ce_source`` and the ``ce_id`` of an earlier record. A compacted topic has
    only the newest record of each key, and no deleted keys.

    Attributes:
        skipped: the number of records that could not be decoded, by reason.
    """

    def __init__(self, topic: Topic, settings: Settings, interrupted: Event) -> None:
        """Prepare the source. It reads nothing yet. ``interrupted`` stops a read."""
        self.schema = topic_schema(topic)
        self.skipped: Counter[str] = Counter()
        self._topic = topic
        self._is_compacted = topic.compacted or topic.retention is None
        self._name = settings.name_of(topic)
        self._settings = settings
        self._interrupted = interrupted

    def read(self) -> Iterator[pa.RecordBatch]:
        """The records that the topic has now. Raises PublishError and DeadLettersError."""
        if self._topic is topics.DEAD_LETTERS:
            return self._batches(map(_letter_row, dead_letters.DeadLetters(self._settings)))
        return self._batches(self._records())

    def _records(self) -> Iterator[Row]:
        found = records_of(self._settings, self._name, CLIENT_ID)
        messages = takewhile(lambda _: not self._interrupted.is_set(), found)
        return self._newest(messages) if self._is_compacted else self._rows(_without_duplicates(messages))

    def follow(self) -> Iterator[list[pa.RecordBatch]]:
        """The records that arrive from now on, in batches, without end. An empty list: nothing has arrived in 0.5 s.

        Raises PublishError if no broker answers or the topic does not exist, and KafkaException if the broker reports
        an error.
        """
        require_broker(self._settings)
        with closing(clients.consumer(self._settings, CLIENT_ID)) as consumer:
            ends = {partition: end for partition, (_, end) in watermarks_of(consumer, self._name).items()}
            consumer.assign([TopicPartition(self._name, *end) for end in ends.items()])
            yield []  # from now on, the consumer gets all new records
            while True:
                found = consumer.consume(_MOST_RECORDS, _POLL_SECONDS)
                for error in filter(None, (message.error() for message in found)):
                    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the code has no other name
                        raise KafkaException(error)
                arrived = [message for message in found if not message.error()]
                yield list(self._batches(self._followed(arrived)))

    def _followed(self, messages: Iterable[Message]) -> Iterator[Row]:
        if self._topic is topics.DEAD_LETTERS:
            return map(_letter_row, map(dead_letters.dead_letter_of, messages))
        return self._rows(messages)

    def _rows(self, messages: Iterable[Message]) -> Iterator[Row]:
        return filter(None, map(self._row, messages))

    def _newest(self, messages: Iterable[Message]) -> Iterator[Row]:
        fields = _DECISION_VERSION if self._topic is topics.LOYALTY_DECISIONS else _VERSION
        newest: dict[bytes | None, Row] = {}
        for message in messages:
            key = message.key()
            if message.value() is None:
                newest.pop(key, None)
            elif row := self._row(message):
                before = newest.get(key, {})
                if [row.get(field, 0) for field in fields] >= [before.get(field, 0) for field in fields]:
                    newest[key] = row
        return iter(newest.values())

    def _row(self, message: Message) -> Row | None:
        value = message.value()
        if value is None:
            if not self._is_compacted:  # on a compacted topic, such a record deletes its key
                self.skipped["the record has no value"] += 1
            return None
        try:
            row = self._decode(value)
        except UndecodableError as error:
            self.skipped[str(error)] += 1
            return None
        return row | _position_row(message)

    @cached_property
    def _decode(self) -> Callable[[bytes], Row]:
        decode = avro.decoder(self._topic, schema_ids(self._settings))
        if self._topic is not topics.POS_INVOICES:
            return decode
        return lambda value: _invoice(value, decode)

    def _batches(self, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
        return batches(rows, self.schema, lambda: self.skipped.update(["a value does not fit its column"]))


def _without_duplicates(messages: Iterable[Message]) -> Iterator[Message]:
    seen: set[tuple[str | bytes | None, ...]] = set()
    for message in messages:
        headers = dict(headers_of(message))
        identity = (headers.get("ce_source"), headers.get("ce_id"))
        if identity[1] is None or identity not in seen:
            seen.add(identity)
            yield message


def _position_row(message: Message) -> Row:
    values = (to_datetime(message.timestamp()[1]), message.partition(), message.offset())
    return dict(zip((name for name, _ in _RECORD), values, strict=True))


def _letter_row(letter: dead_letters.DeadLetter) -> Row:
    origin = letter.origin or (None, None)
    values = (letter.topic, *origin, letter.reason, letter.key, letter.value)
    position = (to_datetime(letter.time), *letter.position)
    return dict(zip((name for name, _ in (*_DEAD_LETTER, *_RECORD)), (*values, *position), strict=True))


def _invoice(value: bytes, decode: Callable[[bytes], Row]) -> Row:
    """The invoice, as the pipeline reads it. Raises UndecodableError, for JSON with the pipeline's reason."""
    if value[:1] == b"\0" and len(value) <= LARGEST_INVOICE:
        return decode(value)
    verdict = _judge(value, None)
    if verdict.record is None:
        raise UndecodableError(str(verdict.reason))
    invoice: Row = verdict.record
    return invoice
