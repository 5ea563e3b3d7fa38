"""A store partition in memory. It is rebuilt from its changelog at each start."""

import bisect
import threading
from collections.abc import Collection

from services.state_stores.contract import Checkpoint, StoreClosedError, StoredValues, StorePartition


class MemoryStorePartition(StorePartition):
    """A store partition in a dictionary."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._ordered_keys: list[bytes] | None = []
        self._checkpoint: Checkpoint | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def checkpoint(self) -> Checkpoint | None:
        self._check_open()
        return self._checkpoint

    def get(self, key: bytes) -> bytes | None:
        value = self._values.get(key)
        # Check this after the read: a closed store is empty, and "no value" would be a wrong result.
        self._check_open()
        return value

    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        return {key: self.get(key) for key in keys}

    def apply(self, writes: StoredValues, checkpoint: Checkpoint, known: StoredValues | None = None) -> None:
        with self._lock:
            self._check_open()
            for key, value in writes.items():
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value
            self._ordered_keys = None
            self._checkpoint = checkpoint

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        with self._lock:
            self._check_open()
            if self._ordered_keys is None:
                self._ordered_keys = sorted(self._values)
            keys = self._ordered_keys
            first = bisect.bisect_left(keys, start)
            last = len(keys) if end is None else bisect.bisect_left(keys, end)
            return [(key, self._values[key]) for key in keys[first : min(last, first + limit)]]

    def count(self) -> int:
        number = len(self._values)
        self._check_open()
        return number

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._values = {}
            self._ordered_keys = []

    def destroy(self) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")


def open_memory(_store: str, _partition: int) -> StorePartition:
    """Open an empty store partition (see ``Opener``)."""
    return MemoryStorePartition()
