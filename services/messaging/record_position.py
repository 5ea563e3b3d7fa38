"""The position of a record in a topic."""

from typing import NamedTuple


class RecordPosition(NamedTuple):
    """The partition and offset of a record in a known topic. Positions sort by partition, then by offset."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"
