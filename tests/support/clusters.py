"""API instances in one process: real applications and memory stores. The test plays Kafka and the consumer group."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote

import httpx
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, Node, TopicPartition
from confluent_kafka.admin._group import ConsumerGroupDescription, MemberAssignment, MemberDescription
from fastapi import FastAPI

from api.app import create_app
from api.dependencies import Dependencies
from api.http.metrics import Metrics
from api.operations import BrokerUnavailable, Operations
from api.security.gate import Security
from schemas.topics import LOYALTY_DECISIONS, Topic
from services.clock import boot_seconds
from services.commands.log import CommandLog
from services.domain.programme import Programme
from services.interactive_queries.group import GroupView, Member, view_of
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.reports import PeerReports
from services.ledger.queries import LedgerQueries
from services.messaging.avro import Record, encoder
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.contract import StoreCorruptError
from services.state_stores.materialiser import LocalStores
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore, state_stores
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from services.state_stores.waiters import SequenceWaiters
from services.status import ApiState
from services.status_figures import Part, Status
from tests.support.builders import IDS

URL = "http://127.0.0.1:8080"
TLS = ssl.create_default_context()
"""Shared by all instances. Otherwise httpx loads its authorities for each of them, which takes most of the time."""

_SETTINGS = Settings(ledger_url="sqlite:////nowhere/ledger.sqlite")


def member(url: str, places: Iterable[ChangelogPartition], suffix: str = "1") -> MemberDescription:
    """A member as the broker describes it. Its id begins with its client id."""
    partitions = [TopicPartition(topic, number) for topic, number in places]
    return MemberDescription(f"{url}-{suffix}", url, "/127.0.0.1", MemberAssignment(partitions))


def description(*members: MemberDescription, stable: bool = True) -> ConsumerGroupDescription:
    state = ConsumerGroupState.STABLE if stable else ConsumerGroupState.PREPARING_REBALANCING
    return ConsumerGroupDescription(
        "loyalty-api",
        is_simple_consumer_group=False,
        members=list(members),
        partition_assignor="cooperative-sticky",
        state=state,
        coordinator=Node(1, "127.0.0.1", 9092),
        type=ConsumerGroupType.CLASSIC,
    )


def view(shares: dict[str, Iterable[ChangelogPartition]], asked_at: float = 0.0) -> GroupView:
    """A stable group in which each instance (URL) owns these partitions."""
    return view_of(description(*(member(url, places) for url, places in shares.items())), asked_at, None)


@dataclass
class FixedMembership:
    """A group membership that the test controls."""

    owned: frozenset[ChangelogPartition] = frozenset()
    view: GroupView | None = None
    assigned_at: Mapping[ChangelogPartition, float] = field(default_factory=dict)
    lease_holds: bool = True
    url: str = URL
    group: str = "loyalty-api"
    lease_seconds: float = 4.0
    refreshed: int = 0
    changed: Callable[[], None] = field(default=lambda: None)
    on_refresh: Callable[[], None] = field(default=lambda: None)

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback

    def refresh(self) -> None:
        self.refreshed += 1
        self.on_refresh()


@dataclass
class FakeFeed:
    """A materialiser that reports what the test sets."""

    alive: bool = True
    kafka_error: str | None = None
    restored: bool = True
    ready: bool = True

    def start(self) -> None: ...

    def stop(self) -> None: ...


class FakeCommandLog(CommandLog):
    """Collects the commands of an instance. The test decides what happens to them."""

    def __init__(self) -> None:
        self.marks: list[Record] = []
        self.commands: list[Record] = []
        self.on_mark: Callable[[Record], None] = lambda _: None
        self.on_send: Callable[[Record], None] = lambda _: None

    async def mark(self, mark: Record) -> None:
        self.on_mark(mark)
        self.marks.append(mark)

    async def send(self, command: Record) -> None:
        self.on_send(command)
        self.commands.append(command)

    def close(self) -> None: ...


def _no_answer(*_: object) -> NoReturn:
    raise BrokerUnavailable(reason="the test has no Kafka")


class _WithoutKafka(Operations):
    """Operations that do not wait ten seconds until they know that no broker answers."""

    async def status(self, api: ApiState) -> tuple[Status, None]:
        kafka = Part("kafka", "127.0.0.1:9092", "Kafka does not answer")
        return Status(time.time(), [kafka], {}, {}, {}, {}, [], api.instances), None

    newest_dead_letters = audits = select = replay = publish_programme = _no_answer  # type: ignore[assignment]


def app_of(
    local: LocalInstance, reports: PeerReports, command_log: FakeCommandLog, security: Security | None = None
) -> FastAPI:
    """The app without a ledger and without old records of changelogs. A test that needs them sets them."""
    return create_app(
        Dependencies(
            local,
            reports,
            Metrics(),
            command_log,
            version_0=Programme(),
            ledger=LedgerQueries(_SETTINGS),
            history=lambda *_: [],
            tls=TLS,
            operations=_WithoutKafka(_SETTINGS),
            security=security,
        )
    )


class Instance:
    """One API instance. ``hold`` and ``write`` do the work of the materialiser."""

    def __init__(
        self,
        url: str = "http://one:8080",
        security: Security | None = None,
        internal_stores: Mapping[str, StateStore] | None = None,
    ) -> None:
        self.url = url
        self.stores = state_stores(catalogue.stores(IDS))
        self.feed = FakeFeed()
        self.membership = FixedMembership(url=url, group="test", lease_seconds=3600.0)
        self.reports = PeerReports()
        self.waiters = SequenceWaiters()
        self.command_log = FakeCommandLog()
        stores = LocalStores(
            self.stores,
            self.feed,  # type: ignore[arg-type]  # a fake
            self.waiters,
            internal_stores or {},
        )
        self.local = LocalInstance(stores, self.membership, _SETTINGS)  # type: ignore[arg-type]  # a fake
        self.app = app_of(self.local, self.reports, self.command_log, security)

    def own_everything(self, target: int = 0) -> None:
        """Own all partitions as the only member. A partition is restored when it has ``target`` records."""
        places = [
            (store.definition.changelog.name, number)
            for store in self.stores.values()
            for number in range(store.partitions)
        ]
        self.membership.owned = frozenset(places)
        for place in places:
            self.hold(place, target=target)

    def hold(self, place: ChangelogPartition, role: Role = Role.ACTIVE, target: int = 0) -> None:
        for store in self.stores.values():
            if store.definition.changelog.name == place[0] and place[1] not in store.tasks:
                progress = TaskProgress(None, 0, 0, target, target, end_asked_at=boot_seconds())
                store.add(StoreTask(store.definition, place[1], MemoryStorePartition(), "test", progress))
            if place[1] in store.tasks and store.definition.changelog.name == place[0]:
                store.tasks[place[1]].progress.active_target = 0 if role is Role.ACTIVE else None

    def drop(self, place: ChangelogPartition) -> None:
        for store in self.stores.values():
            if store.definition.changelog.name == place[0] and (task := store.remove(place[1])):
                task.store.close()

    def write(self, topic: Topic, key: str, record: dict[str, Any] | None, append_time: int = 2**50) -> None:
        """Apply a record to the store partition of its key, if this instance holds it, and wake waiting requests."""
        value = None if record is None else encoder(topic, IDS)(record)
        written = []
        for store in self.stores.values():
            task = store.tasks.get(store.partition_of(key.encode()))
            if store.definition.changelog == topic and task:
                written = [ChangelogRecord(task.progress.position, append_time, key.encode(), value)]
                self.waiters.notify(task.apply(written))
        self.waiters.pass_on(topic.name, written)


def with_marks(instance: Instance) -> Instance:
    """Let the instance apply the mark of each command at once, as a materialiser does. Returns the instance."""
    instance.command_log.on_mark = lambda mark: instance.write(LOYALTY_DECISIONS, mark["CommandID"], mark)
    return instance


_READS = ("get", "get_many", "scan", "count")


def damage(task: StoreTask) -> None:
    """Make each read of a store partition find a damaged block."""

    def fail(*_: object) -> Any:
        task.store.damage = "Corruption: block checksum mismatch"
        raise StoreCorruptError(task.store.damage)

    for operation in _READS:
        setattr(task.store, operation, fail)


def repair(task: StoreTask) -> None:
    """Undo ``damage``, as a rebuild does."""
    for operation in _READS:
        delattr(task.store, operation)
    task.store.damage = None


@dataclass
class Group:
    """Several instances, connected by a transport without sockets.

    Attributes:
        log: all records written so far.
        dead: URLs of instances that refuse connections.
        mute: URLs of instances that accept requests and never answer.
        sent: all requests that the transport delivered.
    """

    instances: list[Instance]
    log: list[tuple[Topic, str, dict[str, Any] | None]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    sent: list[httpx.Request] = field(default_factory=list)

    @classmethod
    def of(cls, size: int, security: Callable[[str], Security | None] = lambda _: None) -> "Group":
        urls = [f"http://instance-{number}:8080" for number in range(size)]
        return cls([Instance(url, security(url)) for url in urls])

    @property
    def live(self) -> list[Instance]:
        return [each for each in self.instances if each.url not in self.dead]

    def write(self, records: Iterable[tuple[Topic, str, dict[str, Any] | None]]) -> None:
        for record in records:
            self.log.append(record)
            for instance in self.instances:
                instance.write(*record)

    def share(
        self,
        owner_of: Callable[[ChangelogPartition], int],
        standby_of: Callable[[ChangelogPartition], int | None] = lambda _: None,
    ) -> None:
        """Assign an owner, and possibly a standby, to each partition. All instances hold the global stores."""
        stores = {each.definition.changelog.name: each for each in self.instances[0].stores.values()}
        owners: dict[ChangelogPartition, int] = {}
        for name, store in stores.items():
            for place in ((name, number) for number in range(store.partitions)):
                holders = {standby_of(place): Role.STANDBY, owner_of(place): Role.ACTIVE}
                if store.definition.is_global:
                    holders = dict.fromkeys(range(len(self.instances)), Role.ACTIVE)
                else:
                    owners[place] = owner_of(place)
                self._place(place, holders)
        members = tuple(
            Member(str(number), each.url, frozenset(place for place, owner in owners.items() if owner == number))
            for number, each in enumerate(self.instances)
        )
        for each, member in zip(self.instances, members, strict=True):
            each.membership.owned = member.partitions
            each.membership.view = GroupView(members, stable=True, asked_at=boot_seconds())
        for each in self.instances:
            for other in self.live:
                each.reports.note(other.local.report())

    def deliver(self, request: httpx.Request) -> str:
        """Record a request, unless its instance is dead. Returns the URL of the instance."""
        url = f"{request.url.scheme}://{request.url.netloc.decode()}"
        if url in self.dead:
            raise httpx.ConnectError("the instance is dead")
        self.sent.append(request)
        return url

    def _place(self, place: ChangelogPartition, holders: dict[int | None, Role]) -> None:
        for number, instance in enumerate(self.instances):
            held = any(
                place[1] in each.tasks
                for each in instance.stores.values()
                if each.definition.changelog.name == place[0]
            )
            if number not in holders:
                instance.drop(place)
                continue
            instance.hold(place, holders[number])
            if not held:
                self._restore(instance, place)

    def _restore(self, instance: Instance, place: ChangelogPartition) -> None:
        for topic, key, record in self.log:
            stores = [each for each in instance.stores.values() if each.definition.changelog == topic]
            if topic.name == place[0] and stores[0].partition_of(key.encode()) == place[1]:
                instance.write(topic, key, record)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Callers"]:
        """Start the applications, and connect them by the transport."""
        transport = _Transport(self)
        async with AsyncExitStack() as stack:
            for instance in self.instances:
                await stack.enter_async_context(instance.app.router.lifespan_context(instance.app))
                peers = instance.app.state.dependencies.peers
                await peers._client.aclose()
                peers._client = httpx.AsyncClient(transport=transport)
                await peers._streams.aclose()
                peers._streams = httpx.AsyncClient(transport=StreamingTransport(self))
            yield Callers(await stack.enter_async_context(httpx.AsyncClient(transport=transport)), self)


@dataclass
class Callers:
    """A client that addresses instances by number."""

    http: httpx.AsyncClient
    group: Group

    async def get(self, number: int, path: str) -> httpx.Response:
        return await self.http.get(self.group.instances[number].url + path)

    async def post(self, number: int, path: str, body: Any) -> httpx.Response:
        return await self.http.post(self.group.instances[number].url + path, json=body)


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, group: Group) -> None:
        self._group = group
        self._apps = {each.url: httpx.ASGITransport(each.app) for each in group.instances}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = self._group.deliver(request)
        if url in self._group.mute:
            raise httpx.ReadTimeout("the instance is mute")
        return await self._apps[url].handle_async_request(request)


class StreamingTransport(httpx.AsyncBaseTransport):
    """Passes on each part of a response at once. ``httpx.ASGITransport`` waits for the end of the response."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._apps = {each.url: each.app for each in group.instances}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = self._group.deliver(request)
        path, _, query = request.url.raw_path.partition(b"?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "server": ("127.0.0.1", 8080),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        requests = iter([{"type": "http.request", "body": b"", "more_body": False}])
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if message := next(requests, None):
                return message
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            await self._apps[url](scope, receive, sent.put)  # type: ignore[arg-type]
            await sent.put(None)

        task = asyncio.create_task(run())
        start = await sent.get()
        assert start is not None
        return httpx.Response(start["status"], headers=start["headers"], stream=_Parts(sent, task, gone))


@dataclass
class _Parts(httpx.AsyncByteStream):
    sent: "asyncio.Queue[dict[str, Any] | None]"
    task: "asyncio.Task[None]"
    gone: asyncio.Event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.sent.get()) and (message["body"] or message.get("more_body")):
            yield message["body"]

    async def aclose(self) -> None:
        self.gone.set()
        await self.task


def alone(stores: LocalStores) -> LocalInstance:
    """An instance that is the only member of its group, and owns all partitions."""
    places = frozenset(
        (store.definition.changelog.name, number)
        for store in stores.by_name.values()
        for number in range(store.partitions)
    )
    membership = FixedMembership(places, view({URL: places}, boot_seconds()))
    return LocalInstance(stores, membership, _SETTINGS)  # type: ignore[arg-type]  # a fake
