"""What a store keeps for a key: how fresh it is, and the answer ready to send."""

import struct
from typing import NamedTuple

FORMAT = 2
"""Raised whenever header or bodies change; a store of another format is rebuilt from its changelog."""

_HEADER = struct.Struct(">qqqq")


class Entry(NamedTuple):
    """A value of a store.

    Attributes:
        sequence: the record's own, per key; it only grows, for as long as the opened time stays.
        offset: of the changelog record that gave it.
        append_time: when the broker appended that record, milliseconds since the epoch.
        body: JSON, ready to send.
        opened_time: of the account that the sequence counts; 0 where sequences never start again.
    """

    sequence: int
    offset: int
    append_time: int
    body: bytes
    opened_time: int = 0

    @property
    def version(self) -> tuple[int, int]:
        """Of two entries of a key the one with the greater version is newer."""
        return self.opened_time, self.sequence

    def pack(self) -> bytes:
        return _HEADER.pack(self.sequence, self.offset, self.append_time, self.opened_time) + self.body

    @classmethod
    def unpack(cls, stored: bytes) -> "Entry":
        sequence, offset, append_time, opened_time = _HEADER.unpack_from(stored)
        return cls(sequence, offset, append_time, stored[_HEADER.size :], opened_time)

    @staticmethod
    def body_of(stored: bytes) -> bytes:
        """The body alone."""
        return stored[_HEADER.size :]


class ReadConsistency(NamedTuple):
    """What a reader waits for: what a change that it knows of has done to an entry.

    Attributes:
        sequence: the lowest that will do.
        opened_time: of the account that the sequence counts: one that was opened later will do with any. 0: not known.
        erased: wait instead until that account, and every earlier one of the key, is gone.
    """

    sequence: int = 0
    opened_time: int = 0
    erased: bool = False

    def is_seen_in(self, entry: Entry | None) -> bool:
        """Whether an entry, or that there is none, is new enough."""
        if self.erased:
            return entry is None or entry.opened_time > self.opened_time
        if entry is None:
            return self == ANY_VERSION
        if entry.opened_time > self.opened_time > 0:
            return True
        return entry.opened_time >= self.opened_time and entry.sequence >= self.sequence


ANY_VERSION = ReadConsistency()
