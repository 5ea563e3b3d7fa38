"""The definition of a store, and its values. The table of stores is in ``catalogue``."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Self

from schemas.topics import Topic
from services.messaging.schema_ids import FolderSchemaIds

FORMAT = 2
"""The format of stored values. Raise it when the header or a body changes: stores are then rebuilt."""

_HEADER = struct.Struct(">qqqq")


class VersionedValue(NamedTuple):
    """A value of a store.

    Attributes:
        sequence: the sequence number of the record. It only grows while the opened time stays the same.
        offset: the offset of the changelog record.
        append_time: when the broker appended that record, in milliseconds since the epoch.
        body: JSON, ready to send.
        opened_time: when the account was opened; 0 if sequence numbers never restart.
    """

    sequence: int
    offset: int
    append_time: int
    body: bytes
    opened_time: int = 0

    @property
    def version(self) -> tuple[int, int]:
        """The newer one of two values of a key has the greater version."""
        return self.opened_time, self.sequence

    def pack(self) -> bytes:
        return _HEADER.pack(self.sequence, self.offset, self.append_time, self.opened_time) + self.body

    @classmethod
    def unpack(cls, stored: bytes) -> Self:
        sequence, offset, append_time, opened_time = _HEADER.unpack_from(stored)
        return cls(sequence, offset, append_time, stored[_HEADER.size :], opened_time)


class ReadConsistency(NamedTuple):
    """The version that a caller requires of a read.

    Attributes:
        sequence: the lowest sequence number that is sufficient.
        opened_time: when the account with that sequence number was opened. Any value of a later account is sufficient.
            0: the caller does not know the time.
        erased: require instead that this account, and each earlier account of the key, is erased.
    """

    sequence: int = 0
    opened_time: int = 0
    erased: bool = False

    def is_satisfied_by(self, value: VersionedValue | None) -> bool:
        """Whether a value is new enough; None means that the key has no value."""
        if self.erased:
            return value is None or value.opened_time > self.opened_time
        if value is None:
            return self == ANY_VERSION
        if value.opened_time > self.opened_time > 0:
            return True
        return value.opened_time >= self.opened_time and value.sequence >= self.sequence


ANY_VERSION = ReadConsistency()


class View(NamedTuple):
    """The part of a changelog record that a store keeps.

    Attributes:
        sequence: a store keeps the view with the highest (opened time, sequence). None if the changelog has no
            sequence numbers: the last record wins.
        body: JSON, ready to send.
        updated_time: when the broker appended the event that caused the record, in milliseconds since the epoch. None
            if the freshness of the store is not measured.
        opened_time: see ``VersionedValue``.
    """

    sequence: int | None
    body: bytes
    updated_time: int | None = None
    opened_time: int = 0


Viewer = Callable[[bytes, bytes], View]
"""Makes a view of the key and the value of a changelog record. Raises UndecodableError."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Derives a store from another store of the same changelog.

    Attributes:
        source: the name of the other store. It precedes this one in the table.
        keeps: whether a body belongs to this store.
        rule: the condition in words and figures. Local data of another rule are deleted.
    """

    source: str
    keeps: Callable[[bytes], bool]
    rule: str


@dataclass(frozen=True, slots=True)
class StoreDefinition:
    """The latest view of each key of a compacted topic.

    Attributes:
        name: the name in URLs and directories.
        changelog: the topic from which the store is built. A null value deletes the key.
        view: reads the records of the changelog.
        derived: set if the store keeps the values of another store that pass a filter.
        window: the length of a window, if the store is windowed. Its keys come from ``window_key``.
        is_global: whether each instance holds all partitions.
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
        """The origin of the data of a local store (see ``Checkpoint``), from the origin of its changelog.

        A release skips records of schemas that it does not know, so the data may lack records. The first release that
        knows more schemas gets another origin, and rebuilds the store.
        """
        newest = max(FolderSchemaIds().known(self.changelog))
        origin = f"{changelog}, schema ids up to {newest}"
        return f"{origin}, {self.derived.rule}" if self.derived else origin


def window_key(key: str, start: int) -> bytes:
    """The key of one window: its subject and its start in milliseconds since the epoch."""
    return f"{key}@{start}".encode()
