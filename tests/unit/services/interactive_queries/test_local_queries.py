"""Queries over the local partitions of a store: pages, ranges, several keys, counts."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.topics import LOYALTY_BALANCES, STORE_SALES
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.local_queries import (
    KeyRange,
    Row,
    ServingPartitions,
    count,
    look_up,
    scan,
    serving_partitions,
    window_keys,
)
from services.settings import PARTITIONS, Settings
from services.state_stores.contract import Checkpoint, StorePartition
from services.state_stores.definition import StoreDefinition, VersionedValue, View
from services.state_stores.materialiser import LocalStores
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore
from services.state_stores.task import StoreTask, TaskProgress
from services.state_stores.waiters import SequenceWaiters
from tests.support.clusters import FakeFeed, FixedMembership
from tests.support.examples import examples

ALL = KeyRange(b"", None)
KEYS = st.text(st.sampled_from("ab/\x00é\uffff"), max_size=3).map(str.encode)
DEFINITION = StoreDefinition("things", LOYALTY_BALANCES, lambda key, value: View(1, value))


def value_of(key: bytes) -> VersionedValue:
    return VersionedValue(len(key), 7, 8, b'{"key":"' + key.hex().encode() + b'"}')


@pytest.fixture
def partitions(open_store: Callable[[], StorePartition]) -> Iterator[list[StorePartition]]:
    """The partitions of a store. All examples of a property use them, because RocksDB opens them slowly."""
    opened = [open_store() for _ in range(PARTITIONS)]
    yield opened
    for partition in opened:
        partition.destroy()


def new_store(
    partitions: list[StorePartition], keys: set[bytes], restoring: frozenset[int] = frozenset()
) -> StateStore:
    """A store that has these keys in the partitions, and no earlier ones."""
    store = StateStore(DEFINITION)
    for number, partition in enumerate(partitions):
        former = dict.fromkeys(key for key, _ in partition.scan(b"", None, 1_000))
        mine = {key: value_of(key).pack() for key in keys if store.partition_of(key) == number}
        partition.apply(former | mine, Checkpoint("test", 40, 0))
        target = 50 if number in restoring else 0
        store.add(StoreTask(DEFINITION, number, partition, "test", TaskProgress(None, 0, 40, 45, target)))
    return store


def whole(store: StateStore, wanted: Sequence[int] = (0, 1, 2)) -> ServingPartitions:
    """The serving partitions of an instance that has standbys only."""
    stores = LocalStores({"things": store}, FakeFeed(), SequenceWaiters())
    return serving_partitions(LocalInstance(stores, FixedMembership(url="http://one"), Settings()), store, wanted, None)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.sets(KEYS, max_size=12),
    first=KEYS,
    last=st.none() | KEYS,
    prefix=KEYS.map(lambda key: key[:1] if key[:1].isascii() else b""),
    limit=st.integers(1, 5),
)
def test_pages_return_each_key_once_and_in_order(
    partitions: list[StorePartition], keys: set[bytes], first: bytes, last: bytes | None, prefix: bytes, limit: int
) -> None:
    """All pages of a range have the sorted keys with the prefix between both ends, which are included."""
    store = new_store(partitions, keys)
    wanted = KeyRange.between(first, last, prefix)
    visited: list[Row] = []
    left, more = wanted, True
    while more:
        page = scan(whole(store), left, limit)
        assert len(page.rows) <= limit
        assert len(page.rows) == limit or not page.more
        visited += page.rows
        more = page.more
        left = wanted.after(visited[-1].key) if visited else left

    expected = sorted(key for key in keys if first <= key and (last is None or key <= last) and key.startswith(prefix))
    assert expected == [row.key for row in visited]
    assert all(row.value == value_of(row.key) and row.partition == store.partition_of(row.key) for row in visited)


def test_a_page_says_whether_more_rows_follow() -> None:
    """All keys are in one partition, and no other partition has a next row."""
    partitions: list[StorePartition] = [MemoryStorePartition() for _ in range(PARTITIONS)]
    keys = [key for key in (b"%d" % number for number in range(20)) if StateStore(DEFINITION).partition_of(key) == 0]
    store = new_store(partitions, {*keys[:3]})

    assert [True, False] == [scan(whole(store), ALL, limit).more for limit in (2, 3)]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.sets(KEYS, max_size=8), asked=st.lists(KEYS, max_size=8))
def test_look_up_returns_each_known_key_once(
    partitions: list[StorePartition], keys: set[bytes], asked: list[bytes]
) -> None:
    """The result has the requested keys that exist, once and sorted."""
    store = new_store(partitions, keys)

    assert sorted(keys & set(asked)) == [row.key for row in look_up(store, whole(store), asked)]
    assert len(keys) == count(whole(store))


def test_a_partition_that_is_restoring_or_elsewhere_is_not_read() -> None:
    """Only restored partitions are read, with position and lag."""
    keys = {f"k{number}".encode() for number in range(30)}
    store = new_store([MemoryStorePartition() for _ in range(3)], keys, restoring=frozenset({1}))
    gone = store.remove(2)
    assert gone is not None

    serving = whole(store)

    assert [(0, 40, 5, True)] == [(each.partition, each.position, each.lag, each.stale) for each in serving.statuses]
    assert {0} == {row.partition for row in scan(serving, ALL, 100).rows}
    assert sorted(key for key in keys if store.partition_of(key) == 0) == [
        row.key for row in look_up(store, serving, keys)
    ]
    assert {} == whole(store, []).tasks


@pytest.mark.parametrize(
    ("first", "last", "starts"),
    [
        (0, 120_000, [0, 60_000, 120_000]),
        (1, 119_999, [60_000]),
        (60_000, 60_000, [60_000]),
        (60_001, 60_002, []),
        (120_000, 60_000, []),
        (-60_000, 0, [-60_000, 0]),
    ],
)
def test_window_keys_are_the_keys_of_full_minutes(first: int, last: int, starts: list[int]) -> None:
    """Both ends are included, even if they are not full minutes. The key can contain any characters."""
    definition = StoreDefinition("sales", STORE_SALES, DEFINITION.view, window=timedelta(minutes=1))

    assert [f"S@1@{start}".encode() for start in starts] == window_keys(definition, "S@1", first, last)
