"""Fixtures of the tests of services: no broker or librdkafka's mock, and state stores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from services.settings import Settings
from services.state_stores.contract import StorePartition
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options
from tests.support.mock_kafka import mock_broker


@pytest.fixture(autouse=True)
def _no_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker listens, so nothing waits long for one. The broker of a test may be slow on a busy machine."""
    if "mocked_broker" not in request.fixturenames:
        for module in ("dead_letters", "publishing"):
            monkeypatch.setattr(f"services.messaging.{module}.BROKER_TIMEOUT", 0.1)


@pytest.fixture
def mocked_broker() -> Iterator[tuple[Settings, Producer]]:
    """Settings of a broker that answers, and a producer."""
    with mock_broker() as found:
        yield found


@pytest.fixture(params=["memory", "rocksdb"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StorePartition]:
    """Opens store partitions, each of its own, in either backend."""
    tuning, directories = rocksdb_options(), (tmp_path / str(number) for number in range(1_000_000))
    if request.param == "memory":
        return MemoryStorePartition
    return lambda: RocksDbStorePartition(next(directories), tuning)
