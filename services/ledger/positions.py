"""Up to where the topic has been appended, kept in the same transactions as the entries."""

from collections.abc import Mapping
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, delete, insert, select, update

from services.ledger.database import LedgerError
from services.ledger.tables import PositionRow, PropertyRow, UndecodableRow

log = structlog.get_logger(__name__)


class PositionMovedError(RuntimeError):
    """Somebody else has appended what was about to be: the positions must be read again."""


class Watermarks(NamedTuple):
    """The oldest offset that a partition still has, and the next that it will give."""

    low: int
    high: int


class Span(NamedTuple):
    """Offsets of a partition: from ``start``, up to but without ``end``."""

    start: int
    end: int


def open_positions(connection: Connection, topic_id: str, partitions: Mapping[int, Watermarks]) -> dict[int, int]:
    """Partition to the offset to go on from.

    A topic that was created anew is read from its beginning, and so is what has been read to beyond its end: entries
    that are there already are not appended twice. Where the broker deleted records before they were read, that is
    logged; which entries those were, the gaps say.
    """
    stored = {row.partition: row for row in connection.execute(select(PositionRow.__table__))}
    starts = {}
    for partition, (low, high) in partitions.items():
        row = stored.get(partition)
        goes_on = row is not None and row.topic_id == topic_id and row.next_offset <= high
        starts[partition] = max(low, row.next_offset) if row is not None and goes_on else low
        if row is not None and goes_on and row.next_offset < low:
            log.error(
                "records were deleted before the ledger read them", partition=partition, number=low - row.next_offset
            )
    changed = [number for number, start in starts.items() if _differs(stored.get(number), topic_id, start)]
    if changed:
        connection.execute(delete(PositionRow).where(PositionRow.partition.in_(changed)))
        values = [{"partition": number, "topic_id": topic_id, "next_offset": starts[number]} for number in changed]
        connection.execute(insert(PositionRow), values)
    return starts


def _differs(row: object, topic_id: str, start: int) -> bool:
    return row is None or (getattr(row, "topic_id", None), getattr(row, "next_offset", None)) != (topic_id, start)


def claim(connection: Connection, topic_id: str, spans: Mapping[int, Span]) -> None:
    """Move the positions over these spans. Raises PositionMovedError where one is not where its span starts.

    The first thing that a transaction does: whoever else is about to append the same waits here, and is then refused.
    """
    for partition, span in sorted(spans.items()):
        moved = connection.execute(
            update(PositionRow)
            .where(
                PositionRow.partition == partition,
                PositionRow.topic_id == topic_id,
                PositionRow.next_offset == span.start,
            )
            .values(next_offset=span.end)
        )
        if moved.rowcount != 1:
            raise PositionMovedError(f"partition {partition} is not at offset {span.start} any more")


def check(connection: Connection, topic_id: str, starts: Mapping[int, int]) -> None:
    """Raises PositionMovedError if the positions are not these."""
    stored = {
        row.partition: (row.topic_id, row.next_offset) for row in connection.execute(select(PositionRow.__table__))
    }
    if stored != {partition: (topic_id, start) for partition, start in starts.items()}:
        raise PositionMovedError("the positions are others by now")


def forget_positions(connection: Connection) -> int:
    """Let the whole topic be read again; returns the number of partitions."""
    connection.execute(delete(UndecodableRow))
    return connection.execute(delete(PositionRow)).rowcount


def bind(connection: Connection, properties: Mapping[str, str]) -> None:
    """Note what the ledger is made with; raises LedgerError if it was made with something else."""
    stored = {row.name: row.value for row in connection.execute(select(PropertyRow.__table__))}
    for name, value in properties.items():
        if name not in stored:
            connection.execute(insert(PropertyRow).values(name=name, value=value))
        elif stored[name] != value:
            raise LedgerError(f"the ledger was made with another {name} ({stored[name]}, not {value})")
