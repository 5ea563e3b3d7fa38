"""The positions up to which the ledger has appended the topic. One transaction stores them with the entries."""

from collections.abc import Mapping
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, Engine, delete, event, insert, select, update

from schemas.topics import LOYALTY
from services.ledger.database import LedgerError, reading_engine
from services.ledger.tables import POSITION, PROPERTY, UNDECODABLE
from services.settings import Settings

log = structlog.get_logger(__name__)


class PositionMovedError(RuntimeError):
    """Another process has appended the same records. The positions must be read again."""


class Span(NamedTuple):
    """The offsets of a partition from ``start`` to the one before ``end``."""

    start: int
    end: int


def _stored(connection: Connection) -> dict[int, tuple[str, int]]:
    """The id of the topic and the next offset, by partition."""
    return {row.partition: (row.topic_id, row.next_offset) for row in connection.execute(select(POSITION))}


def stored_offsets(connection: Connection) -> dict[int, int]:
    """The stored position of each partition."""
    return {partition: offset for partition, (_, offset) in _stored(connection).items()}


def open_positions(
    connection: Connection, topic_id: str, partitions: Mapping[int, tuple[int, int]], before: Mapping[int, int]
) -> dict[int, int]:
    """The offset to continue from, by partition.

    The ledger reads a topic that was created again from its start. It does the same with a partition that ends below
    the stored position. It ignores entries that it has already. If the broker has deleted records that the ledger has
    not read, this function logs an error, and the gaps show the missing entries.

    Args:
        partitions: the first offset that each partition still has, and its end offset.
        before: the stored positions, read before the end offsets. After that, another process may append records
            beyond these end offsets, so newer positions would look wrong.
    """
    stored, starts = _stored(connection), {}
    for partition, (low, high) in partitions.items():
        stored_topic, offset = stored.get(partition, ("", 0))
        if stored_topic != topic_id or before.get(partition, low) > high:
            offset = low
        elif offset < low:
            log.error(
                "the broker deleted records before the ledger read them; see `loyalty ledger gaps`",
                partition=partition,
                number=low - offset,
            )
        starts[partition] = max(low, offset)
    changed = [number for number, start in starts.items() if stored.get(number) != (topic_id, start)]
    # A topic that was created again can have fewer partitions.
    if outdated := [*changed, *(stored.keys() - starts.keys())]:
        connection.execute(delete(POSITION).where(POSITION.c.partition.in_(outdated)))
    if changed:
        values = [{"partition": number, "topic_id": topic_id, "next_offset": starts[number]} for number in changed]
        connection.execute(insert(POSITION), values)
    return starts


def claim(connection: Connection, topic_id: str, spans: Mapping[int, Span]) -> None:
    """Move the positions to the ends of these spans.

    Raises PositionMovedError if a span does not start at the stored position.

    Call it first in a transaction. A second process that appends the same records waits here, and then gets the error.
    """
    for partition, span in sorted(spans.items()):
        moved = connection.execute(
            update(POSITION)
            .where(
                POSITION.c.partition == partition,
                POSITION.c.topic_id == topic_id,
                POSITION.c.next_offset == span.start,
            )
            .values(next_offset=span.end)
        )
        if moved.rowcount != 1:
            raise PositionMovedError(f"partition {partition} is no longer at offset {span.start}")


def check(connection: Connection, topic_id: str, starts: Mapping[int, int]) -> None:
    """Raise PositionMovedError if the stored positions are different."""
    if _stored(connection) != {partition: (topic_id, start) for partition, start in starts.items()}:
        raise PositionMovedError("the stored positions have changed")


def forget_positions(connection: Connection) -> int:
    """Delete the positions, so that the ledger reads the whole topic again. Returns the number of partitions."""
    connection.execute(delete(UNDECODABLE))
    return connection.execute(delete(POSITION)).rowcount


def bind(connection: Connection, properties: Mapping[str, str]) -> None:
    """Store the properties of the ledger. Raises LedgerError if a stored property is different."""
    for name in properties.keys() - require_same(connection, properties).keys():
        connection.execute(insert(PROPERTY).values(name=name, value=properties[name]))


def own_ledger(settings: Settings, *, seconds: int) -> Engine:
    """``reading_engine`` for the ledger of these settings. ``connect`` raises LedgerError if it has another topic."""
    engine = reading_engine(settings.ledger_url, seconds=seconds)

    @event.listens_for(engine, "engine_connect")
    def check(connection: Connection) -> None:
        if "topic" in connection.info:  # The pool keeps it. A ledger that no process has started has no topic yet.
            return
        try:
            with connection.begin():
                connection.info.update(require_same(connection, {"topic": settings.name_of(LOYALTY)}))
        except BaseException:
            connection.close()
            raise

    return engine


def require_same(connection: Connection, properties: Mapping[str, str]) -> dict[str, str]:
    """The stored properties of the ledger. Raises LedgerError if one of them is different."""
    stored = {row.name: row.value for row in connection.execute(select(PROPERTY))}
    for name, value in properties.items():
        if stored.get(name, value) != value:
            raise LedgerError(
                f"the ledger was made with another {name}: {stored[name]}, and the settings say {value}; correct "
                "LOYALTY_TOPIC_PREFIX or LOYALTY_PSEUDONYM_KEY_FILE, or name another database in LOYALTY_LEDGER_URL"
            )
    return stored
