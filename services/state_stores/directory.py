"""Where the local stores live: ``state_dir/<store>/<partition>/``, one process a state directory."""

import fcntl
import os
from pathlib import Path

from services.state_stores.contract import StoreCorruptError, StorePartition
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.rocksdb import RocksDbStorePartition, RocksDbTuning, destroy_directory
from services.state_stores.store import Opener


class StateDirectoryInUseError(RuntimeError):
    """Another process has the state directory: RocksDB lets one process in, and two would need two."""


class StateDirectory:
    """A directory that this process alone uses until ``release`` or its death."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(self._lock, 32).decode(errors="replace").strip()
            os.close(self._lock)
            raise StateDirectoryInUseError(
                f"the state directory {path} is in use by another process (pid {owner}): give each its own --state-dir"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._lock)

    def partitions_of(self, store: str) -> frozenset[int]:
        """The partitions of a store of which there is something on disk."""
        folder = self.path / store
        return (
            frozenset(int(each.name) for each in folder.iterdir() if each.name.isdigit())
            if folder.is_dir()
            else frozenset()
        )

    def open_rocksdb(self, tuning: RocksDbTuning) -> Opener:
        """Opens store partitions in RocksDB; one that is corrupt is wiped before StoreCorruptError is raised."""

        def open_partition(store: str, partition: int) -> StorePartition:
            directory = self.path / store / str(partition)
            try:
                return RocksDbStorePartition(directory, tuning)
            except StoreCorruptError:
                destroy_directory(directory)
                raise

        return open_partition


def open_memory(_: str, __: int) -> StorePartition:
    """Opens empty store partitions in memory."""
    return MemoryStorePartition()
