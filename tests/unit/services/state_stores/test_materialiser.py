"""Which partitions count for readiness, and what happens to local data; the broker's part is in tests/integration."""

from typing import cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings
from services.state_stores import catalogue
from services.state_stores.assignment import AllPartitions
from services.state_stores.contract import Checkpoint, StorePartition
from services.state_stores.materialiser import Materialiser
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore
from services.state_stores.waiters import SequenceWaiters

PARTITIONS = [TopicPartition("loyalty-balances", number) for number in range(3)]


class Watermarks:
    """The one thing of a consumer that taking partitions asks for; notes whether it was ready each time."""

    def __init__(self, low: int, high: int) -> None:
        self._answer = (low, high)
        self.materialiser: Materialiser | None = None
        self.ready: list[bool] = []

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        if self.materialiser:
            self.ready.append(self.materialiser.restored)
        return self._answer


def stored(offset: int, origin: str = "here") -> StorePartition:
    partition = MemoryStorePartition()
    partition.apply({b"old": b"x"}, Checkpoint(origin, offset, 0))
    return partition


def new_materialiser(opened: list[StorePartition]) -> tuple[Materialiser, StateStore]:
    """A materialiser whose openings give these stores in turn; its changelog's origin is ``here``."""
    store = StateStore(catalogue.stores(FolderSchemaIds())[0])
    materialiser = Materialiser(
        [store],
        Settings(),
        open_partition=lambda _, __: opened.pop(0),
        assignment=AllPartitions(),
        waiters=SequenceWaiters(),
    )
    materialiser._origins["loyalty-balances"] = "here"
    return materialiser, store


def take(materialiser: Materialiser, watermarks: Watermarks, partitions: list[TopicPartition]) -> list[int]:
    starts = materialiser.take(cast(Consumer, watermarks), partitions)
    return [start.offset for start in starts]


def test_is_not_ready_before_the_last_partition_is_open() -> None:
    """With empty changelogs each partition is restored when it is opened; all three must be."""
    materialiser, _ = new_materialiser([MemoryStorePartition() for _ in PARTITIONS])
    watermarks = Watermarks(0, 0)
    watermarks.materialiser = materialiser
    assert not materialiser.restored

    assert [0, 0, 0] == take(materialiser, watermarks, PARTITIONS)
    assert [False, False, False] == watermarks.ready
    assert materialiser.restored


def test_a_partition_given_up_counts_no_more() -> None:
    """What moved away is closed, and the rest decides on readiness."""
    materialiser, store = new_materialiser([stored(5), MemoryStorePartition()])
    assert [5, 0] == take(materialiser, Watermarks(0, 5), PARTITIONS[:2])
    assert not materialiser.restored

    materialiser.give_up(PARTITIONS[1:2])

    assert materialiser.restored
    assert [0] == list(store.tasks)


@pytest.mark.parametrize(
    ("local", "low", "high", "why"),
    [
        (stored(5, "another topic"), 0, 9, "made of another topic"),
        (stored(10), 0, 9, "outside"),  # the topic lost its end
        (stored(5), 6, 9, "outside"),  # records between were deleted, tombstones perhaps
    ],
)
def test_data_that_cannot_be_continued_are_thrown_away(local: StorePartition, low: int, high: int, why: str) -> None:
    """Another origin, or an offset that the broker does not have: from the start, and /readyz can say why."""
    empty = MemoryStorePartition()
    materialiser, store = new_materialiser([local, empty])

    assert [low] == take(materialiser, Watermarks(low, high), PARTITIONS[:1])
    task = store.tasks[0]
    assert task.store is empty
    assert task.progress.resumed_from is None
    assert why in str(task.progress.rebuilt_because)
    assert not materialiser.restored


def test_taking_again_keeps_what_is_good() -> None:
    """After an interruption the store goes on where it is, restored as before, and learns the new end."""
    materialiser, store = new_materialiser([stored(5)])
    take(materialiser, Watermarks(0, 5), PARTITIONS[:1])

    assert [5] == take(materialiser, Watermarks(0, 9), PARTITIONS[:1])
    assert materialiser.restored
    assert store.tasks[0].progress.lag == 4


def test_a_changelog_replaced_while_running_is_read_anew() -> None:
    """If the interruption was the topic's deletion, the open store is thrown away and no longer restored."""
    materialiser, store = new_materialiser([stored(5), MemoryStorePartition()])
    take(materialiser, Watermarks(0, 5), PARTITIONS[:1])
    materialiser._origins["loyalty-balances"] = "there"

    assert [0] == take(materialiser, Watermarks(0, 9), PARTITIONS[:1])
    assert not materialiser.restored
    assert store.tasks[0].store.count() == 0
