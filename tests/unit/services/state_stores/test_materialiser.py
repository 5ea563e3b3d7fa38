"""The materialiser: which partitions it opens, closes and rebuilds. Tests with a broker are in tests/integration."""

import asyncio
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import stamina
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import encoder
from services.messaging.clients import LOST_SECONDS
from services.messaging.log_reader import Batch
from services.messaging.schema_ids import FolderSchemaIds, SchemaRegistryUnavailableError
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.changelog import Changelog, EndOffsets
from services.state_stores.contract import Checkpoint, StoreCorruptError, StoreError, StorePartition
from services.state_stores.materialiser import Materialiser
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.rocksdb import StateDirectory, rocksdb_options
from services.state_stores.store import NotServingError, Opener, StateStore
from services.state_stores.waiters import SequenceWaiters
from tests.support.waiting import wait_for

TOPIC = "loyalty-balances"
RETENTION = timedelta(hours=1)
DEFINITION = catalogue.stores(FolderSchemaIds())[0]


class Broker:
    """The admin client and the consumer of a materialiser. It notes the positions from which partitions are read."""

    def __init__(self, low: int, high: int) -> None:
        self.answer = (low, high)
        self.reads: dict[int, int] = {}

    def list_topics(self, topic: str, **_: object) -> SimpleNamespace:
        leaders = {number: SimpleNamespace(leader=1) for number in range(3)}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=leaders)})

    def list_offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        found: dict[TopicPartition, Future[Any]] = {partition: Future() for partition in asked}
        for partition, spec in asked.items():
            is_latest = isinstance(spec, type(OffsetSpec.latest()))  # type: ignore[no-untyped-call]
            found[partition].set_result(SimpleNamespace(offset=self.answer[is_latest]))
        return found

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.reads = {each.partition: each.offset for each in partitions}

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.reads |= {each.partition: each.offset for each in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            del self.reads[each.partition]


class FixedAssignment:
    """An assignment that the test sets."""

    def __init__(self) -> None:
        self.roles: dict[ChangelogPartition, Role] = {}
        self.settled = True
        self.alive = True
        self.left = False

    def attach(self, topics: Mapping[str, int]) -> None: ...

    def leave(self) -> None:
        self.left = True

    def holdings(self, held: Collection[ChangelogPartition]) -> Mapping[ChangelogPartition, Role]:
        return dict(self.roles)

    def give(self, *partitions: int, role: Role = Role.ACTIVE) -> None:
        self.roles |= {(TOPIC, number): role for number in partitions}


def stored(offset: int, origin: str = "here", age: timedelta = timedelta(0)) -> StorePartition:
    return made_of(DEFINITION.origin(origin), offset, age)


def made_of(origin: str, offset: int, age: timedelta = timedelta(0)) -> StorePartition:
    partition = MemoryStorePartition()
    caught_up_time = int((time.time() - age.total_seconds()) * 1000)
    partition.apply({b"old": b"x"}, Checkpoint(origin, offset, caught_up_time))
    return partition


class Scene:
    """A materialiser that opens these stores in turn, and notes whether it is ready. The origin is ``here``."""

    def __init__(self, *opened: StorePartition, low: int = 0, high: int = 0) -> None:
        self._left = list(opened)
        self.ready: list[bool] = []
        self.store = StateStore(DEFINITION)
        self.assignment = FixedAssignment()
        self.waiters = SequenceWaiters()
        self.broker = Broker(low, high)
        self.materialiser = Materialiser(
            [self.store],
            Settings(),
            open_partition=self._open,
            assignment=self.assignment,
            waiters=self.waiters,
        )
        self.materialiser._admin = cast(AdminClient, self.broker)
        self.materialiser._ends = EndOffsets(self.materialiser._admin)
        self.changelog_is("here")

    def _open(self, *_: object) -> StorePartition:
        self.ready.append(self.materialiser.restored)
        return self._left.pop(0)

    def changelog_is(self, origin: str) -> None:
        self.materialiser._changelogs[TOPIC] = Changelog(origin, 3, RETENTION)

    def follow(self) -> dict[int, int]:
        self.materialiser._reader.consumer = cast(Consumer, self.broker)
        self.materialiser._follow_assignment()
        return self.broker.reads

    def reconnect(self) -> list[int]:
        starts = self.materialiser._open_partitions(self.materialiser._roles)
        return [start.offset for start in starts]

    def connect(self, monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
        """Connect again, after an error. The changelog has this origin now."""
        changelogs = {TOPIC: Changelog(origin, 3, RETENTION)}
        monkeypatch.setattr("services.state_stores.materialiser.describe_changelogs", lambda *_: changelogs)
        monkeypatch.setattr("services.messaging.clients.admin", lambda *_: self.broker)
        self.materialiser._connect()

    def maintain(self) -> None:
        self.materialiser._next_save_time = 0.0
        self.materialiser._maintain()


def test_it_is_not_ready_before_the_last_partition_is_open() -> None:
    """With empty changelogs each partition is restored when it is opened. All three must be restored."""
    scene = Scene(*[MemoryStorePartition() for _ in range(3)])
    scene.assignment.give(0, 1, 2)
    assert not scene.materialiser.restored

    assert {0: 0, 1: 0, 2: 0} == scene.follow()
    assert [False, False, False] == scene.ready
    assert scene.materialiser.restored


def test_without_partitions_it_is_ready_when_the_group_has_settled() -> None:
    """With more instances than partitions, an instance may hold none. It is ready, but not before it knows that."""
    scene = Scene()
    scene.assignment.settled = False
    assert {} == scene.follow()
    assert not scene.materialiser.restored

    scene.assignment.settled = True
    scene.follow()

    assert scene.materialiser.restored


def test_a_partition_that_is_taken_over_later_does_not_change_readiness() -> None:
    """Ready means that the first partitions were restored. A partition of a dead peer is restored while they serve."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.follow()
    assert scene.materialiser.restored
    assert scene.materialiser.ready

    scene.assignment.give(1)
    scene.follow()

    assert not scene.store.tasks[1].progress.restored
    assert scene.materialiser.restored
    assert scene.materialiser.ready


def test_it_is_not_ready_before_its_standbys_are_restored() -> None:
    """Otherwise a rolling restart could stop the last instance with the data of a partition."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.assignment.give(1, role=Role.STANDBY)
    scene.follow()
    assert scene.materialiser.restored
    assert not scene.materialiser.ready

    scene.store.tasks[1].progress.restored = True

    assert scene.materialiser.ready


def test_a_partition_that_moves_away_is_closed() -> None:
    """It is read no more. The other partitions stay as they are."""
    kept, gone = stored(5), stored(4)
    scene = Scene(kept, gone, high=5)
    scene.assignment.give(0, 1)
    assert {0: 5, 1: 4} == scene.follow()

    del scene.assignment.roles[TOPIC, 1]

    assert {0: 5} == scene.follow()
    assert [0] == list(scene.store.tasks)
    assert scene.store.tasks[0].store is kept


def test_the_data_of_a_partition_that_moved_away_are_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erased customer must not stay in a store that nobody updates. A partition that comes back keeps its data."""
    directory, delay = StateDirectory(tmp_path), "services.state_stores.closed._CLEANUP_SECONDS"
    scene = Scene()
    scene.materialiser._open_partition = directory.open_rocksdb(rocksdb_options())
    scene.assignment.give(0, 1, 2)
    scene.follow()
    del scene.assignment.roles[TOPIC, 0], scene.assignment.roles[TOPIC, 1]
    scene.follow()
    scene.assignment.give(1, role=Role.STANDBY)
    scene.follow()

    scene.maintain()
    assert {0, 1, 2} == directory.partitions_of(DEFINITION.name)
    monkeypatch.setattr(delay, 0.0)
    scene.assignment.settled = False
    scene.maintain()
    assert {0, 1, 2} == directory.partitions_of(DEFINITION.name)
    scene.assignment.settled = True
    scene.maintain()

    assert {1, 2} == directory.partitions_of(DEFINITION.name)
    assert {1, 2} == set(scene.store.tasks)
    scene.materialiser._close_partitions(list(scene.materialiser._roles))
    directory.release()


def test_data_that_cannot_be_deleted_are_deleted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk can be read-only for a while. The instance goes on, and tries again."""
    monkeypatch.setattr("services.state_stores.closed._CLEANUP_SECONDS", 0.0)
    errors = [OSError("read-only file system")]

    class Stubborn(MemoryStorePartition):
        def destroy(self) -> None:
            if errors:
                raise errors.pop()
            (tmp_path / "deleted").touch()

    scene = Scene(Stubborn())
    scene.assignment.give(0)
    scene.follow()
    scene.assignment.roles.clear()
    scene.follow()

    scene.maintain()
    assert not (tmp_path / "deleted").exists()
    scene.maintain()
    assert (tmp_path / "deleted").exists()


def test_a_missing_end_offset_is_an_error() -> None:
    """Without a leader the broker may return neither an error nor an offset. Nothing is opened or deleted then."""
    kept = stored(5)
    scene = Scene(kept, high=5)
    scene.assignment.give(0)
    scene.follow()
    scene.broker.answer = (OFFSET_INVALID, OFFSET_INVALID)

    with pytest.raises(KafkaException, match="no offset"):
        scene.reconnect()
    scene.assignment.give(1)
    with pytest.raises(KafkaException, match="no offset"):
        scene.follow()

    assert [0] == list(scene.store.tasks)
    assert scene.store.tasks[0].store is kept
    assert b"x" == kept.get(b"old")


def test_a_missing_end_offset_is_not_noted() -> None:
    """If the broker returns no offset, the end offset is unknown, as after an error."""
    broker = Broker(0, 5)
    ends = EndOffsets(cast(AdminClient, broker))
    broker.answer = (0, OFFSET_INVALID)
    assert [] == list(ends.poll([(TOPIC, 0)]))
    broker.answer = (0, 5)
    ends._next_time = 0.0

    assert [] == list(ends.poll([(TOPIC, 0)]))

    assert [((TOPIC, 0), 5)] == [(each.partition, each.offset) for each in ends.poll([(TOPIC, 0)])]


def test_an_admin_client_without_answers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost all brokers, while the consumer still reads. The reader then connects with a new client."""
    now = [1_000.0]
    monkeypatch.setattr("services.state_stores.changelog.boot_seconds", lambda: now[0])
    broker = Broker(0, OFFSET_INVALID)
    ends = EndOffsets(cast(AdminClient, broker))
    for _ in range(int(LOST_SECONDS)):
        assert [] == list(ends.poll([(TOPIC, 0)]))
        now[0] += 1
    broker.answer = (0, 5)
    assert [] == list(ends.poll([(TOPIC, 0)]))
    assert [5] == [each.offset for each in ends.poll([(TOPIC, 0)])]

    broker.answer = (0, OFFSET_INVALID)
    now[0] += 2 * LOST_SECONDS  # a process that stood still has asked nothing
    assert [] == list(ends.poll([(TOPIC, 0)]))
    now[0] += LOST_SECONDS
    assert [] == list(ends.poll([(TOPIC, 0)]))
    now[0] += 1
    with pytest.raises(KafkaException, match="where the changelogs end"):
        list(ends.poll([(TOPIC, 0)]))


def test_a_promoted_standby_keeps_its_open_store() -> None:
    """Nothing is opened or read again. It is caught up when it has all records of the moment of its promotion."""
    scene = Scene(stored(5), high=5)
    scene.assignment.give(0, role=Role.STANDBY)
    scene.follow()
    task = scene.store.tasks[0]
    assert (task.progress.restored, task.progress.has_reached_active_target(0.0)) == (True, False)

    scene.broker.answer = (0, 7)
    scene.assignment.give(0, role=Role.ACTIVE)
    scene.follow()

    assert scene.store.tasks[0] is task
    assert (task.progress.restored, task.progress.has_reached_active_target(0.0)) == (True, False)
    task.advance(7)
    assert task.progress.has_reached_active_target(0.0)
    scene.assignment.give(0, role=Role.STANDBY)
    scene.follow()
    assert scene.store.tasks[0] is task
    assert not task.progress.has_reached_active_target(0.0)


@pytest.mark.parametrize(
    ("local", "low", "high", "why"),
    [
        (stored(5, "another topic"), 0, 9, "made of another topic"),
        # An older release skipped records whose schemas it did not know.
        (made_of("here", 5), 0, 9, "the changelog is here, schema ids up to"),
        (stored(10), 0, 9, "outside"),  # the topic has lost its last records
        (stored(5), 6, 9, "outside"),  # records in between were deleted, perhaps tombstones
        (stored(5, age=0.95 * RETENTION), 0, 9, "drops deletions"),
    ],
)
def test_data_that_cannot_be_continued_are_deleted(local: StorePartition, low: int, high: int, why: str) -> None:
    """The origin differs, the offset is unknown, or the data are too old. The store is rebuilt for that reason."""
    empty = MemoryStorePartition()
    scene = Scene(local, empty, low=low, high=high)
    scene.assignment.give(0)

    assert {0: low} == scene.follow()
    task = scene.store.tasks[0]
    assert task.store is empty
    assert task.progress.resumed_from is None
    assert why in str(task.progress.rebuilt_because)
    assert not scene.materialiser.restored


def test_data_younger_than_the_tombstones_are_continued() -> None:
    """A store that was complete within the tombstone retention resumes at its checkpoint."""
    scene = Scene(stored(5, age=0.8 * RETENTION), high=9)
    scene.assignment.give(0)

    assert {0: 5} == scene.follow()
    assert scene.store.tasks[0].progress.rebuilt_because is None


def test_a_reconnect_keeps_good_stores() -> None:
    """After an error the store continues at its position, stays restored, and gets the new end offset."""
    scene = Scene(stored(5), high=5)
    scene.assignment.give(0)
    scene.follow()
    scene.broker.answer = (0, 9)

    assert [5] == scene.reconnect()
    assert scene.store.tasks[0].progress.restored
    assert scene.store.tasks[0].progress.lag == 4


def test_a_changelog_that_was_created_again_is_read_from_the_start() -> None:
    """If the topic was deleted and created again, the data of the open store are deleted."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.follow()
    scene.changelog_is("there")
    scene.broker.answer = (0, 9)

    assert [0] == scene.reconnect()
    task = scene.store.tasks[0]
    assert not task.progress.restored
    assert task.store.count() == 0


def test_a_changelog_that_was_created_again_has_a_new_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer still has the end offset of the old log, and an answer about the old log arrives late."""
    scene = Scene(stored(1000), MemoryStorePartition(), high=1000)
    scene.assignment.give(0)
    scene.follow()
    scene.maintain()
    scene.broker.answer = (0, 9)
    scene.connect(monkeypatch, "there")
    reader, task = scene.materialiser._reader, scene.store.tasks[0]
    monkeypatch.setattr(reader, "read", lambda *_: Batch({}, {}))
    monkeypatch.setattr(reader, "end_offset", lambda *_: 1000)

    scene.maintain()
    assert 9 == task.progress.end_offset
    scene.materialiser._apply_batch()
    assert 9 == task.progress.end_offset

    monkeypatch.setattr(reader, "read", lambda *_: Batch({}, {(TOPIC, 0): 9}))
    monkeypatch.setattr(reader, "end_offset", lambda *_: 12)
    scene.materialiser._apply_batch()
    assert (9, 12) == (task.progress.position, task.progress.end_offset)


def test_a_read_that_waits_for_a_damaged_store_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The materialiser finds the damage and rebuilds the store. The caller can then ask another copy."""
    damaged = stored(5)
    scene = Scene(damaged, MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.follow()

    async def wait_for_the_store() -> None:
        scene.waiters.bind(asyncio.get_running_loop())
        waiting = asyncio.create_task(scene.waiters.wait(b"C1", lambda: scene.store.serving(0), lambda _: False, 60))
        await asyncio.sleep(0)  # the request starts to wait
        damaged.damage = "block checksum mismatch"
        scene.connect(monkeypatch, "here")
        with pytest.raises(NotServingError):
            await asyncio.wait_for(waiting, 10)

    asyncio.run(wait_for_the_store())


def test_a_damaged_store_is_rebuilt_and_the_others_read_on() -> None:
    """A read found damage: the copy is read from the start again, and the report says why. Its neighbour stays open."""
    damaged, kept, empty = stored(5), stored(5), MemoryStorePartition()
    scene = Scene(damaged, kept, empty, high=5)
    scene.assignment.give(0, 1)
    scene.follow()
    scene.broker.reads[1] = 5
    damaged.damage = "block checksum mismatch"

    scene.materialiser._rebuild_damaged()

    assert {0: 0, 1: 5} == scene.broker.reads
    task = scene.store.tasks[0]
    assert task.store is empty
    assert (False, False) == (task.serving, task.progress.has_reached_active_target(0.0))
    assert task.progress.rebuilt_because == "block checksum mismatch"
    assert scene.store.tasks[1].store is kept
    task.advance(5)
    assert (True, True) == (task.serving, task.progress.has_reached_active_target(0.0))


class NoEndOffsets:
    def poll(self, places: Collection[ChangelogPartition]) -> list[None]:
        return []

    def forget(self) -> None: ...


def test_a_store_that_was_suspended_for_too_long_is_rebuilt() -> None:
    """After a suspend of several days the store may miss deletions. It is rebuilt before it reads on."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.follow()
    scene.store.tasks[0].caught_up_time -= int(RETENTION.total_seconds() * 1000)

    with pytest.raises(StoreCorruptError):
        scene.maintain()

    assert [0] == scene.reconnect()
    assert "drops deletions" in str(scene.store.tasks[0].progress.rebuilt_because)


def test_the_store_of_a_quiet_topic_does_not_look_old() -> None:
    """A store at the end offset is complete at the time of the question. That time is saved."""
    scene = Scene(stored(5, age=0.8 * RETENTION), high=5)
    scene.assignment.give(0)
    scene.follow()
    task, now = scene.store.tasks[0], int(time.time() * 1000)

    task.note_end_offset(5, 1.0, now)
    scene.maintain()

    assert task.store.checkpoint == Checkpoint(DEFINITION.origin("here"), 5, now)


class OneBalance(Broker):
    """A consumer of one record. It returns the record again when it is read from its offset again."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.position = 0

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.position = min((each.offset for each in partitions), default=0)

    def poll(self, timeout: float) -> "OneBalance | None":
        if self.position > 0:
            return None
        self.position = 1
        return self

    def consume(self, number: int, timeout: float) -> list[object]:
        return []

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 0, *, cached: bool = False
    ) -> tuple[int, int]:
        return self.answer

    def close(self) -> None: ...

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def key(self) -> bytes:
        return b"C1"

    def value(self) -> bytes:
        record = {"CustomerCardNo": "C1", "TotalLoyaltyPoints": Decimal(5), "Sequence": 1, "UpdatedTime": 1}
        return encoder(LOYALTY_BALANCES, FolderSchemaIds())(record)

    def error(self) -> None:
        return None


def test_no_balance_is_lost_while_the_schema_registry_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread stays alive, and applies the balance when the registry answers."""
    failures: list[int] = []
    back = threading.Event()

    class Registry(FolderSchemaIds):
        def writer_schema(self, schema_id: int) -> str:
            if not back.is_set():
                failures.append(schema_id)
                raise SchemaRegistryUnavailableError("the registry does not answer")
            return super().writer_schema(schema_id)

    store = StateStore(catalogue.stores(Registry())[0])
    with running(store, monkeypatch, lambda *_: MemoryStorePartition()) as materialiser:
        wait_for("three failures", lambda: len(failures) > 2)
        assert materialiser.alive
        assert (0, 0) == (store.tasks[0].progress.undecodable, store.tasks[0].progress.position)
        back.set()
        wait_for("the record", lambda: store.tasks[0].progress.position == 1)
        assert store.read(0, {b"C1"})[b"C1"] is not None


def test_a_write_that_finds_damage_rebuilds_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread stays alive, deletes the damaged copy and reads the changelog again."""

    class Damaged(MemoryStorePartition):
        def apply(self, *_: object) -> None:
            self.damage = "Corruption: bad block"
            raise StoreCorruptError(self.damage)

    opened: list[StorePartition] = [Damaged(), MemoryStorePartition()]
    store = StateStore(catalogue.stores(FolderSchemaIds())[0])
    with running(store, monkeypatch, lambda *_: opened.pop(0)) as materialiser:
        wait_for("the record", lambda: 0 in store.tasks and store.tasks[0].progress.position == 1)
        assert materialiser.alive
        assert store.tasks[0].progress.rebuilt_because == "Corruption: bad block"
        assert {0: 1} == store.rebuilds


def test_a_materialiser_that_fails_leaves_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full. A standby elsewhere takes over, and /livez asks for a restart."""

    class Full(MemoryStorePartition):
        def apply(self, *_: object) -> None:
            raise StoreError("IO error: No space left on device")

    store = StateStore(DEFINITION)
    with running(store, monkeypatch, lambda *_: Full()) as materialiser:
        wait_for("its end", lambda: not materialiser.alive)
        assert cast(FixedAssignment, materialiser._assignment).left
        assert {} == store.tasks


@contextmanager
def running(store: StateStore, monkeypatch: pytest.MonkeyPatch, open_partition: Opener) -> Iterator[Materialiser]:
    """A materialiser that owns partition 0, whose changelog has one balance."""
    module = "services.state_stores.materialiser"
    monkeypatch.setattr(f"{module}.describe_changelogs", lambda *_: {TOPIC: Changelog("here", 3, RETENTION)})
    monkeypatch.setattr(f"{module}.EndOffsets", lambda _: NoEndOffsets())
    monkeypatch.setattr("services.messaging.clients.consumer", lambda *_, **__: OneBalance())
    monkeypatch.setattr(f"{module}.clients.admin", lambda *_: Broker(0, 1))
    assignment = FixedAssignment()
    assignment.give(0)
    materialiser = Materialiser(
        [store], Settings(), open_partition=open_partition, assignment=assignment, waiters=SequenceWaiters()
    )
    materialiser.start()
    try:
        with stamina.set_testing(True, attempts=1_000_000):
            yield materialiser
    finally:
        materialiser.stop()
