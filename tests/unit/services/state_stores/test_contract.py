"""The behaviour that memory and RocksDB share."""

import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.state_stores.contract import Checkpoint, StoreClosedError, StorePartition, end_of_prefix
from services.state_stores.memory import MemoryStorePartition
from tests.support.examples import examples

NOTHING = Checkpoint("test", 0, 0)


@pytest.fixture
def store(open_store: Callable[[], StorePartition]) -> StorePartition:
    return open_store()


class TestStorePartition:
    def test_a_new_store_is_empty(self, store: StorePartition) -> None:
        """It has no checkpoint and no keys."""
        assert store.checkpoint is None
        assert store.count() == 0
        assert store.get(b"a") is None
        assert store.scan(b"", None, 10) == []

    def test_applies_writes_and_checkpoint_together(self, store: StorePartition) -> None:
        """Both are readable after apply."""
        checkpoint = Checkpoint("format 1 of topic x", 7, 1_700_000_000_000)
        store.apply({b"a": b"1", b"b": b"2"}, checkpoint)

        assert store.checkpoint == checkpoint
        assert (store.get(b"a"), store.get(b"b")) == (b"1", b"2")

    def test_reads_several_keys_at_once(self, store: StorePartition) -> None:
        """The result has None for an unknown key. A write can use the result instead of another read."""
        store.apply({b"a": b"1", b"b": b""}, NOTHING)
        known = store.get_many([b"b", b"c", b"a"])
        store.apply({b"a": None, b"b": b"2", b"c": b"3"}, NOTHING, known)

        assert {b"a": b"1", b"b": b"", b"c": None} == known
        assert {b"a": None, b"b": b"2", b"c": b"3"} == store.get_many([b"a", b"b", b"c"])
        assert {} == store.get_many([])
        assert store.count() == 2

    def test_scans_in_the_order_of_bytes(self, store: StorePartition) -> None:
        """The start is included, the end is excluded, the limit holds, and bytes above 127 come last."""
        keys = [b"\xff", b"b", b"a\x00", b"a", b"\xc3\xa9", b""]
        store.apply({key: b"v" + key for key in keys}, NOTHING)

        assert store.scan(b"", None, 10) == [(key, b"v" + key) for key in sorted(keys)]
        assert [key for key, _ in store.scan(b"a", b"b", 10)] == [b"a", b"a\x00"]
        assert [key for key, _ in store.scan(b"a", None, 2)] == [b"a", b"a\x00"]
        assert store.scan(b"b", b"a", 10) == []
        assert store.scan(b"", None, 0) == []

    @pytest.mark.parametrize("end", ["close", "destroy"])
    def test_a_store_refuses_each_operation_after_its_end(self, store: StorePartition, end: str) -> None:
        """After ``close`` and after ``destroy`` each operation raises StoreClosedError. A second call is allowed."""
        store.apply({b"a": b"1"}, NOTHING)
        getattr(store, end)()
        getattr(store, end)()

        for operation in (
            lambda: store.get(b"a"),
            lambda: store.get_many([b"a"]),
            lambda: store.apply({}, NOTHING),
            lambda: store.scan(b"", None, 1),
            store.count,
            lambda: store.checkpoint,
        ):
            with pytest.raises(StoreClosedError):
                operation()

    @settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        batches=st.lists(
            st.dictionaries(st.binary(max_size=3), st.none() | st.binary(max_size=3), max_size=6), max_size=6
        ),
        start=st.binary(max_size=2),
        prefix=st.binary(max_size=2),
    )
    def test_behaves_like_a_sorted_dictionary(
        self,
        open_store: Callable[[], StorePartition],
        batches: list[dict[bytes, bytes | None]],
        start: bytes,
        prefix: bytes,
    ) -> None:
        """After any writes, reads, scans and the count are equal to those of a sorted dictionary."""
        store, model = open_store(), {}
        for batch in batches:
            store.apply(batch, NOTHING)
            model = {key: value for key, value in {**model, **batch}.items() if value is not None}

        assert store.scan(b"", None, 1_000) == sorted(model.items())
        assert store.scan(start, None, 3) == sorted(item for item in model.items() if item[0] >= start)[:3]
        assert store.scan(prefix, end_of_prefix(prefix), 99) == sorted(
            item for item in model.items() if item[0].startswith(prefix)
        )
        assert store.count() == len(model)
        store.destroy()


class ClosesFirst:
    """A lock. Before it is acquired for the first time, another caller closes the store."""

    def __init__(self, store: MemoryStorePartition) -> None:
        self._store: MemoryStorePartition | None = store
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if store := self._store:
            self._store = None
            store.close()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("read", [lambda store: store.get(b"a"), lambda store: store.count()], ids=["get", "count"])
def test_a_memory_store_that_closes_before_a_read_raises(read: Callable[[StorePartition], object]) -> None:
    """A read during a close returns the value or raises StoreClosedError. It never says that the key does not exist."""

    class ClosedBeforeTheRead(dict[bytes, bytes]):
        """Values that are deleted by a close just before they are read."""

        def get(self, *_: object) -> None:  # type: ignore[override]
            store.close()

        def __len__(self) -> int:
            store.close()
            return 0

    store = MemoryStorePartition()
    store._values = ClosedBeforeTheRead()

    with pytest.raises(StoreClosedError):
        read(store)


@pytest.mark.parametrize(
    "operation",
    [lambda store: store.scan(b"", None, 9), lambda store: store.apply({b"b": b"2"}, NOTHING)],
    ids=["scan", "apply"],
)
def test_a_memory_store_that_closes_during_a_call_raises(operation: Callable[[StorePartition], object]) -> None:
    """If the store closes while a call waits for the lock, the call returns no empty page and writes nothing."""
    store = MemoryStorePartition()
    store.apply({b"a": b"1"}, NOTHING)
    store._lock = ClosesFirst(store)  # type: ignore[assignment]

    with pytest.raises(StoreClosedError):
        operation(store)


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"", None), (b"a\x00", b"a\x01")]
)
def test_end_of_prefix(prefix: bytes, end: bytes | None) -> None:
    """The end is the first key after all keys with the prefix."""
    assert end_of_prefix(prefix) == end
