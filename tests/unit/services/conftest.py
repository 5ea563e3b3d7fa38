"""Fixtures of the tests of the state stores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.state_stores.contract import StorePartition
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options


@pytest.fixture(params=["memory", "rocksdb"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StorePartition]:
    """Opens store partitions, each of its own, in either backend."""
    tuning, directories = rocksdb_options(), (tmp_path / str(number) for number in range(1_000_000))
    if request.param == "memory":
        return MemoryStorePartition
    return lambda: RocksDbStorePartition(next(directories), tuning)
