"""The contract of a local state store, one partition at a time. Both backends keep it; one test class checks both."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass


class StoreError(RuntimeError):
    """The store cannot do what was asked; the message says why."""


class StoreClosedError(StoreError):
    """The store has been closed: its partition moved away, or the process is stopping."""


class StoreCorruptError(StoreError):
    """What is on disk cannot be trusted. Destroying and rebuilding from the changelog is the cure."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a store has followed its changelog.

    Attributes:
        origin: names the changelog and the format of the values; data of another origin must not be served.
        offset: the next changelog offset to read.
        caught_up_time: when the store last was where its changelog ended or, if it never was, when it began with
            nothing; by this machine's clock, milliseconds since the epoch. A store that was left alone, or lagged, for
            longer than the changelog's tombstone retention may have missed a deletion.
    """

    origin: str
    offset: int
    caught_up_time: int


class StorePartition(ABC):
    """Keys and values (bytes) of one partition, with the checkpoint up to which they hold.

    One thread writes; any thread reads meanwhile. After ``close`` every operation raises StoreClosedError; damage
    found on disk raises StoreCorruptError.
    """

    @property
    @abstractmethod
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the last ``apply``; None for a store that holds nothing yet."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None where there is none."""

    @abstractmethod
    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        """The same for several keys, in one go."""

    @abstractmethod
    def apply(
        self,
        writes: Mapping[bytes, bytes | None],
        checkpoint: Checkpoint,
        known: Mapping[bytes, bytes | None] | None = None,
    ) -> None:
        """Put (or, for None, delete) the keys and set the checkpoint: all of it or, after a crash, nothing of it.

        Args:
            known: what ``get_many`` has given for these keys since the last ``apply``; they are not read again.
        """

    @abstractmethod
    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys of ``start <= key < end`` (None: no end) with their values, in the order of bytes.

        The keys are those of one moment, whatever is written meanwhile. The next page starts at the last key plus a
        zero byte.
        """

    def scan_prefix(self, prefix: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The same for the keys that begin with the prefix."""
        return self.scan(prefix, end_of_prefix(prefix), limit)

    @abstractmethod
    def count(self) -> int:
        """The number of keys, exact."""

    @abstractmethod
    def close(self) -> None:
        """Release memory and files; a second call does nothing."""

    @abstractmethod
    def destroy(self) -> None:
        """Close, and delete all that the store has ever kept."""


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The first key after all keys that begin with the prefix; None where there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
