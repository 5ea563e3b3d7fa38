"""Fixtures of the tests of services: no broker, and state stores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.state_stores.contract import StorePartition
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker listens, so nothing waits long for one."""
    for module in ("dead_letters", "publishing"):
        monkeypatch.setattr(f"services.messaging.{module}.BROKER_TIMEOUT", 0.1)


@pytest.fixture(params=["memory", "rocksdb"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StorePartition]:
    """Opens store partitions, each of its own, in either backend."""
    tuning, directories = rocksdb_options(), (tmp_path / str(number) for number in range(1_000_000))
    if request.param == "memory":
        return MemoryStorePartition
    return lambda: RocksDbStorePartition(next(directories), tuning)
