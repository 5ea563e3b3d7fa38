"""Finds out whether a later checkpoint has written balances, so that nobody continues from a restored older copy."""

import time
from contextlib import closing
from datetime import timedelta

from confluent_kafka import TopicPartition

from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import UndecodableError, decoder
from services.messaging.clients import bounded_consumer
from services.messaging.publishing import BROKER_TIMEOUT
from services.messaging.schema_ids import SchemaIds
from services.messaging.topic_reader import read_range, watermarks_of
from services.settings import Settings

CLOCK_DIFFERENCE = timedelta(minutes=5)
"""How much the clocks of brokers and drivers may differ. A checkpoint that is older by less is not noticed."""


def has_later_balance(planned: int, ids: SchemaIds, settings: Settings) -> bool:
    """Whether the changelog has the balance of an event that no micro-batch until then can have read.

    A replay can write balances at any time. But they have the times of their events, and Spark plans a micro-batch
    after the brokers have appended its events. So a later event belongs to a later micro-batch.

    Args:
        planned: when Spark planned the newest micro-batch of a checkpoint, milliseconds since the epoch.

    Raises KafkaException, PublishError.
    """
    name, decode = settings.name_of(LOYALTY_BALANCES), decoder(LOYALTY_BALANCES, ids)
    latest = planned + CLOCK_DIFFERENCE // timedelta(milliseconds=1)
    # If the clock of a broker was far ahead, an event can have a time that has not come yet. It proves nothing.
    now = time.time_ns() // 1_000_000
    with closing(bounded_consumer(settings, "loyalty-pipeline")) as client:
        spans = watermarks_of(client, name)
        # A balance is never older than its event. So there is usually nothing to read after a stop.
        firsts = client.offsets_for_times([TopicPartition(name, each, latest) for each in spans], BROKER_TIMEOUT)
        later = {each.partition: (each.offset, spans[each.partition][1]) for each in firsts if each.offset >= 0}
        for message in read_range(client, name, later):
            try:
                updated = decode(message.value() or b"")["UpdatedTime"]
            except UndecodableError:  # a tombstone, or a record of another program
                continue
            if latest < updated <= now:
                return True
    return False
