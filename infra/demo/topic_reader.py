"""Reads the output topics of the pipeline without duplicates."""

from collections import Counter
from collections.abc import Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from infra.demo.comparison import DeadLetter
from infra.demo.invoice_oracle import Record
from schemas import topics
from schemas.topics import Topic
from services.messaging import avro, clients, headers
from services.messaging.dead_letters import RecordPosition
from services.messaging.schema_ids import SchemaIds
from services.messaging.topic_reader import watermarks_of
from services.settings import Settings

OUTPUTS = (topics.SHIPMENT, topics.HADOOP, topics.LOYALTY, topics.DEAD_LETTERS)

_MOST_RECORDS = 2_000

Positions = dict[int, int]
"""The next offset by partition."""


class TopicReader:
    """Reads output topics from their beginning.

    Args:
        outputs: the topics to read.

    Attributes:
        changed: one line for each record that has the id of an earlier record and another content.
    """

    def __init__(self, settings: Settings, outputs: Sequence[Topic] = OUTPUTS) -> None:
        self._settings = settings
        self._consumer = clients.bounded_consumer(settings, "loyalty-demo")
        self._topics = {settings.name_of(topic): topic for topic in outputs}
        self._found: dict[Topic, dict[str, KafkaMessage]] = {topic: {} for topic in outputs}
        self._read: Counter[tuple[Topic, int]] = Counter()
        self.changed: list[str] = []
        partitions = [
            (settings.name_of(topic), number) for topic in outputs for number in range(settings.partitions_of(topic))
        ]
        self._consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for name, number in partitions])

    def close(self) -> None:
        self._consumer.close()

    def read(self, seconds: float) -> None:
        """Read the records that arrive within this time. Raises KafkaException."""
        for message in self._consumer.consume(_MOST_RECORDS, timeout=seconds):
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 (librdkafka's own codes have no other name)
                raise KafkaException(error)

    def count(self, topic: Topic) -> int:
        """The number of records of the topic."""
        return len(self._found[topic])

    def ends(self, topic: Topic) -> Positions:
        """The current end offset of each partition of a topic."""
        watermarks = watermarks_of(self._consumer, self._settings.name_of(topic))
        return {partition: end for partition, (_, end) in watermarks.items()}

    def has_read(self, ends: Mapping[Topic, Positions]) -> bool:
        """Whether this reader has read all records before these offsets."""
        return all(
            self._read[topic, number] >= end for topic, positions in ends.items() for number, end in positions.items()
        )

    def records(self, topic: Topic, ids: SchemaIds) -> list[Record]:
        """The values of a topic. Raises UndecodableError."""
        decode = avro.decoder(topic, ids)
        return [decode(message.value() or b"") for message in self._found[topic].values()]

    def dead_letters(self) -> list[DeadLetter]:
        found = self._found[topics.DEAD_LETTERS].values()
        return [DeadLetter(m.key(), m.value(), _texts(m).get(headers.DEAD_LETTER_REASON, "")) for m in found]

    def _take(self, message: KafkaMessage) -> None:
        topic, (partition, offset) = self._topics[str(message.topic())], RecordPosition.of(message)
        self._read[topic, partition] = offset + 1
        identity = _identity(topic, message) or f"offset {partition}/{offset}"
        first = self._found[topic].setdefault(identity, message)
        if (first.key(), first.value()) != (message.key(), message.value()):
            self.changed.append(f"{topic.name} {identity}")


def _identity(topic: Topic, message: KafkaMessage) -> str:
    """The id of a record, which its duplicates share; empty if it has none."""
    texts = _texts(message)
    if topic is topics.DEAD_LETTERS:
        # The CloudEvents headers of a dead letter are those of the original record.
        origin: Sequence[str] = (headers.DEAD_LETTER_TOPIC, headers.DEAD_LETTER_PARTITION, headers.DEAD_LETTER_OFFSET)
        return "/".join(texts[name] for name in origin) if texts.keys() >= set(origin) else ""
    return texts.get("ce_id", "")


def _texts(message: KafkaMessage) -> dict[str, str]:
    found = dict(message.headers() or [])
    return {name: value.decode("utf-8", "replace") for name, value in found.items() if isinstance(value, bytes)}
