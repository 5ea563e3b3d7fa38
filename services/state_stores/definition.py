"""What a store is made of, as data; the table of stores is in ``catalogue``."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from schemas.topics import Topic


class View(NamedTuple):
    """What a store shows of one changelog value.

    Attributes:
        sequence: a store keeps the view with the highest (opened time, sequence); None where the changelog has none:
            the last record counts.
        body: JSON, ready to send.
        updated_time: when the fact behind it was appended by the broker, milliseconds since the epoch; None where
            nobody measures how fresh the store is.
        opened_time: of the account that the sequence counts; see ``Entry``.
    """

    sequence: int | None
    body: bytes
    updated_time: int | None = None
    opened_time: int = 0


Viewer = Callable[[bytes, bytes], View]
"""(key, value) of a changelog record to what is shown; raises UndecodableError or UnknownSchemaIdError."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Makes a store out of another one of the same changelog.

    Attributes:
        source: the name of the other store; before this one in the table.
        keeps: whether an entry's body belongs to this store.
        rule: ``keeps`` in words, with its figures. Local data of another rule are thrown away.
    """

    source: str
    keeps: Callable[[bytes], bool]
    rule: str


@dataclass(frozen=True, slots=True)
class StoreDefinition:
    """The latest view of each key of a compacted topic.

    Attributes:
        name: as in URLs and directories.
        changelog: the topic that it follows; a null value deletes the key.
        view: reads its records.
        derived: for a store of those entries of another one that pass a filter.
        window: for a windowed store, the length of a window; its keys are those of ``window_key``.
        is_global: every instance holds all partitions.
    """

    name: str
    changelog: Topic
    view: Viewer
    derived: Filter | None = None
    window: timedelta | None = None
    is_global: bool = False

    @property
    def kind(self) -> str:
        if self.derived:
            return "derived"
        if self.window:
            return "windowed"
        return "global" if self.is_global else "keyed"

    def origin(self, changelog: str) -> str:
        """What a local store of this definition is made of (see ``Checkpoint``), given its changelog's own name."""
        return f"{changelog}, {self.derived.rule}" if self.derived else changelog


def window_key(key: str, start: int) -> bytes:
    """The key of one window: what it is about, and when it starts (milliseconds since the epoch)."""
    return f"{key}@{start}".encode()
