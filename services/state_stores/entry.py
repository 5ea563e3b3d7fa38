"""What a store keeps for a key: how fresh it is, and the answer ready to send."""

import struct
from typing import NamedTuple

FORMAT = 1
"""Raised whenever header or bodies change; a store of another format is rebuilt from its changelog."""

_HEADER = struct.Struct(">qqq")


class Entry(NamedTuple):
    """A value of a store.

    Attributes:
        sequence: the record's own, per key; it only grows.
        offset: of the changelog record that gave it.
        append_time: when the broker appended that record, milliseconds since the epoch.
        body: JSON, ready to send.
    """

    sequence: int
    offset: int
    append_time: int
    body: bytes

    def pack(self) -> bytes:
        return _HEADER.pack(self.sequence, self.offset, self.append_time) + self.body

    @classmethod
    def unpack(cls, stored: bytes) -> "Entry":
        sequence, offset, append_time = _HEADER.unpack_from(stored)
        return cls(sequence, offset, append_time, stored[_HEADER.size :])
