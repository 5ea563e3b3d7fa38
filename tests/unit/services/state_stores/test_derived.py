"""A derived store: it has the same changelog as its source, and fewer keys."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.topics import LOYALTY_BALANCES
from services.clock import now
from services.messaging.avro import encoder
from services.state_stores import catalogue
from services.state_stores.contract import Checkpoint, StorePartition
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore, state_stores
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from tests.support.builders import IDS
from tests.support.examples import examples

THRESHOLD = Decimal("100.00")
ENCODE = encoder(LOYALTY_BALANCES, IDS)

Open = Callable[[], StorePartition]


class Pair(NamedTuple):
    """A keyed store and its derived store. Both get records as from the materialiser."""

    keyed: StateStore
    derived: StateStore

    @classmethod
    def open(cls, keyed: StorePartition, derived: StorePartition, at: tuple[int, int] = (0, 0)) -> "Pair":
        stores = state_stores(catalogue.stores(IDS, THRESHOLD))
        pair = cls(stores[catalogue.BALANCES], stores[catalogue.TOP_CUSTOMERS])
        for store, partition, position in zip(pair, (keyed, derived), at, strict=True):
            store.add(StoreTask(store.definition, 0, partition, "test", TaskProgress(None, 0, position, 0, 0)))
        return pair

    def apply(self, records: list[ChangelogRecord]) -> None:
        for store in self:
            store.tasks[0].apply(records)

    def contents(self) -> list[dict[bytes, bytes]]:
        return [dict(store.tasks[0].store.scan(b"", None, 1_000)) for store in self]


def record(offset: int, card: str, sequence: int, points: str | None) -> ChangelogRecord:
    balance = {"CustomerCardNo": card, "Sequence": sequence, "UpdatedTime": 1}
    value = None if points is None else ENCODE({**balance, "TotalLoyaltyPoints": Decimal(points)})
    return ChangelogRecord(offset, 1, card.encode(), value)


def only_top(keyed: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The values that pass the filter, by the points in their JSON."""
    points = {key: stored.split(b'"TotalLoyaltyPoints":"')[1].split(b'"')[0] for key, stored in keyed.items()}
    return {key: stored for key, stored in keyed.items() if Decimal(points[key].decode()) >= THRESHOLD}


UPDATES = st.lists(
    st.tuples(
        st.sampled_from("ABC"),
        st.integers(1, 6),
        st.sampled_from(["99.99", "100.00", "100.01", "-5.00", None, "unreadable"]),
    ),
    max_size=25,
)


def log_of(updates: list[tuple[str, int, str | None]]) -> list[ChangelogRecord]:
    return [
        ChangelogRecord(offset, 1, card.encode(), b"garbage")
        if points == "unreadable"
        else record(offset, card, sequence, points)
        for offset, (card, sequence, points) in enumerate(updates)
    ]


@pytest.fixture
def partitions(open_store: Open) -> Iterator[list[StorePartition]]:
    """The partitions of a pair. All examples of a property use them, because RocksDB opens them slowly."""
    opened = [open_store(), open_store()]
    yield opened
    for partition in opened:
        partition.destroy()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(updates=UPDATES, cuts=st.lists(st.integers(0, 25), max_size=4))
def test_a_derived_store_is_the_filter_of_the_keyed_store(
    partitions: list[StorePartition], updates: list[tuple[str, int, str | None]], cuts: list[int]
) -> None:
    """Both are equal after each batch of updates, duplicates, old records, garbage and tombstones, split anywhere."""
    for partition in partitions:
        partition.apply(dict.fromkeys(key for key, _ in partition.scan(b"", None, 1_000)), Checkpoint("test", 0, 0))
    pair, log = Pair.open(*partitions), log_of(updates)

    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(log)], strict=True):
        pair.apply(log[max(0, start - 2) : end])  # two records are read again

        keyed, derived = pair.contents()
        assert only_top(keyed) == derived
        assert len(derived) == pair.derived.tasks[0].store.count()


@settings(max_examples=examples(60), deadline=None)
@given(updates=UPDATES, behind=st.tuples(st.integers(0, 25), st.integers(0, 25)))
def test_a_crash_between_the_two_writes_is_repaired(
    updates: list[tuple[str, int, str | None]], behind: tuple[int, int]
) -> None:
    """One store may have stopped before the other. They agree after a read from the lower offset."""
    log = log_of(updates)
    ends = [min(each, len(log)) for each in behind]
    partitions = []
    for number, end in enumerate(ends):
        before = Pair.open(MemoryStorePartition(), MemoryStorePartition())
        before.apply(log[:end])
        partitions.append(before[number].tasks[0].store)
    after = Pair.open(partitions[0], partitions[1], (ends[0], ends[1]))

    after.apply(log[min(ends) :])

    keyed, derived = after.contents()
    assert only_top(keyed) == derived


def test_the_source_can_be_rebuilt() -> None:
    """A derived store reads the current task of its source, not the one that was open at its own start."""
    pair = Pair.open(MemoryStorePartition(), MemoryStorePartition())
    pair.apply([record(0, "A", 1, "100.00")])
    pair.keyed.tasks[0].store.close()
    fresh = MemoryStorePartition()
    pair.keyed.add(StoreTask(pair.keyed.definition, 0, fresh, "test", TaskProgress(None, 0, 0, 0, 0)))

    pair.apply([record(0, "A", 1, "100.00"), record(1, "B", 1, "200.00")])

    assert [b"A", b"B"] == sorted(pair.contents()[1])


def test_another_threshold_is_another_origin() -> None:
    """Local data of another threshold are deleted. The data of the keyed store stay. 100 and 100.00 are equal."""

    def origins(threshold: str) -> list[str]:
        return [each.origin("topic x") for each in catalogue.stores(IDS, Decimal(threshold))[:2]]

    assert origins("100")[0] == origins("200")[0]
    assert origins("100")[0].startswith("topic x, schema ids up to ")
    assert origins("100")[1] != origins("200")[1]
    assert origins("100")[1] == origins("100.00")[1]


def test_a_derived_store_does_not_measure_freshness() -> None:
    """Each balance would be counted twice."""
    freshness: list[float] = []
    stores = state_stores(catalogue.stores(IDS, THRESHOLD))
    for name in (catalogue.BALANCES, catalogue.TOP_CUSTOMERS):
        store = stores[name]
        task = StoreTask(
            store.definition, 0, MemoryStorePartition(), "test", TaskProgress(None, 0, 0, 0, 0), freshness.append
        )
        store.add(task)
        task.apply([record(0, "A", 1, "100.00")])

    assert 1 == stores[catalogue.TOP_CUSTOMERS].tasks[0].store.count()
    assert 1 == len(freshness)


def test_a_derived_store_without_its_source_is_refused() -> None:
    """Otherwise it would stay empty without an error."""
    with pytest.raises(ValueError, match="source"):
        StateStore(catalogue.stores(IDS)[1])


SALES = state_stores(catalogue.stores(IDS))[catalogue.STORE_SALES].definition
ENCODE_SALE = encoder(SALES.changelog, IDS)
RETENTION = 7 * 86_400_000
OLDEST = now() - RETENTION


def sales_task(store: StorePartition, target: int = 0) -> StoreTask:
    return StoreTask(SALES, 0, store, "test", TaskProgress(None, 0, 0, target, target))


def sale(offset: int, minute: int, *, expired: bool = False) -> ChangelogRecord:
    """The window of a minute from 100 to 166. So the order of the keys is that of the minutes."""
    start = minute * 60_000
    amounts = dict.fromkeys(("Sum", "Minimum", "Maximum"), Decimal("1.00"))
    times = {"WindowStart": start, "WindowEnd": start + 60_000, "UpdatedTime": start}
    value = ENCODE_SALE({"StoreID": "S", "Count": 1, "Sequence": offset + 1, **times, **amounts})
    append_time = OLDEST + (-60_000 if expired else 86_400_000)
    return ChangelogRecord(offset, append_time, f"S@{start}".encode(), value)


def minutes(task: StoreTask) -> list[int]:
    return [int(key.removeprefix(b"S@")) // 60_000 for key, _ in task.store.scan(b"", None, 99)]


def test_a_windowed_store_deletes_expired_values() -> None:
    """Values older than the retention are deleted, also without new records, and no others."""
    task = sales_task(MemoryStorePartition())
    task.apply([sale(0, 101, expired=True), sale(1, 102)])

    task.expire(RETENTION)

    assert [102] == minutes(task)
    checkpoint = task.store.checkpoint
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.offset == 2


def test_each_search_for_expired_values_reads_one_page(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next search continues behind the page, also if keys come and go. The pause begins at the end of the store."""
    clock = SimpleNamespace(monotonic=lambda: clock.seconds, seconds=1_000.0)
    monkeypatch.setattr("services.state_stores.task.time", clock)
    monkeypatch.setattr("services.state_stores.task._EXPIRY_PAGE", 3)
    task = sales_task(open_store())
    scan, pages = task.store.scan, list[int]()

    def counting_scan(start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        found = scan(start, end, limit)
        pages.append(len(found))
        return found

    def apply(*records: ChangelogRecord) -> list[int]:
        """The minutes that are left."""
        with monkeypatch.context() as patched:
            patched.setattr(task.store, "scan", counting_scan)
            task.apply(records)
            task.expire(RETENTION)
        return minutes(task)

    first = [sale(minute, minute, expired=minute % 2 == 1) for minute in range(100, 110)]
    assert [100, *range(102, 110)] == apply(*first)
    # The last key of the page goes. An expired value comes before the next page, and another one after it.
    removal = ChangelogRecord(110, OLDEST, first[2].key, None)
    assert [100, 101, 104, *range(106, 111)] == apply(
        removal, sale(111, 101, expired=True), sale(112, 110, expired=True)
    )
    assert [100, 101, 104, 106, 108, 109, 110, 120] == apply(sale(113, 120))
    assert [100, 101, 104, 106, 108, 120] == apply(sale(114, 120))
    clock.seconds += 100
    apply(sale(115, 120))
    assert [3, 3, 3, 3, 0] == pages

    clock.seconds += 599
    assert [100, 101, 104, 106, 108, 120] == apply(sale(116, 120))
    assert [3, 3, 3, 3, 0] == pages
    clock.seconds += 1
    assert [100, 104, 106, 108, 120] == apply(sale(117, 120))
    task.store.close()


def test_a_restore_does_not_search_for_expired_values() -> None:
    """The first search comes after the restore."""
    task = sales_task(MemoryStorePartition(), target=2)
    task.apply([sale(0, 101, expired=True)])
    task.expire(RETENTION)
    assert [101] == minutes(task)

    task.apply([sale(1, 102)])
    task.expire(RETENTION)

    assert [102] == minutes(task)
