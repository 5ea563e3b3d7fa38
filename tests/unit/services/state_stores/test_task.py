"""How a task applies changelog records to a store."""

import random
from typing import Any

import orjson
import pytest

from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import encoder
from services.messaging.schema_ids import FolderSchemaIds, SchemaRegistryUnavailableError
from services.state_stores import catalogue
from services.state_stores.contract import Checkpoint
from services.state_stores.definition import VersionedValue
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from tests.support.builders import IDS, available_points, plain_balance

DEFINITION = catalogue.stores(IDS)[0]
ENCODE = encoder(LOYALTY_BALANCES, IDS)


def value(card: str, sequence: int, points: str = "1.00", updated: int = 1_700_000_000_123, opened: int = 0) -> bytes:
    return ENCODE(
        {
            "CustomerCardNo": card,
            **available_points(points),
            "Sequence": sequence,
            "UpdatedTime": updated,
            "OpenedTime": opened,
        }
    )


def record(offset: int, card: str, content: bytes | None) -> ChangelogRecord:
    return ChangelogRecord(offset, 1_700_000_000_999, card.encode(), content)


def new_task(target: int = 0, freshness: list[float] | None = None) -> StoreTask:
    observed = [] if freshness is None else freshness
    progress = TaskProgress(None, 0, 0, target, target)
    return StoreTask(DEFINITION, 0, MemoryStorePartition(), "here", progress, observed.append)


@pytest.fixture
def task() -> StoreTask:
    return new_task()


def value_of(task: StoreTask, card: str) -> VersionedValue:
    stored = task.store.get(card.encode())
    assert stored is not None
    return VersionedValue.unpack(stored)


def test_a_value_has_a_body_that_is_ready_to_send(task: StoreTask) -> None:
    """A value has sequence number, offset and append time of the record, and its balance as JSON with exact points."""
    assert list(task.apply([record(5, "CARD1", value("CARD1", 3, "90071992547409.93"))])) == [b"CARD1"]

    kept = value_of(task, "CARD1")

    assert (kept.sequence, kept.offset, kept.append_time) == (3, 5, 1_700_000_000_999)
    assert orjson.loads(kept.body) == plain_balance("CARD1", "90071992547409.93", 3, "2023-11-14T22:13:20.123000Z")


def test_a_value_that_is_not_newer_is_ignored(task: StoreTask) -> None:
    """Duplicates and lower sequence numbers change nothing, in the same batch and in a later one."""
    task.apply([record(0, "A", value("A", 5, "5.00")), record(1, "A", value("A", 4)), record(2, "A", value("A", 5))])
    task.apply([record(3, "A", value("A", 1)), record(4, "A", value("A", 5))])

    kept = value_of(task, "A")

    assert (kept.sequence, kept.offset, task.progress.ignored) == (5, 0, 4)


def test_a_null_value_deletes_the_key(task: StoreTask) -> None:
    """A later record is stored whatever its sequence number is."""
    task.apply([record(0, "A", value("A", 5)), record(1, "A", None)])
    assert task.store.get(b"A") is None
    task.apply([record(2, "A", value("A", 1))])

    kept = value_of(task, "A")

    assert kept.sequence == 1


def test_an_account_that_was_opened_later_is_newer(task: StoreTask) -> None:
    """A new account counts from 1. It replaces the balance of the erased account, which never comes back."""
    task.apply([record(0, "A", value("A", 57, opened=1_000)), record(1, "A", value("A", 1, opened=2_000))])
    task.apply([record(2, "A", value("A", 58, opened=1_000)), record(3, "A", value("A", 59))])

    kept = value_of(task, "A")

    assert ((2_000, 1), 1, 2) == (kept.version, kept.offset, task.progress.ignored)
    task.apply([record(4, "A", value("A", 2, opened=2_000))])
    kept = value_of(task, "A")
    assert (2_000, 2) == kept.version


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"garbage",
        b"\x00\x00\x00\x00\x63rest",  # an id that is not registered
        value("A", 9)[:-3],
        value("B", 9),  # the value of another customer
        value("A", 9, updated=2**62),  # a time after the year 9999
    ],
)
def test_a_value_that_cannot_be_decoded_is_skipped(task: StoreTask, bad: bytes) -> None:
    """The value is counted, the stored balance stays, and the next records are applied."""
    task.apply([record(0, "A", value("A", 1)), record(1, "A", bad), record(2, "C", value("C", 1))])

    kept = value_of(task, "A")

    assert (kept.sequence, task.progress.undecodable, task.progress.position) == (1, 1, 3)
    assert value_of(task, "C")


def test_a_record_without_a_key_is_skipped(task: StoreTask) -> None:
    """The record is counted as undecodable."""
    task.apply([ChangelogRecord(0, 0, None, value("A", 1))])

    assert (task.progress.undecodable, task.store.count()) == (1, 0)


def test_the_checkpoint_is_written_with_the_data(task: StoreTask) -> None:
    """Its offset is one above the last record, even if the batch changed nothing. Lower offsets are skipped."""
    task.apply([record(0, "A", value("A", 1)), record(7, "A", b"garbage")])
    checkpoint = task.store.checkpoint
    assert isinstance(checkpoint, Checkpoint)
    assert ("here", 8) == (checkpoint.origin, checkpoint.offset)

    assert task.apply([record(7, "A", value("A", 9))]) == ()
    assert task.progress.position == 8


def test_a_record_that_was_applied_before_is_not_applied_again(task: StoreTask) -> None:
    """A store can be ahead of another store of its changelog. An old deletion must not delete the value after it."""
    log = [record(0, "A", value("A", 1)), record(1, "A", None), record(2, "A", value("A", 1))]
    task.apply(log)
    task.apply([log[1], record(3, "B", value("B", 1))])

    assert (2, 3) == (value_of(task, "A").offset, value_of(task, "B").offset)
    task.apply(log[:2])
    assert (2, 4) == (value_of(task, "A").offset, task.progress.position)


def test_a_task_is_restored_when_it_reaches_its_target() -> None:
    """A record or an end-of-partition event takes it to the end offset of the start. Later records are only lag."""
    task = new_task(target=3)
    task.apply([record(0, "A", value("A", 1))])
    assert not task.progress.restored
    assert (task.progress.lag, round(task.progress.restored_share, 2)) == (2, 0.33)

    task.advance(3)  # compaction has removed offset 2
    task.progress.end_offset = 10

    assert task.progress.restored
    assert (task.progress.lag, task.progress.restored_share) == (7, 1.0)


def test_a_store_is_complete_as_of_the_first_end_offset_that_it_reaches(task: StoreTask) -> None:
    """Under a constant load it never reaches the newest one. It would look old, and it would be rebuilt."""
    opened = task.caught_up_time
    for second, end_offset in enumerate((10, 12), 1):
        task.note_end_offset(end_offset, second, opened + second)

    task.advance(9)
    assert opened == task.caught_up_time
    task.advance(10)
    assert opened + 1 == task.caught_up_time


def test_freshness_is_measured_after_the_restore() -> None:
    """Records of the restore are not measured. Each later record is measured once."""
    freshness: list[float] = []
    task = new_task(target=1, freshness=freshness)
    task.apply([record(0, "A", value("A", 1))])
    assert freshness == []
    task.apply([record(1, "A", value("A", 2)), record(2, "A", value("A", 2))])

    assert len(freshness) == 1
    assert freshness[0] > 0


def test_any_cut_into_batches_with_repeats_gives_the_same_store() -> None:
    """The store ends with the highest sequence number of each customer, however the changelog is split."""
    chance = random.Random(7)
    log = [record(n, card, value(card, n + 1, f"{n}.00")) for n in range(200) for card in [f"C{chance.randrange(9)}"]]
    whole = new_task()
    whole.apply(log)
    pieces, position = new_task(), 0
    while position < len(log):
        start = max(0, position - chance.randrange(20))
        position = min(len(log), position + chance.randrange(1, 30))
        pieces.apply(log[start:position])

    assert pieces.store.scan(b"", None, 99) == whole.store.scan(b"", None, 99)
    assert whole.store.count() == 9


class UnavailableRegistry(FolderSchemaIds):
    """A registry that can be unavailable."""

    away = True

    def writer_schema(self, schema_id: int) -> str:
        if self.away:
            raise SchemaRegistryUnavailableError("no answer")
        return super().writer_schema(schema_id)


def test_a_batch_waits_for_the_schema_registry() -> None:
    """Without the Schema Registry nothing of the batch is written or counted. It is applied when it is read again."""
    registry = UnavailableRegistry()
    task = StoreTask(catalogue.stores(registry)[0], 0, MemoryStorePartition(), "here", TaskProgress(None, 0, 0, 0, 0))
    batch = [record(0, "A", b"garbage"), record(1, "A", value("A", 1))]

    with pytest.raises(SchemaRegistryUnavailableError):
        task.apply(batch)

    assert (0, 0, 0) == (task.progress.position, task.progress.undecodable, task.store.count())
    registry.away = False
    task.apply(batch)
    assert (2, 1, 1) == (task.progress.position, task.progress.undecodable, task.progress.applied)
    assert value_of(task, "A")


class Watched(TaskProgress):
    """Progress that another thread reads after each write. It keeps what this thread has seen."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if hasattr(self, "seen"):
            self.seen.append(self.has_reached_active_target(2.0))

    seen: list[bool]


@pytest.mark.parametrize(("position", "reached"), [(10, False), (20, True)])
def test_no_thread_takes_the_target_of_a_former_ownership_for_the_new_one(position: int, *, reached: bool) -> None:
    """The owner since second 2 needs the records below 20. The target 5 comes from an earlier time as the owner."""
    progress = Watched(None, 0, position, 30, 30, active_target=5, active_since=1.0)
    object.__setattr__(progress, "seen", [])

    progress.become(20, 2.0)

    assert [False] * (len(progress.seen) - 1) + [reached] == progress.seen
