"""The storage of one store partition. Memory and RocksDB implement it, and the same tests check both."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass


class StoreError(RuntimeError):
    """The storage cannot do what was requested; the message gives the reason."""


class StoreClosedError(StoreError):
    """The storage is closed: its partition has moved to another instance, or the process stops."""


class StoreFullError(StoreError):
    """The disk is full. The data are intact and can be read. Writes succeed again after space is free."""


class StoreCorruptError(StoreError):
    """The data on disk are damaged. They must be destroyed and rebuilt from the changelog."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a store has applied its changelog.

    Attributes:
        origin: identifies the changelog and the format of the values. Data of another origin must not be served.
        offset: the next changelog offset to apply.
        caught_up_time: when the store was last at the end of its changelog or, if it never was, when it started empty;
            by the clock of this machine, in milliseconds since the epoch. If that is longer ago than the changelog's
            tombstone retention, the store may have missed a deletion.
    """

    origin: str
    offset: int
    caught_up_time: int


StoredValues = Mapping[bytes, bytes | None]
"""Values by their keys. None: the store does not have the key, or must delete it."""


class StorePartition(ABC):
    """Keys and values (bytes) of one partition, with the checkpoint to which they belong.

    One thread writes, and any thread reads at the same time. After ``close`` each operation raises StoreClosedError.
    An operation that finds damaged data raises StoreCorruptError.

    Attributes:
        damage: the message of that error; None if no operation found damage. Do not read a damaged store again.
    """

    damage: str | None = None

    @property
    @abstractmethod
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the last ``apply``; None if nothing was ever applied."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if the key does not exist."""

    @abstractmethod
    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        """The value of each key; None if the key does not exist."""

    @abstractmethod
    def apply(self, writes: StoredValues, checkpoint: Checkpoint, known: StoredValues | None = None) -> None:
        """Write the values (None deletes the key) and the checkpoint atomically.

        Args:
            known: the result of ``get_many`` for these keys since the last ``apply``, so that they are not read again.
        """

    @abstractmethod
    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys of ``start <= key < end`` (None: no end) with their values, ordered by their bytes.

        All of them come from one snapshot. The next page starts at the last key plus a zero byte.
        """

    @abstractmethod
    def count(self) -> int:
        """The exact number of keys."""

    @abstractmethod
    def close(self) -> None:
        """Release memory and files. A second call does nothing."""

    @abstractmethod
    def destroy(self) -> None:
        """Close, and delete all data."""


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with the prefix; None if there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
