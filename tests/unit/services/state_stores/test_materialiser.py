"""Which partitions are opened, closed and counted, and what happens to local data; the broker's part is elsewhere."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest
import stamina
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import encoder
from services.messaging.schema_ids import FolderSchemaIds, SchemaRegistryUnavailableError
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.changelog import Changelog, EndOffsets
from services.state_stores.contract import Checkpoint, StoreCorruptError, StorePartition
from services.state_stores.materialiser import Materialiser
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import Opener, StateStore
from services.state_stores.waiters import SequenceWaiters

TOPIC = "loyalty-balances"
RETENTION = timedelta(hours=1)


class Broker:
    """What opening partitions asks of an admin and of a consumer; notes what is read."""

    def __init__(self, low: int, high: int) -> None:
        self.answer = (low, high)
        self.reads: dict[int, int] = {}

    def list_offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        found: dict[TopicPartition, Future[Any]] = {partition: Future() for partition in asked}
        for partition, spec in asked.items():
            is_latest = isinstance(spec, type(OffsetSpec.latest()))  # type: ignore[no-untyped-call]
            found[partition].set_result(SimpleNamespace(offset=self.answer[is_latest]))
        return found

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.reads |= {each.partition: each.offset for each in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            del self.reads[each.partition]


class ByHand:
    """An assignment that is as the test says."""

    def __init__(self) -> None:
        self.roles: dict[ChangelogPartition, Role] = {}
        self.settled = True
        self.alive = True

    def attach(self, topics: Mapping[str, int]) -> None: ...

    def leave(self) -> None: ...

    def holdings(self, held: Collection[ChangelogPartition]) -> Mapping[ChangelogPartition, Role]:
        return dict(self.roles)

    def give(self, *partitions: int, role: Role = Role.ACTIVE) -> None:
        self.roles |= {(TOPIC, number): role for number in partitions}


def stored(offset: int, origin: str = "here", age: timedelta = timedelta(0)) -> StorePartition:
    partition = MemoryStorePartition()
    caught_up_time = int((time.time() - age.total_seconds()) * 1000)
    partition.apply({b"old": b"x"}, Checkpoint(origin, offset, caught_up_time))
    return partition


class Scene:
    """A materialiser whose openings give these stores in turn, and note if all was ready; its origin is ``here``."""

    def __init__(self, *opened: StorePartition, low: int = 0, high: int = 0) -> None:
        self._left = list(opened)
        self.ready: list[bool] = []
        self.store = StateStore(catalogue.stores(FolderSchemaIds())[0])
        self.assignment = ByHand()
        self.broker = Broker(low, high)
        self.materialiser = Materialiser(
            [self.store],
            Settings(),
            open_partition=self._open,
            assignment=self.assignment,
            waiters=SequenceWaiters(),
        )
        self.changelog_is("here")

    def _open(self, *_: object) -> StorePartition:
        self.ready.append(self.materialiser.restored)
        return self._left.pop(0)

    def changelog_is(self, origin: str) -> None:
        self.materialiser._changelogs[TOPIC] = Changelog(origin, 3, RETENTION)

    def reconcile(self) -> dict[int, int]:
        self.materialiser._reader.consumer = cast(Consumer, self.broker)
        self.materialiser._follow_assignment(cast(AdminClient, self.broker))
        return self.broker.reads

    def take_again(self) -> list[int]:
        starts = self.materialiser._open_partitions(cast(AdminClient, self.broker), self.materialiser._roles)
        return [start.offset for start in starts]


def test_is_not_ready_before_the_last_partition_is_open() -> None:
    """With empty changelogs each partition is restored when it is opened; all three must be."""
    scene = Scene(*[MemoryStorePartition() for _ in range(3)])
    scene.assignment.give(0, 1, 2)
    assert not scene.materialiser.restored

    assert {0: 0, 1: 0, 2: 0} == scene.reconcile()
    assert [False, False, False] == scene.ready
    assert scene.materialiser.restored


def test_with_nothing_to_hold_it_is_ready_once_that_is_known() -> None:
    """More instances than partitions: nothing is held, and ready; but not before the group has settled."""
    scene = Scene()
    scene.assignment.settled = False
    assert {} == scene.reconcile()
    assert not scene.materialiser.restored

    scene.assignment.settled = True
    scene.reconcile()

    assert scene.materialiser.restored


def test_what_is_taken_over_later_makes_nobody_unready() -> None:
    """Ready means that the first share was restored; the partition of a dead neighbour is restored beside it."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.reconcile()
    assert scene.materialiser.restored

    scene.assignment.give(1)
    scene.reconcile()

    assert not scene.store.tasks[1].progress.restored
    assert scene.materialiser.restored


def test_a_partition_given_up_is_closed_and_read_no_more() -> None:
    """What moved away is closed; the rest goes on as it is."""
    kept, gone = stored(5), stored(4)
    scene = Scene(kept, gone, high=5)
    scene.assignment.give(0, 1)
    assert {0: 5, 1: 4} == scene.reconcile()

    del scene.assignment.roles[TOPIC, 1]

    assert {0: 5} == scene.reconcile()
    assert [0] == list(scene.store.tasks)
    assert scene.store.tasks[0].store is kept


def test_no_offset_is_not_the_end_of_an_empty_changelog() -> None:
    """While a partition has no leader the broker may give neither an error nor an offset: nothing is opened or lost."""
    kept = stored(5)
    scene = Scene(kept, high=5)
    scene.assignment.give(0)
    scene.reconcile()
    scene.broker.answer = (OFFSET_INVALID, OFFSET_INVALID)

    with pytest.raises(KafkaException, match="no offset"):
        scene.take_again()
    scene.assignment.give(1)
    with pytest.raises(KafkaException, match="no offset"):
        scene.reconcile()

    assert [0] == list(scene.store.tasks)
    assert scene.store.tasks[0].store is kept
    assert b"x" == kept.get(b"old")


def test_no_offset_says_nothing_about_how_far_a_store_is() -> None:
    """Where the broker gives no offset, the end is as unknown as after an error."""
    broker = Broker(0, 5)
    ends = EndOffsets(cast(AdminClient, broker))
    broker.answer = (0, OFFSET_INVALID)
    assert [] == list(ends.poll([(TOPIC, 0)]))
    broker.answer = (0, 5)
    ends._next_time = 0.0

    assert [] == list(ends.poll([(TOPIC, 0)]))

    assert [((TOPIC, 0), 5)] == [(each.partition, each.offset) for each in ends.poll([(TOPIC, 0)])]


def test_a_standby_that_becomes_the_owner_keeps_its_open_store() -> None:
    """Nothing is opened or read again; it leads once it has what the changelog had at that moment."""
    scene = Scene(stored(5), high=5)
    scene.assignment.give(0, role=Role.STANDBY)
    scene.reconcile()
    task = scene.store.tasks[0]
    assert (task.progress.restored, task.progress.caught_up) == (True, False)

    scene.broker.answer = (0, 7)
    scene.assignment.give(0, role=Role.ACTIVE)
    scene.reconcile()

    assert scene.store.tasks[0] is task
    assert (task.progress.restored, task.progress.caught_up) == (True, False)
    task.advance(7)
    assert task.progress.caught_up
    scene.assignment.give(0, role=Role.STANDBY)
    scene.reconcile()
    assert scene.store.tasks[0] is task
    assert not task.progress.caught_up


@pytest.mark.parametrize(
    ("local", "low", "high", "why"),
    [
        (stored(5, "another topic"), 0, 9, "made of another topic"),
        (stored(10), 0, 9, "outside"),  # the topic lost its end
        (stored(5), 6, 9, "outside"),  # records between were deleted, tombstones perhaps
        (stored(5, age=0.95 * RETENTION), 0, 9, "drops deletions"),
    ],
)
def test_data_that_cannot_be_continued_are_thrown_away(local: StorePartition, low: int, high: int, why: str) -> None:
    """Another origin, an offset that the broker does not have, too old: from the start, and /readyz can say why."""
    empty = MemoryStorePartition()
    scene = Scene(local, empty, low=low, high=high)
    scene.assignment.give(0)

    assert {0: low} == scene.reconcile()
    task = scene.store.tasks[0]
    assert task.store is empty
    assert task.progress.resumed_from is None
    assert why in str(task.progress.rebuilt_because)
    assert not scene.materialiser.restored


def test_data_younger_than_the_tombstones_are_continued() -> None:
    """A store that was complete within the changelog's memory of deletions resumes at its checkpoint."""
    scene = Scene(stored(5, age=0.8 * RETENTION), high=9)
    scene.assignment.give(0)

    assert {0: 5} == scene.reconcile()
    assert scene.store.tasks[0].progress.rebuilt_because is None


def test_taking_again_keeps_what_is_good() -> None:
    """After an interruption the store goes on where it is, restored as before, and learns the new end."""
    scene = Scene(stored(5), high=5)
    scene.assignment.give(0)
    scene.reconcile()
    scene.broker.answer = (0, 9)

    assert [5] == scene.take_again()
    assert scene.store.tasks[0].progress.restored
    assert scene.store.tasks[0].progress.lag == 4


def test_a_changelog_replaced_while_running_is_read_anew() -> None:
    """If the interruption was the topic's deletion, the open store is thrown away and no longer restored."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.reconcile()
    scene.changelog_is("there")
    scene.broker.answer = (0, 9)

    assert [0] == scene.take_again()
    task = scene.store.tasks[0]
    assert not task.progress.restored
    assert task.store.count() == 0


def test_a_damaged_store_is_rebuilt_and_the_others_read_on() -> None:
    """A read found damage: the copy is read from the start again, and the report says why. Its neighbour stays open."""
    damaged, kept, empty = stored(5), stored(5), MemoryStorePartition()
    scene = Scene(damaged, kept, empty, high=5)
    scene.assignment.give(0, 1)
    scene.reconcile()
    scene.broker.reads[1] = 5
    damaged.damage = "block checksum mismatch"

    scene.materialiser._rebuild_damaged(cast(AdminClient, scene.broker))

    assert {0: 0, 1: 5} == scene.broker.reads
    task = scene.store.tasks[0]
    assert task.store is empty
    assert (False, False) == (task.serving, task.progress.caught_up)
    assert task.progress.rebuilt_because == "block checksum mismatch"
    assert scene.store.tasks[1].store is kept
    task.advance(5)
    assert (True, True) == (task.serving, task.progress.caught_up)


class NoEnds:
    def poll(self, places: Collection[ChangelogPartition]) -> list[None]:
        return []


def test_a_store_that_has_slept_past_the_tombstones_is_rebuilt_while_running() -> None:
    """A process that was suspended for days: before it reads on, the store is found too old, and built anew."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.reconcile()
    scene.store.tasks[0].caught_up_time -= int(RETENTION.total_seconds() * 1000)

    with pytest.raises(StoreCorruptError):
        scene.materialiser._maintain(cast(EndOffsets, NoEnds()))

    assert [0] == scene.take_again()
    assert "drops deletions" in str(scene.store.tasks[0].progress.rebuilt_because)


def test_an_idle_store_does_not_grow_old() -> None:
    """Being at the end when the broker was asked counts as complete at that time, and is written down."""
    scene = Scene(stored(5, age=0.8 * RETENTION), high=5)
    scene.assignment.give(0)
    scene.reconcile()
    task, now = scene.store.tasks[0], int(time.time() * 1000)

    task.note_end(5, 1.0, now)
    scene.materialiser._maintain(cast(EndOffsets, NoEnds()))

    assert task.store.checkpoint == Checkpoint("here", 5, now)


class OneBalance(Broker):
    """A consumer of one record, which comes again to whoever reads from its offset again."""

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


def test_a_schema_registry_that_is_away_costs_time_and_no_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread says what it waits for, lives, and has the balance once the registry answers."""
    failures: list[int] = []
    back = threading.Event()

    class Registry(FolderSchemaIds):
        def writer_schema(self, schema_id: int) -> str:
            if not back.is_set():
                failures.append(schema_id)
                raise SchemaRegistryUnavailableError("the registry is away")
            return super().writer_schema(schema_id)

    store = StateStore(catalogue.stores(Registry())[0])
    with running(store, monkeypatch, lambda *_: MemoryStorePartition()) as materialiser:
        until(lambda: len(failures) > 2)
        assert materialiser.alive
        assert (0, 0) == (store.tasks[0].progress.undecodable, store.tasks[0].progress.position)
        back.set()
        until(lambda: store.tasks[0].progress.position == 1)
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
        until(lambda: 0 in store.tasks and store.tasks[0].progress.position == 1)
        assert materialiser.alive
        assert store.tasks[0].progress.rebuilt_because == "Corruption: bad block"
        assert {0: 1} == store.rebuilds


@contextmanager
def running(store: StateStore, monkeypatch: pytest.MonkeyPatch, open_partition: Opener) -> Iterator[Materialiser]:
    """A materialiser that owns partition 0, whose changelog has one balance."""
    module = "services.state_stores.materialiser"
    monkeypatch.setattr(f"{module}.describe_changelogs", lambda *_: {TOPIC: Changelog("here", 3, RETENTION)})
    monkeypatch.setattr(f"{module}.EndOffsets", lambda _: NoEnds())
    monkeypatch.setattr("services.messaging.clients.consumer", lambda *_, **__: OneBalance())
    monkeypatch.setattr(f"{module}.clients.admin", lambda *_: Broker(0, 1))
    assignment = ByHand()
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


def until(happens: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
