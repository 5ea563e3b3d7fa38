"""Finds out whether a later checkpoint has written balances, so that nobody continues from a restored older copy."""

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

from confluent_kafka import Consumer, Message

from pipelines.checkpoints.reader import Positions
from schemas.topics import LOYALTY_BALANCES
from services.clock import now
from services.messaging.avro import Record, UndecodableError, decoder
from services.messaging.clients import bounded_consumer
from services.messaging.dead_letters import RecordPosition
from services.messaging.schema_ids import SchemaIds
from services.messaging.topic_reader import first_offsets, read_range, watermarks_of
from services.settings import Settings

CLOCK_DIFFERENCE = timedelta(minutes=5)
"""How much the clocks of brokers and drivers may differ.

The pipeline does not notice a checkpoint that is less than this older.
"""


def find_later_balance(
    planned: int, positions: Positions, ids: SchemaIds, settings: Settings
) -> tuple[RecordPosition, int] | None:
    """Find the balance of an event that the micro-batches of a checkpoint cannot have read.

    A replay can write a balance later. But each balance has the time of its event, not of the replay. Spark plans a
    micro-batch after the brokers have appended its events. So a later event belongs to a later micro-batch.

    Args:
        planned: when Spark planned the newest micro-batch of the checkpoint, milliseconds since the epoch.
        positions: where this micro-batch ends.

    Returns the position of the balance, and the time of the event in milliseconds since the epoch. None if there is no
    such balance.

    Raises KafkaException, PublishError.
    """
    name, decode = settings.name_of(LOYALTY_BALANCES), decoder(LOYALTY_BALANCES, ids)
    latest = planned + CLOCK_DIFFERENCE // timedelta(milliseconds=1)
    # If the clock of a broker was far ahead, an event can have a time in the future. Such an event proves nothing.
    present = now()
    with closing(bounded_consumer(settings, "loyalty-pipeline")) as client:
        spans = watermarks_of(client, name)
        # A balance is never older than its event. So there is usually nothing to read after a stop.
        firsts = first_offsets(client, name, spans, latest)
        later = {each: (offset, spans[each][1]) for each, offset in firsts.items() if offset >= 0}
        for message in read_range(client, name, later):
            updated = _event_time(message, decode)
            if latest < updated <= present:
                if not _has_read(client, positions, updated):
                    return RecordPosition.of(message), updated
                latest = updated
    return None


def _event_time(message: Message, decode: Callable[[bytes], Record]) -> int:
    try:
        updated: int = decode(message.value() or b"")["UpdatedTime"]
    except UndecodableError:  # a tombstone, or a record of another program
        return 0
    return updated


def _has_read(client: Consumer, positions: Positions, event_time: int) -> bool:
    """Whether the checkpoint has read this event or a later one.

    If so, a clock was wrong, and the event proves nothing.
    """
    for topic, ends in positions.items():
        firsts = first_offsets(client, topic, ends, event_time)
        if any(0 <= offset < ends[partition] for partition, offset in firsts.items()):
            return True
    return False
