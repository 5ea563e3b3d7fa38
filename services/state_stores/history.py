"""Reads the records of one key that a changelog still has."""

import time
from contextlib import closing

from services.messaging import clients
from services.messaging.topic_reader import read_range
from services.settings import Settings
from services.state_stores.definition import StoreDefinition
from services.state_stores.task import ChangelogRecord

_LONGEST_SECONDS = 10.0
"""No caller waits longer. A read that its caller has abandoned must then give its thread back."""


def read_key(
    settings: Settings, definition: StoreDefinition, partition: int, key: bytes, span: range
) -> list[ChangelogRecord]:
    """The records of a key between two offsets of a changelog partition, in their order.

    It reads every record of the span, and blocks. Compaction may have removed some of them. Returns nothing if the
    first offset has no record of the key any more, or if the read takes too long. Raises KafkaException.
    """
    topic, deadline = settings.name_of(definition.changelog), time.monotonic() + _LONGEST_SECONDS
    with closing(clients.bounded_consumer(settings, "loyalty-api-events")) as consumer:
        messages = read_range(consumer, topic, {partition: span.start}, {partition: span.stop})
        records: list[ChangelogRecord] = []
        for message in messages:
            offset = message.offset() or 0
            if not records and (offset, message.key()) != (span.start, key):
                break  # a client chooses the span, so a wrong one must not cost a read of the whole topic
            if time.monotonic() > deadline:
                return []  # later records of the key may follow, so these are no history
            if message.key() == key:
                records.append(ChangelogRecord(offset, message.timestamp()[1], key, message.value()))
        return records
