"""The thread of the materialiser: the errors after which it tries again, and the one that ends it."""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest
import stamina
from confluent_kafka import TopicPartition

from schemas.topics import LOYALTY_BALANCES
from services.clock import now
from services.messaging.avro import encoder
from services.messaging.schema_ids import FolderSchemaIds, SchemaRegistryUnavailableError
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.changelog import Changelog
from services.state_stores.contract import (
    Checkpoint,
    StoreCorruptError,
    StoredValues,
    StoreError,
    StoreFullError,
    StorePartition,
)
from services.state_stores.materialiser import Materialiser
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import Opener, StateStore
from services.state_stores.waiters import SequenceWaiters
from tests.support.waiting import wait_for
from tests.unit.services.state_stores.materialisers import DEFINITION, RETENTION, TOPIC, Broker, FixedAssignment, Scene


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


class NoEndOffsets:
    def poll(self, places: Collection[ChangelogPartition]) -> list[None]:
        return []

    def forget(self) -> None: ...


@contextmanager
def running(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, open_partition: Opener, **constants: float
) -> Iterator[Materialiser]:
    """A materialiser that owns partition 0, whose changelog has one balance."""
    module = "services.state_stores.materialiser"
    for name, value in constants.items():
        monkeypatch.setattr(f"{module}.{name}", value)
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
    store = StateStore(DEFINITION)
    with running(store, monkeypatch, lambda *_: opened.pop(0)) as materialiser:
        wait_for("the record", lambda: 0 in store.tasks and store.tasks[0].progress.position == 1)
        assert materialiser.alive
        assert store.tasks[0].progress.rebuilt_because == "Corruption: bad block"


def test_a_materialiser_that_fails_leaves_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is read-only. A standby elsewhere takes over. /livez, /readyz and the status ask for a restart."""

    class ReadOnly(MemoryStorePartition):
        def apply(self, *_: object) -> None:
            raise StoreError("IO error: Read-only file system")

    store = StateStore(DEFINITION)
    with running(store, monkeypatch, lambda *_: ReadOnly()) as materialiser:
        wait_for("its end", lambda: not materialiser.alive)
        assert "restart this instance" in str(materialiser.kafka_error)
        assert _assignment_of(materialiser).left
        assert {} == store.tasks


class SmallDisk(MemoryStorePartition):
    """A store whose disk can be full. It counts the writes that fail."""

    is_full = True
    failures = 0

    def apply(self, writes: StoredValues, checkpoint: Checkpoint, known: StoredValues | None = None) -> None:
        if self.is_full:
            self.failures += 1
            raise StoreFullError("the disk is full")
        super().apply(writes, checkpoint, known)


def test_a_full_disk_serves_reads_and_continues_after_space_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other instance can take over, because it has the same disk. The report gives the reason."""
    partition, store = SmallDisk(), StateStore(DEFINITION)
    partition.is_full = False
    partition.apply({b"C0": b"x"}, Checkpoint(DEFINITION.origin("here"), 0, now()))
    partition.is_full = True
    with running(store, monkeypatch, lambda *_: partition, _FULL_SECONDS=0.0) as materialiser:
        wait_for("three failures", lambda: partition.failures > 2)
        assert (materialiser.alive, store.tasks[0].store.get(b"C0")) == (True, b"x")
        assert store.tasks[0].progress.active_target is None  # so reads are marked as stale
        assert "the disk is full" in str(materialiser.kafka_error)
        partition.is_full = False
        wait_for("the record", lambda: store.tasks[0].progress.position == 1)
        wait_for("the end of the error", lambda: materialiser.kafka_error is None)
        assert (store.tasks[0].progress.active_target, _assignment_of(materialiser).left) == (1, False)
        assert materialiser._full_since is None  # the next full disk has its own six seconds


def test_a_copy_on_a_full_disk_is_active_only_after_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconnect tries to write. Otherwise the copy would look complete until the next record comes."""
    scene = Scene(SmallDisk(), high=5)
    scene.take(0, role=Role.STANDBY)
    scene.materialiser._roles[TOPIC, 0] = Role.ACTIVE
    scene.materialiser._full_since = 0.0
    with pytest.raises(StoreFullError):
        scene.connect(monkeypatch, "here")
    assert scene.store.tasks[0].progress.active_target is None


def test_a_damaged_copy_on_a_full_disk_is_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconnect does not write to it. Such a write would fail again and again, and the copy would stay damaged."""
    damaged, empty = SmallDisk(), MemoryStorePartition()
    scene = Scene(damaged, empty)
    scene.take(0)
    damaged.damage = "block checksum mismatch"
    scene.materialiser._full_since = 0.0
    scene.connect(monkeypatch, "here")
    assert scene.store.tasks[0].store is empty


def test_another_instance_takes_over_from_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other instance can write, so commands and new balances do not wait for this disk."""
    store = StateStore(DEFINITION)
    with running(store, monkeypatch, lambda *_: SmallDisk(), _FULL_SECONDS=0.05) as materialiser:
        _assignment_of(materialiser).can_hand_over = True
        wait_for("its end", lambda: not materialiser.alive)
        assert _assignment_of(materialiser).left


def test_another_instance_takes_over_a_partition_that_a_full_disk_cannot_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write has failed yet, because the partition is new."""

    def open_partition(*_: object) -> StorePartition:
        raise StoreFullError("the disk is full")

    with running(StateStore(DEFINITION), monkeypatch, open_partition, _FULL_SECONDS=0.05) as materialiser:
        _assignment_of(materialiser).can_hand_over = True
        wait_for("its end", lambda: not materialiser.alive)
        assert _assignment_of(materialiser).left


def test_an_instance_that_starts_on_a_full_disk_joins_the_group_after_space_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then, the other instances keep their partitions. A store that each instance has shows that it is full."""
    attempts: list[bool] = []
    is_free = threading.Event()

    def open_partition(*_: object) -> StorePartition:
        attempts.append(is_free.is_set())
        if not is_free.is_set():
            raise StoreFullError("the disk is full")
        return MemoryStorePartition()

    store = StateStore(replace(DEFINITION, is_global=True))
    with running(store, monkeypatch, open_partition, _FULL_SECONDS=0.0) as materialiser:
        wait_for("three attempts", lambda: len(attempts) > 2)
        assert (materialiser.alive, _assignment_of(materialiser).attached) == (True, False)
        assert "the disk is full" in str(materialiser.kafka_error)
        is_free.set()
        wait_for("the record", lambda: 0 in store.tasks and store.tasks[0].progress.position == 1)
        assert (_assignment_of(materialiser).attached, _assignment_of(materialiser).left) == (True, False)


def test_an_instance_that_could_help_for_a_moment_does_not_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared disk, one instance can write again before another one, and one that starts has no error yet."""
    partition = SmallDisk()
    with running(StateStore(DEFINITION), monkeypatch, lambda *_: partition, _FULL_SECONDS=3600.0) as materialiser:
        _assignment_of(materialiser).can_hand_over = True
        wait_for("a failure", lambda: materialiser._full_since)
        began = cast(float, materialiser._full_since)
        _assignment_of(materialiser).can_hand_over = False
        wait_for("a new start of the time", lambda: cast(float, materialiser._full_since) > began)
        assert (materialiser.alive, _assignment_of(materialiser).left) == (True, False)


def test_the_other_instances_have_time_to_find_the_same_disk_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then their reports say that they can take over."""
    partition = SmallDisk()
    with running(StateStore(DEFINITION), monkeypatch, lambda *_: partition, _FULL_SECONDS=3600.0) as materialiser:
        _assignment_of(materialiser).can_hand_over = True
        wait_for("three failures", lambda: partition.failures > 2)
        assert (materialiser.alive, _assignment_of(materialiser).left) == (True, False)


def _assignment_of(materialiser: Materialiser) -> FixedAssignment:
    return cast(FixedAssignment, materialiser._assignment)
