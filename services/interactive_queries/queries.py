"""Queries over the partitions of one store that are here: several keys, a range in pages, a count."""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from services.interactive_queries.local import LocalInstance, ReplicaStatus
from services.state_stores.contract import end_of_prefix
from services.state_stores.definition import StoreDefinition, window_key
from services.state_stores.entry import Entry
from services.state_stores.store import StateStore
from services.state_stores.task import StoreTask


class Row(NamedTuple):
    """An entry with its key and where it is."""

    key: bytes
    partition: int
    entry: Entry


class Share(NamedTuple):
    """The partitions that a query reads here.

    Attributes:
        tasks: partition to task.
        standings: of these tasks, when the share was taken.
        missing: partitions that it should read and cannot: elsewhere, or still being restored.
    """

    tasks: Mapping[int, StoreTask]
    standings: Sequence[ReplicaStatus]
    missing: Sequence[int]


class KeyRange(NamedTuple):
    """Keys ``start <= key < end`` in the order of their bytes; no end for None."""

    start: bytes
    end: bytes | None

    @classmethod
    def between(cls, first: bytes, last: bytes | None, prefix: bytes) -> "KeyRange":
        """From the first to the last (None: no last), both of them in it, and only keys that begin with the prefix."""
        ends = [end for end in (None if last is None else _next(last), end_of_prefix(prefix)) if end is not None]
        return cls(max(first, prefix), min(ends, default=None))

    def after(self, key: bytes) -> "KeyRange":
        """What is left of it behind a key."""
        return KeyRange(max(self.start, _next(key)), self.end)


class Page(NamedTuple):
    """Rows in the order of their keys, and whether more of them follow."""

    rows: list[Row]
    more: bool


def share_of(local: LocalInstance, store: StateStore, wanted: Collection[int], max_lag: int | None = None) -> Share:
    """What can be read here of the wanted partitions, of owned ones and of copies that lag no more than this."""
    held = store.tasks
    tasks, standings, missing = {}, [], []
    for number in sorted(set(wanted)):
        try:
            standing, task = local.standing(store, number), held[number]
        except LookupError:  # not here, not restored, or just gone
            missing.append(number)
            continue
        if standing.is_within(max_lag):
            tasks[number] = task
            standings.append(standing)
        else:
            missing.append(number)
    return Share(tasks, standings, missing)


def look_up(store: StateStore, share: Share, keys: Iterable[bytes]) -> list[Row]:
    """The rows of those keys that the share has, in the order of their bytes; a key given twice is one row."""
    rows = []
    for key in sorted(set(keys)):
        task = share.tasks.get(store.partition_of(key))
        if task and (stored := task.store.get(key)) is not None:
            rows.append(Row(key, task.partition, Entry.unpack(stored)))
    return rows


def scan(share: Share, keys: KeyRange, limit: int) -> Page:
    """The first ``limit`` rows of the range over all partitions of the share."""
    found = heapq.merge(
        *(
            [(key, number, stored) for key, stored in task.store.scan(keys.start, keys.end, limit + 1)]
            for number, task in share.tasks.items()
        )
    )
    rows = [Row(key, number, Entry.unpack(stored)) for key, number, stored in islice(found, limit)]
    return Page(rows, more=next(found, None) is not None)


def count(share: Share) -> int:
    """The number of keys, exact."""
    return sum(task.store.count() for task in share.tasks.values())


def window_keys(definition: StoreDefinition, key: str, first: int, last: int) -> list[bytes]:
    """The keys of the windows that start from ``first`` to ``last``, milliseconds since the epoch, both of them in it.

    They follow from the times alone, so that no other key that happens to look alike is ever found.
    """
    if definition.window is None:
        raise ValueError(f"{definition.name} has no windows")
    length = int(definition.window.total_seconds() * 1000)
    return [window_key(key, start) for start in range(-(-first // length) * length, last + 1, length)]


def _next(key: bytes) -> bytes:
    """The first key after this one."""
    return key + b"\0"
