"""The materialiser opens and closes partitions as the group says, and knows when it is ready.

Tests with a broker are in tests/integration.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException

from services.clock import boot_seconds
from services.messaging.log_reader import Batch
from services.state_stores.assignment import Role
from services.state_stores.contract import StoreFullError, StorePartition
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.rocksdb import StateDirectory, rocksdb_options
from services.state_stores.store import StateStore
from services.state_stores.task import ChangelogRecord
from tests.unit.services.state_stores.materialisers import DEFINITION, TOPIC, Scene, stored


def test_an_instance_is_not_ready_before_its_last_partition_is_open() -> None:
    """With empty changelogs each partition is restored when it is opened. All three must be restored."""
    scene = Scene(*[MemoryStorePartition() for _ in range(3)])
    scene.assignment.give(0, 1, 2)
    assert not scene.materialiser.restored

    assert {0: 0, 1: 0, 2: 0} == scene.follow()
    assert [False, False, False] == scene.ready
    assert scene.materialiser.restored


def test_an_instance_without_partitions_is_ready_when_the_group_has_settled() -> None:
    """With more instances than partitions, an instance may hold none. It is ready as soon as it knows that."""
    scene = Scene()
    scene.assignment.settled = False
    assert {} == scene.follow()
    assert not scene.materialiser.restored

    scene.assignment.settled = True
    scene.follow()

    assert scene.materialiser.restored


def test_a_partition_that_is_taken_over_later_does_not_change_readiness() -> None:
    """The instance is ready when its first partitions are restored. It stays ready while it restores the partition of a
    dead peer.
    """
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.take(0)
    assert scene.materialiser.restored
    assert scene.materialiser.ready

    scene.take(1)

    assert not scene.store.tasks[1].progress.restored
    assert scene.materialiser.restored
    assert scene.materialiser.ready


def test_an_instance_is_not_ready_before_its_standbys_are_restored() -> None:
    """Otherwise a rolling restart could stop the last instance with the data of a partition."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.assignment.give(0)
    scene.take(1, role=Role.STANDBY)
    assert scene.materialiser.restored
    assert not scene.materialiser.ready

    scene.store.tasks[1].progress.restored = True

    assert scene.materialiser.ready


def test_a_promoted_standby_keeps_its_open_store() -> None:
    """Nothing is opened or read again. The partition is caught up when it has all records of the moment of its
    promotion. This moment is not later than the question for the end offset.
    """
    scene = Scene(stored(5), high=5)
    scene.take(0, role=Role.STANDBY)
    task = scene.store.tasks[0]
    assert 0 < task.progress.active_since <= scene.broker.asked_at
    assert (task.progress.restored, task.progress.has_reached_active_target(0.0)) == (True, False)

    scene.broker.answer = (0, 7)
    promoted_at = boot_seconds()
    scene.take(0, role=Role.ACTIVE)

    assert scene.store.tasks[0] is task
    assert promoted_at <= task.progress.active_since <= scene.broker.asked_at
    assert (task.progress.restored, task.progress.has_reached_active_target(0.0)) == (True, False)
    task.advance(7)
    assert task.progress.has_reached_active_target(promoted_at)
    scene.take(0, role=Role.STANDBY)
    assert scene.store.tasks[0] is task
    assert not task.progress.has_reached_active_target(0.0)


def test_a_partition_that_moves_away_is_closed() -> None:
    """The instance stops reading it. The other partitions stay as they are."""
    kept, gone = stored(5), stored(4)
    scene = Scene(kept, gone, high=5)
    assert {0: 5, 1: 4} == scene.take(0, 1)

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
    scene.take(0, 1, 2)
    del scene.assignment.roles[TOPIC, 0], scene.assignment.roles[TOPIC, 1]
    scene.follow()
    scene.take(1, role=Role.STANDBY)

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


def test_a_store_is_not_deleted_while_another_one_of_its_partition_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition comes back while the disk is full, and only the first of its stores can be opened. Old data are
    deleted at that time, because that may free the space. When the partition has gone again, both stores are deleted.
    """
    monkeypatch.setattr("services.state_stores.closed._CLEANUP_SECONDS", 0.0)
    directory, scene = StateDirectory(tmp_path), Scene()
    scene.materialiser._open_partition = open_partition = directory.open_rocksdb(rocksdb_options())
    second = StateStore(replace(DEFINITION, name="second"))
    scene.materialiser._stores[TOPIC].append(second)
    scene.take(0)
    scene.assignment.roles.clear()
    scene.follow()

    def without_space(name: str, partition: int) -> StorePartition:
        if name == second.definition.name:
            raise StoreFullError("the disk is full")
        return open_partition(name, partition)

    scene.materialiser._open_partition = without_space
    with pytest.raises(StoreFullError):
        scene.take(0)
    scene.materialiser._full_since = 0.0
    with pytest.raises(StoreFullError):
        scene.connect(monkeypatch, "here")

    assert {0} == directory.partitions_of(DEFINITION.name)
    scene.materialiser._close_partitions(list(scene.materialiser._roles))
    scene.materialiser._closed.delete_old([])
    assert set() == directory.partitions_of(DEFINITION.name) | directory.partitions_of("second")
    directory.release()


def test_data_that_cannot_be_deleted_are_deleted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk can be read-only for a while. The instance continues, and tries again."""
    monkeypatch.setattr("services.state_stores.closed._CLEANUP_SECONDS", 0.0)
    errors = [OSError("read-only file system")]

    class Stubborn(MemoryStorePartition):
        def destroy(self) -> None:
            if errors:
                raise errors.pop()
            (tmp_path / "deleted").touch()

    scene = Scene(Stubborn())
    scene.take(0)
    scene.assignment.roles.clear()
    scene.follow()

    scene.maintain()
    assert not (tmp_path / "deleted").exists()
    scene.maintain()
    assert (tmp_path / "deleted").exists()


@pytest.mark.anyio
async def test_a_record_wakes_the_requests_and_the_followers_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting request does not read again by itself, because the test makes the pause between reads long."""
    monkeypatch.setattr("services.state_stores.waiters._PAUSE_SECONDS", 60)
    scene = Scene(MemoryStorePartition())
    scene.take(0)
    scene.waiters.bind(asyncio.get_running_loop())
    record = ChangelogRecord(0, 7, b"C1", None)
    message = SimpleNamespace(
        offset=lambda: 0, timestamp=lambda: (1, 7), key=lambda: b"C1", value=lambda: None, headers=lambda: None
    )
    reader, progress = scene.materialiser._reader, scene.store.tasks[0].progress
    monkeypatch.setattr(reader, "read", lambda *_: Batch({(TOPIC, 0): [message]}, {}))
    monkeypatch.setattr(reader, "end_offset", lambda *_: 1)
    with scene.waiters.follow(DEFINITION.changelog.name, b"C1") as follower:
        waiting = asyncio.create_task(scene.waiters.wait(b"C1", lambda: progress.position, bool, 60))
        await asyncio.sleep(0)  # the request starts to wait
        scene.materialiser._apply_batch()
        assert 1 == await asyncio.wait_for(waiting, 20)
        assert [record] == follower.take()


def test_a_missing_end_offset_is_an_error() -> None:
    """Without a leader the broker may return neither an error nor an offset. Nothing is opened or deleted then."""
    kept = stored(5)
    scene = Scene(kept, high=5)
    scene.take(0)
    scene.broker.answer = (OFFSET_INVALID, OFFSET_INVALID)

    with pytest.raises(KafkaException, match="no offset"):
        scene.reconnect()
    with pytest.raises(KafkaException, match="no offset"):
        scene.take(1)

    assert [0] == list(scene.store.tasks)
    assert scene.store.tasks[0].store is kept
    assert b"x" == kept.get(b"old")
