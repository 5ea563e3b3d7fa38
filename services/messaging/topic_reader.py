"""Reads the records that a topic has now, then ends."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.topics import Topic
from services.errors import UserError
from services.messaging import clients
from services.messaging.avro import Record, UndecodableError, decoder
from services.messaging.publishing import BROKER_TIMEOUT, PublishError, find_topic
from services.messaging.schema_ids import schema_ids
from services.settings import Settings

Offsets = Mapping[int, int]
"""Partition to offset."""


def watermarks_of(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    """The first offset and the end offset of each partition.

    Raises PublishError if there is no such topic, or if a partition has no leader.
    """
    described = find_topic(consumer, topic).partitions
    for number, each in described.items():
        if each.leader < 0:
            raise PublishError(f"topic {topic}: partition {number} has no leader: start the brokers that store it")
    partitions = [TopicPartition(topic, partition) for partition in described]
    return {each.partition: consumer.get_watermark_offsets(each, timeout=BROKER_TIMEOUT) for each in partitions}


def first_offsets(consumer: Consumer, topic: str, partitions: Iterable[int], since: int) -> dict[int, int]:
    """By partition, the offset of the first record that the broker appended then or later. Negative if there is none.

    Args:
        since: milliseconds since the epoch.

    Raises KafkaException.
    """
    asked = [TopicPartition(topic, partition, since) for partition in partitions]
    found = consumer.offsets_for_times(asked, timeout=BROKER_TIMEOUT)
    if error := next((each.error for each in found if each.error), None):
        raise KafkaException(error)
    return {each.partition: each.offset for each in found}


def first_append_time(consumer: Consumer, topic: str, partition: int, low: int, high: int, now: int) -> int:
    """The append time of the first record from ``low`` on, or ``now`` if there is no record before ``high``.

    All these offsets can belong to transaction markers. Raises KafkaException.
    """
    first = next(read_range(consumer, topic, {partition: (low, high)}), None)
    return now if first is None else first.timestamp()[1]


class UndecodableRecordError(UserError):
    """A topic has a record that is not of its schemas. The message names the record."""


def decoded(settings: Settings, topic: Topic, client_id: str, skipped: Counter[str] | None = None) -> Iterator[Record]:
    """The decoded values that the topic has now, without tombstones.

    Raises PublishError, SchemaRegistryUnavailableError and UndecodableRecordError.

    Args:
        skipped: counts the records that cannot be decoded, by reason. Without it, such a record is an error.
    """
    name, decode = settings.name_of(topic), decoder(topic, schema_ids(settings))
    for message in records_of(settings, name, client_id):
        if (value := message.value()) is None:
            continue
        try:
            record = decode(value)
        except UndecodableError as error:
            if skipped is not None:
                skipped[str(error)] += 1
                continue
            raise UndecodableRecordError(
                f"topic {name}, partition {message.partition()}, offset {message.offset()}: {error}. Use the newest "
                "release, or find out who else writes to the topic"
            ) from error
        yield record


def records_of(settings: Settings, topic: str, client_id: str) -> Iterator[Message]:
    """The records that the topic has now. It uses its own consumer. Raises PublishError."""
    diagnosis = clients.ConnectionDiagnosis()
    with closing(clients.bounded_consumer(settings, client_id, error_cb=diagnosis.on_error)) as consumer:
        try:
            spans = watermarks_of(consumer, topic)
        except KafkaException as error:
            consumer.poll(0)
            raise PublishError(diagnosis.explain(settings)) from error
        try:
            yield from read_range(consumer, topic, spans)
        except KafkaException as error:
            raise PublishError(f"topic {topic}: {error.args[0].str()}") from error


def read_range(consumer: Consumer, topic: str, spans: Mapping[int, tuple[int, int]]) -> Iterator[Message]:
    """The records of each partition from a start offset (inclusive) to an end offset (exclusive).

    The consumer must have ``enable.partition.eof``. Raises KafkaException, also if the broker sends no record for
    BROKER_TIMEOUT.
    """
    unfinished = {partition for partition, (start, end) in spans.items() if start < end}
    consumer.assign([TopicPartition(topic, partition, spans[partition][0]) for partition in unfinished])
    while unfinished:
        message = consumer.poll(BROKER_TIMEOUT)
        if message is None:
            reason = f"the broker sent no record for {BROKER_TIMEOUT:.0f} s; try again"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))  # noqa: SLF001 - the code has no other name
        error, partition, offset = message.error(), int(message.partition() or 0), int(message.offset() or 0)
        if error is None:
            _, end = spans[partition]
            if offset < end:
                yield message
            # The last offset can belong to a transaction marker, which no consumer receives. Then _PARTITION_EOF
            # finishes the partition.
            if offset >= end - 1:
                unfinished.discard(partition)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the code has no other name
            unfinished.discard(partition)
        else:
            raise KafkaException(error)
