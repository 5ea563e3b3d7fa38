"""Reads the records of one key that a changelog still has."""

import time
from contextlib import closing

from services.messaging import clients
from services.messaging.topic_reader import read_range
from services.settings import Settings
from services.state_stores.definition import StoreDefinition
from services.state_stores.task import ChangelogRecord

_LONGEST_SECONDS = 10.0
"""The longest duration of a read. It frees the thread after the caller has given up."""


def read_key(
    settings: Settings, definition: StoreDefinition, partition: int, key: bytes, span: range
) -> list[ChangelogRecord]:
    """The records of a key in a range of offsets of a changelog partition, in the order of their offsets.

    The call blocks while it reads every record of the range. Compaction may have removed some records. Returns an empty
    list if the first offset has no record of the key any more, or if the read takes longer than ten seconds. Raises
    KafkaException.
    """
    topic, deadline = settings.name_of(definition.changelog), time.monotonic() + _LONGEST_SECONDS
    with closing(clients.bounded_consumer(settings, "loyalty-api-events")) as consumer:
        messages = read_range(consumer, topic, {partition: (span.start, span.stop)})
        records: list[ChangelogRecord] = []
        for message in messages:
            offset = message.offset() or 0
            if not records and (offset, message.key()) != (span.start, key):
                break  # a client chooses the range, so a wrong range must not cause a read of the whole topic
            if time.monotonic() > deadline:
                return []  # the records would be incomplete
            if message.key() == key:
                records.append(ChangelogRecord(offset, message.timestamp()[1], key, message.value()))
        return records
