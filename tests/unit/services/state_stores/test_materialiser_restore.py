"""When the materialiser continues with the data of a store, and when it restores them from the changelog."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError, KafkaException

from services.clock import now
from services.errors import UserError
from services.messaging.log_reader import Batch
from services.state_stores.contract import Checkpoint, StoreCorruptError, StoreFullError, StorePartition
from services.state_stores.definition import VersionedValue
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import NotServingError, StateStore
from tests.unit.services.state_stores.materialisers import DEFINITION, RETENTION, TOPIC, Scene, made_of, stored

pytestmark = pytest.mark.anyio

DAY = 86_400_000


@pytest.mark.parametrize(
    ("local", "low", "high", "why"),
    [
        (stored(5, "another topic"), 0, 9, "come from another topic"),
        # An older release skipped records whose schemas it did not know.
        (made_of("here", 5), 0, 9, "the changelog is here, schema ids up to"),
        (stored(10), 0, 9, "outside"),  # the topic has lost its last records
        (stored(5), 6, 9, "outside"),  # records in between were deleted, perhaps tombstones
        (stored(5, age=0.95 * RETENTION), 0, 9, "drops deletions"),
        # Its clock was wrong, so live values can have expired.
        (stored(5, age=-9 * RETENTION), 0, 9, "in the future"),
    ],
)
def test_data_that_cannot_be_continued_are_deleted(local: StorePartition, low: int, high: int, why: str) -> None:
    """The origin differs, the offset is unknown, or the data are too old. The store is rebuilt for that reason."""
    empty = MemoryStorePartition()
    scene = Scene(local, empty, low=low, high=high)

    assert {0: low} == scene.take(0)
    task = scene.store.tasks[0]
    assert task.store is empty
    assert task.progress.resumed_from is None
    assert why in str(task.progress.rebuilt_because)
    assert not scene.materialiser.restored


def test_data_younger_than_the_tombstones_are_continued() -> None:
    """A store that was complete within the tombstone retention resumes at its checkpoint. Clocks may differ by less
    than the retention. A restart does not make the store look younger.
    """
    for age in (0.8, -0.8):
        local = stored(5, age=age * RETENTION)
        scene = Scene(local, high=9)

        assert {0: 5} == scene.take(0)
        task = scene.store.tasks[0]
        assert task.progress.rebuilt_because is None
        assert local.checkpoint == Checkpoint(task.origin, 5, task.caught_up_time)


def test_a_reconnect_keeps_good_stores() -> None:
    """After an error the store continues at its position, stays restored, and gets the new end offset."""
    scene = Scene(stored(5), high=5)
    scene.take(0)
    scene.broker.answer = (0, 9)

    assert [5] == scene.reconnect()
    assert scene.store.tasks[0].progress.restored
    assert scene.store.tasks[0].progress.lag == 4


def test_a_changelog_that_was_created_again_is_read_from_the_start() -> None:
    """If the topic was deleted and created again, the data of the open store are deleted."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.take(0)
    scene.changelog_is("there")
    scene.broker.answer = (0, 9)

    assert [0] == scene.reconnect()
    task = scene.store.tasks[0]
    assert not task.progress.restored
    assert task.store.count() == 0


def test_a_rebuild_on_a_full_disk_is_repeated() -> None:
    """The old data are gone, and the new store cannot be opened yet."""
    scene = Scene(stored(5), high=5)
    scene.take(0)
    scene.changelog_is("there")

    def full(*_: object) -> StorePartition:
        raise StoreFullError("the disk is full")

    scene.materialiser._open_partition = full
    with pytest.raises(StoreFullError):
        scene.reconnect()
    scene.materialiser._open_partition = lambda *_: MemoryStorePartition()
    assert [0] == scene.reconnect()


def test_a_changelog_that_was_created_again_is_found_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new log is already longer than the old one was, so the consumer continues in it and gets no error."""
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.take(0)
    scene.connect(monkeypatch, "here")
    scene.materialiser._next_description_time = 0.0
    scene.maintain()
    scene.describes(monkeypatch, "there")
    scene.maintain()  # a minute has not passed

    scene.materialiser._next_description_time = 0.0
    with pytest.raises(StoreCorruptError, match=f"topic {TOPIC} was created again"):
        scene.maintain()
    scene.connect(monkeypatch, "there")
    assert {0: 0} == scene.broker.reads


def test_added_partitions_end_the_use_of_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest balance of a customer can be in a partition that this instance does not expect there."""
    scene = Scene(stored(5), high=5)
    scene.take(0)
    scene.connect(monkeypatch, "here")
    scene.describes(monkeypatch, "here", partitions=4)
    scene.materialiser._next_description_time = 0.0
    with pytest.raises(UserError, match=f"topic {TOPIC} has 4 partitions"):
        scene.maintain()


@pytest.mark.parametrize(("days", "keys"), [(33, [b"C1"]), (20, []), (-1, [b"C1"])])
def test_a_value_stays_as_long_as_the_topic_keeps_records_now(
    monkeypatch: pytest.MonkeyPatch, days: int, keys: list[bytes]
) -> None:
    """The retention of the catalogue does not matter: an operator can set another one while the instance runs."""
    scene = Scene(MemoryStorePartition())
    scene.take(0)
    task = scene.store.tasks[0]
    value = VersionedValue(1, 0, now() - 21 * DAY, b"{}")
    task.store.apply({b"C1": value.pack()}, Checkpoint(task.origin, 1, task.caught_up_time))
    scene.describes(monkeypatch, "here", days * DAY)
    scene.materialiser._next_description_time = 0.0
    scene.maintain()
    task._next_expiry = 0.0

    scene.maintain()

    assert keys == [key for key, _ in task.store.scan(b"", None, 9)]


def test_an_instance_continues_while_no_broker_describes_a_changelog(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(stored(5), high=5)
    scene.take(0)

    def no_answer(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr("services.state_stores.materialiser.describe_changelogs", no_answer)
    scene.materialiser._next_description_time = 0.0
    scene.maintain()
    assert scene.store.tasks[0].serving


def test_a_changelog_that_was_created_again_has_a_new_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer still has the end offset of the old log, and an answer about the old log arrives late."""
    scene = Scene(stored(1000), MemoryStorePartition(), high=1000)
    scene.take(0)
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


@pytest.mark.parametrize(("passed", "why"), [(RETENTION, "drops deletions"), (-RETENTION, "in the future")])
def test_a_store_is_rebuilt_after_a_long_suspend_or_a_wrong_clock(passed: timedelta, why: str) -> None:
    """After a suspend of several days the store may miss deletions. It is rebuilt before it continues. A clock that
    goes back by days was ahead, so live values may have been deleted.
    """
    scene = Scene(stored(5), MemoryStorePartition(), high=5)
    scene.take(0)
    scene.store.tasks[0].caught_up_time -= int(passed.total_seconds() * 1000)

    with pytest.raises(StoreCorruptError, match=why):
        scene.maintain()

    assert [0] == scene.reconnect()
    assert why in str(scene.store.tasks[0].progress.rebuilt_because)


def test_the_store_of_a_quiet_topic_does_not_look_old() -> None:
    """A store at the end offset is complete at the time of the question. The store saves that time."""
    scene = Scene(stored(5, age=0.8 * RETENTION), high=5)
    scene.take(0)
    task, now = scene.store.tasks[0], int(time.time() * 1000)

    task.note_end_offset(5, 1.0, now)
    scene.maintain()

    assert task.store.checkpoint == Checkpoint(DEFINITION.origin("here"), 5, now)


def test_a_store_that_is_closed_saves_when_it_was_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition may come back after a while, and must not look old."""
    local = stored(5, age=0.8 * RETENTION)
    scene = Scene(local, high=5)
    scene.take(0)
    monkeypatch.setattr(local, "close", lambda: None)  # a closed store in memory is empty
    scene.store.tasks[0].note_end_offset(5, 1.0, complete := now())
    scene.assignment.roles.clear()
    scene.follow()

    assert local.checkpoint == Checkpoint(DEFINITION.origin("here"), 5, complete)


def test_a_damaged_store_is_rebuilt_and_the_others_continue() -> None:
    """A read found damage. The copy is read from the start again, and the report says why. The store beside it stays
    open.
    """
    damaged, kept, empty = stored(5), stored(5), MemoryStorePartition()
    scene = Scene(damaged, kept, empty, high=5)
    scene.take(0, 1)
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


def test_a_rebuilt_store_ignores_an_end_offset_that_was_asked_before() -> None:
    """The topic may have been created again, so the old answer can be too high for ever."""
    damaged = stored(1000)
    scene = Scene(damaged, MemoryStorePartition(), high=1000)
    scene.take(0)
    scene.maintain()  # asks for the end offset
    scene.broker.answer, damaged.damage = (0, 9), "block checksum mismatch"
    scene.materialiser._rebuild_damaged()

    scene.maintain()

    assert 9 == scene.store.tasks[0].progress.end_offset


def test_a_changelog_is_read_from_the_lowest_position_of_its_stores() -> None:
    """The process may end after the write to one store. The other store must not lose the records."""
    scene = Scene(stored(5), stored(3), high=9)
    scene.materialiser._stores[TOPIC].append(StateStore(replace(DEFINITION, name="second")))

    assert {0: 3} == scene.take(0)


@pytest.mark.parametrize("step", ["connect", "rebuild", "close"])
async def test_a_read_that_waits_for_a_store_is_woken_when_the_store_stops_serving(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The materialiser rebuilds a damaged store, or closes the partition. The caller can then ask another copy."""
    monkeypatch.setattr("services.state_stores.waiters._PAUSE_SECONDS", 60)
    local = stored(5)
    scene = Scene(local, MemoryStorePartition(), high=5)
    scene.take(0)
    scene.waiters.bind(asyncio.get_running_loop())
    waiting = asyncio.create_task(scene.waiters.wait(b"C1", lambda: scene.store.serving(0), lambda _: False, 60))
    await asyncio.sleep(0)  # the request starts to wait
    local.damage = None if step == "close" else "block checksum mismatch"
    if step == "connect":
        scene.connect(monkeypatch, "here")
    elif step == "rebuild":
        scene.materialiser._rebuild_damaged()
    else:
        scene.assignment.roles.clear()
        scene.follow()
    with pytest.raises(NotServingError):
        await asyncio.wait_for(waiting, 10)
