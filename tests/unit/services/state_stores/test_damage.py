"""Damaged data on disk: each read reports the damage, and the copy stops serving. Then it is rebuilt.

The tests flip 64 bytes in the middle of an SST file, as a failing disk does. Opening the store does not notice that.
"""

import time
from datetime import timedelta
from pathlib import Path

import pytest

from services.clock import now
from services.messaging.schema_ids import FolderSchemaIds
from services.state_stores import catalogue
from services.state_stores.changelog import Changelog
from services.state_stores.contract import Checkpoint, StoreCorruptError
from services.state_stores.definition import VersionedValue
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options
from services.state_stores.store import NotServingError, StateStore
from tests.support.failing_disk import flip

KEYS = [f"card{number:06d}".encode() for number in range(5_000)]
CHANGELOG = Changelog("here", 3, timedelta(days=1))
ORIGIN = catalogue.stores(FolderSchemaIds())[0].origin("here")


def damaged_store(directory: Path) -> RocksDbStorePartition:
    """An open store with one damaged block."""
    store = RocksDbStorePartition(directory, rocksdb_options())
    body = bytes(range(256))  # random data, which do not compress, so that the file has many blocks
    checkpoint = Checkpoint(ORIGIN, 7, now())
    store.apply({key: VersionedValue(1, 7, 0, body + key).pack() for key in KEYS}, checkpoint)
    store._db.flush()
    store.close()
    (file,) = directory.glob("*.sst")
    flip(file)
    return RocksDbStorePartition(directory, rocksdb_options())


def damaged_keys(store: RocksDbStorePartition) -> list[bytes]:
    found = []
    for key in KEYS:
        try:
            assert store.get(key) is not None
        except StoreCorruptError:
            found.append(key)
    return found


def test_each_operation_reports_a_damaged_block(tmp_path: Path) -> None:
    """A read of a lost key never says that the key does not exist, and a scan never leaves it out silently."""
    store = damaged_store(tmp_path / "0")
    assert store.damage is None

    lost = damaged_keys(store)
    assert 0 < len(lost) < 100
    with pytest.raises(StoreCorruptError):
        store.get_many(KEYS)
    for limit in (len(KEYS), len(KEYS) + 1, 10**9):
        with pytest.raises(StoreCorruptError):
            store.scan(b"", None, limit)
    with pytest.raises(StoreCorruptError):
        store.scan(lost[0], None, 1)
    with pytest.raises(StoreCorruptError):
        store.scan(lost[-1], lost[-1] + b"\0", 1)

    assert "block checksum mismatch" in str(store.damage)
    assert [KEYS[0]] == [key for key, _ in store.scan(b"", None, 1)]
    assert KEYS[-1:] == [key for key, _ in store.scan(KEYS[-1], None, 9)]
    store.close()


def test_the_error_of_a_scan_does_not_keep_the_directory_locked(tmp_path: Path) -> None:
    """The materialiser opens the store again while a request still handles the error, and must not end."""
    store = damaged_store(tmp_path / "0")
    with pytest.raises(StoreCorruptError) as raised:
        store.scan(b"", None, 10**9)
    store.destroy()

    again = RocksDbStorePartition(tmp_path / "0", rocksdb_options())

    assert "block checksum mismatch" in str(raised.value)
    again.close()


def test_a_damaged_copy_stops_serving_and_is_rebuilt(tmp_path: Path) -> None:
    """After the first read that fails, the partition is not served, so that callers ask another copy.

    When the materialiser opens it again, the copy starts empty, and the reason and the time are reported. The alert
    compares the time with its own clock, so it also notices a rebuild at the start of a process.
    """
    store = StateStore(catalogue.stores(FolderSchemaIds())[0])
    task = store.open_task(0, CHANGELOG, (0, 7), lambda *_: damaged_store(tmp_path / "0"))
    assert store.serving(0) is task
    assert 0.0 == task.progress.rebuilt_at
    assert isinstance(task.store, RocksDbStorePartition)

    assert damaged_keys(task.store)

    with pytest.raises(NotServingError):
        store.serving(0)
    assert not task.serving
    before = time.time()
    rebuilt = store.open_task(0, CHANGELOG, (0, 7), lambda *_: RocksDbStorePartition(tmp_path / "0", rocksdb_options()))
    assert (0, 0, False) == (rebuilt.store.count(), rebuilt.progress.position, rebuilt.serving)
    assert "block checksum mismatch" in str(rebuilt.progress.rebuilt_because)
    assert before <= rebuilt.progress.rebuilt_at <= time.time()
    rebuilt.store.close()
