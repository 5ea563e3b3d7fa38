"""Reads the records of one key that a changelog still has."""

from contextlib import closing

from services.messaging import clients
from services.messaging.topic_reader import read_range
from services.settings import Settings
from services.state_stores.definition import StoreDefinition
from services.state_stores.task import ChangelogRecord


def read_key(
    settings: Settings, definition: StoreDefinition, partition: int, key: bytes, span: range
) -> list[ChangelogRecord]:
    """The records of a key between two offsets of a changelog partition, in their order.

    It reads every record of the span, and blocks. Compaction may have removed some of them. Returns nothing if the
    first offset has no record of the key any more. Raises KafkaException.
    """
    topic = settings.name_of(definition.changelog)
    with closing(clients.bounded_consumer(settings, "loyalty-api-events")) as consumer:
        messages = read_range(consumer, topic, {partition: span.start}, {partition: span.stop})
        records: list[ChangelogRecord] = []
        for message in messages:
            offset = message.offset() or 0
            if not records and (offset, message.key()) != (span.start, key):
                break  # a client chooses the span, so a wrong one must not cost a read of the whole topic
            if message.key() == key:
                records.append(ChangelogRecord(offset, message.timestamp()[1], key, message.value()))
        return records
