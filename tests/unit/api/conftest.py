"""The app over real memory stores, fed by the test instead of by Kafka. Some fixtures change how long it waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest
from fastapi.testclient import TestClient

from api.commands import decisions, preconditions, service
from schemas.topics import LOYALTY_BALANCES
from services.interactive_queries.reports import PeerReports
from services.messaging.avro import encoder
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.materialiser import LocalStores
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore, state_stores
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from services.state_stores.waiters import SequenceWaiters
from tests.support.builders import IDS, available_points
from tests.support.clusters import Callers, FakeCommandLog, Group, alone, app_of
from tests.support.loyalty_query import Scene
from tests.unit.api.servers import serving
from tests.unit.api.three_instances import running, three


@dataclass
class TestFeed:
    """Feeds stores by hand."""

    __test__ = False

    store: StateStore
    waiters: SequenceWaiters
    alive: bool = True
    kafka_error: str | None = None
    events: list[str] = field(default_factory=list)

    @property
    def restored(self) -> bool:
        tasks = self.store.tasks.values()
        return bool(tasks) and all(task.progress.restored for task in tasks)

    @property
    def ready(self) -> bool:
        return self.restored

    def start(self) -> None:
        self.events.append("start")

    def stop(self) -> None:
        self.events.append("stop")

    def open(self, target: int = 0) -> None:
        """Open all partitions as their owner, each restored once it has this many records."""
        for partition in range(self.store.partitions):
            progress = TaskProgress(None, 0, 0, target, target, active_target=target)
            self.store.add(StoreTask(self.store.definition, partition, MemoryStorePartition(), "test", progress))

    def write(self, card: str, points: str, sequence: int) -> None:
        """Apply one Balance record to the partition where Kafka would put it, and wake waiting requests."""
        key = card.encode()
        task = self.store.tasks[self.store.partition_of(key)]
        balance = {
            "CustomerCardNo": card,
            **available_points(points),
            "Sequence": sequence,
            "UpdatedTime": 1_700_000_000_000,
        }
        value = encoder(LOYALTY_BALANCES, IDS)(balance)
        self.waiters.notify(task.apply([ChangelogRecord(task.progress.position, 1, key, value)]))


@pytest.fixture(autouse=True)
def _no_repeated_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long poll reads again each second. So without that a test proves that a write or a move wakes it."""
    monkeypatch.setattr("services.state_stores.waiters._PAUSE_SECONDS", 60)


@pytest.fixture
def _long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command finish its work on a busy machine, too."""
    for module in (decisions, service):
        monkeypatch.setattr(module, "GRACE_SECONDS", 10)
    monkeypatch.setattr(preconditions, "_LOOKUP_SECONDS", 5)


@pytest.fixture
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command wait less than a second longer than its client."""
    for module in (decisions, service):
        monkeypatch.setattr(module, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(preconditions, "_LOOKUP_SECONDS", 0.1)


@pytest.fixture
def stores() -> dict[str, StateStore]:
    return state_stores(catalogue.stores(IDS))


@pytest.fixture
def feed(stores: dict[str, StateStore]) -> TestFeed:
    return TestFeed(stores[catalogue.BALANCES], SequenceWaiters())


@pytest.fixture
def client(feed: TestFeed, stores: dict[str, StateStore]) -> Iterator[TestClient]:
    local = alone(LocalStores(stores, feed, feed.waiters))
    app = app_of(local, PeerReports(), FakeCommandLog())
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def write(feed: TestFeed) -> Callable[[str, str, int], None]:
    feed.open()
    return feed.write


@pytest.fixture
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """One instance and a loyalty query. The parameter of the fixture is another number of instances."""
    scene = Scene(getattr(request, "param", 1))
    async with scene.group.running() as client:
        scene.http = client.http
        for instance in scene.group.instances:
            instance.waiters.bind(asyncio.get_running_loop())
        yield scene


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Settings]:
    """The settings of a server for all tests of a module, because the end of a server takes 0.1 s.

    A request has 30 seconds to arrive. A test that changes the server starts its own one.
    """
    with serving(request_timeout="PT30S") as settings:
        yield settings


@pytest.fixture
def standbys() -> bool:
    """Whether the next instance has a copy of each partition. A test can have a parameter of this name."""
    return True


@pytest.fixture
def group(standbys: bool) -> Group:  # noqa: FBT001
    """Three instances with balances."""
    return three(standbys=standbys)


@pytest.fixture
async def callers(group: Group) -> AsyncIterator[Callers]:
    """A client of the running group."""
    async with running(group) as callers:
        yield callers
