"""Queries over the partitions of a store that this instance holds: several keys, a range in pages, a count."""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import NamedTuple

from services.interactive_queries.local import LocalInstance, ReplicaStatus
from services.state_stores.contract import end_of_prefix
from services.state_stores.definition import StoreDefinition, VersionedValue, window_key
from services.state_stores.store import StateStore
from services.state_stores.task import StoreTask


class Row(NamedTuple):
    """A key with its partition and its value."""

    key: bytes
    partition: int
    value: VersionedValue


class ServingPartitions(NamedTuple):
    """The partitions that a query reads on this instance, and the status of each copy before the read."""

    tasks: Mapping[int, StoreTask]
    statuses: Sequence[ReplicaStatus]


class KeyRange(NamedTuple):
    """The keys ``start <= key < end`` in the order of their bytes; None means no end."""

    start: bytes
    end: bytes | None

    @classmethod
    def between(cls, first: bytes, last: bytes | None, prefix: bytes) -> "KeyRange":
        """The keys from the first to the last, both included (None: no last), that start with the prefix."""
        ends = [end for end in (None if last is None else _next(last), end_of_prefix(prefix)) if end is not None]
        return cls(max(first, prefix), min(ends, default=None))

    def after(self, key: bytes) -> "KeyRange":
        return KeyRange(max(self.start, _next(key)), self.end)


class Page(NamedTuple):
    """Rows in the order of their keys, and whether more rows follow."""

    rows: list[Row]
    more: bool


def serving_partitions(
    local: LocalInstance, store: StateStore, wanted: Collection[int], max_lag: int | None
) -> ServingPartitions:
    """The wanted partitions that can be read here: active copies, and standbys within the maximum lag."""
    tasks, statuses = {}, []
    for number in sorted(set(wanted)):
        try:
            task = store.serving(number)
        except LookupError:
            continue
        status = local.status_of(store, task)
        if status.is_within(max_lag):
            tasks[number] = task
            statuses.append(status)
    return ServingPartitions(tasks, statuses)


def look_up(store: StateStore, serving: ServingPartitions, keys: Iterable[bytes]) -> list[Row]:
    """The rows of those keys that exist in these partitions, in the order of their bytes, each key once."""
    rows = []
    for key in sorted(set(keys)):
        task = serving.tasks.get(store.partition_of(key))
        if task and (value := task.get(key)) is not None:
            rows.append(Row(key, task.partition, value))
    return rows


def scan(serving: ServingPartitions, keys: KeyRange, limit: int) -> Page:
    """The first ``limit`` rows of the range in all these partitions."""
    found = heapq.merge(
        *(
            [(key, number, stored) for key, stored in task.store.scan(keys.start, keys.end, limit + 1)]
            for number, task in serving.tasks.items()
        )
    )
    rows = [Row(key, number, VersionedValue.unpack(stored)) for key, number, stored in islice(found, limit)]
    return Page(rows, more=next(found, None) is not None)


def count(serving: ServingPartitions) -> int:
    """The exact number of keys."""
    return sum(task.store.count() for task in serving.tasks.values())


def window_keys(definition: StoreDefinition, key: str, first: int, last: int) -> list[bytes]:
    """The keys of the windows that start from ``first`` to ``last``, both included, in milliseconds since the epoch.

    The keys are computed, so a similar key of another subject is never found. Raises ValueError if the store has no
    windows.
    """
    if definition.window is None:
        raise ValueError(f"{definition.name} has no windows")
    length = definition.window // timedelta(milliseconds=1)
    return [window_key(key, start) for start in range(-(-first // length) * length, last + 1, length)]


def _next(key: bytes) -> bytes:
    """The first key after this one."""
    return key + b"\0"
