"""What can be asked of a store, as data: how one instance reads its part, and how the parts become one answer.

Each query here is a dependency of two routes, the one that answers from this instance and the one that asks them all;
a coroutine, as FastAPI takes plain functions for slow ones and runs them in threads.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Body, Depends, Request

from api.http import pagination, problems
from api.http.pagination import Cursor, From, FromTime, Key, Keys, Limit, Prefix, StoreName, To, ToTime
from services.interactive_queries.local_queries import (
    KeyRange,
    Row,
    ServingPartitions,
    count,
    look_up,
    scan,
    window_keys,
)
from services.state_stores.store import LocalStores, StateStore

Members = dict[str, Any]
"""What an answer has beside ``queries.Answer``."""


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A question about several keys.

    Attributes:
        wanted: the partitions that the answer is in.
        read: what one instance has to say from its share of them.
        merge: the parts of several instances, in any order, to the whole.
    """

    store: StateStore
    wanted: Collection[int]
    read: Callable[[ServingPartitions], Members]
    merge: Callable[[Sequence[Members]], Members]


async def the_store(request: Request, store: StoreName) -> StateStore:
    """The store of the path; raises Problem for a name that the table does not have."""
    stores: LocalStores = request.app.state.stores
    if found := stores.by_name.get(store):
        return found
    raise problems.UnknownStore(list(stores.by_name))


Store = Annotated[StateStore, Depends(the_store)]


async def several_keys(store: Store, asked: Annotated[Keys, Body()]) -> StoreQuery:
    """The entries of those keys that exist."""
    keys = sorted({key.encode() for key in asked.keys})

    def read(share: ServingPartitions) -> Members:
        rows = look_up(store, share, keys)
        found = {row.key for row in rows}
        here = [key for key in keys if store.partition_of(key) in share.tasks]
        return {"entries": _entries(rows), "unknownKeys": [key.decode() for key in here if key not in found]}

    def merge(parts: Sequence[Members]) -> Members:
        unknown = sorted((key for part in parts for key in part["unknownKeys"]), key=str.encode)
        return {"entries": _merged(parts), "unknownKeys": unknown}

    return StoreQuery(store, {store.partition_of(key) for key in keys}, read, merge)


async def key_range(
    store: Store, first: From = None, to: To = None, prefix: Prefix = "", limit: Limit = 100, cursor: Cursor = None
) -> StoreQuery:
    """A page of the entries from the first key to the last, both included, in the order of UTF-8 bytes."""
    return _page(store, pagination.key_range(first, to, prefix), limit, cursor)


async def everything(store: Store, limit: Limit = 100, cursor: Cursor = None) -> StoreQuery:
    """A page of all entries, in the order of their keys' UTF-8 bytes."""
    return _page(store, pagination.key_range(None, None, ""), limit, cursor)


async def count_keys(store: Store) -> StoreQuery:
    """The number of keys, exact for the partitions that are read."""

    def merge(parts: Sequence[Members]) -> Members:
        return {"count": sum(part["count"] for part in parts)}

    return StoreQuery(store, _all_of(store), lambda share: {"count": count(share)}, merge)


async def windows(store: Store, key: Key, first: FromTime, last: ToTime) -> StoreQuery:
    """The windows of a key, e.g. the minutes of a shop, that start from the first time to the last, both included.

    A window without sales does not exist.
    """
    definition = store.definition
    if definition.window is None:
        raise problems.NotWindowed(definition.name)
    keys = window_keys(definition, key, *pagination.milliseconds(first, last, definition.window))
    return StoreQuery(
        store,
        {store.partition_of(each) for each in keys},
        lambda share: {"entries": _entries(look_up(store, share, keys))},
        lambda parts: {"entries": _merged(parts)},
    )


def _page(store: StateStore, keys: KeyRange, limit: int, cursor: str | None) -> StoreQuery:
    name = store.definition.name
    left = pagination.resume(cursor, name, keys)

    def page(entries: list[Members], *, more: bool) -> Members:
        following = pagination.cursor_after(entries[-1]["key"].encode(), name, keys) if more and entries else None
        return {"entries": entries, "next": following}

    def read(share: ServingPartitions) -> Members:
        found = scan(share, left, limit)
        return page(_entries(found.rows), more=found.more)

    def merge(parts: Sequence[Members]) -> Members:
        entries = _merged(parts)
        more = len(entries) > limit or any(part["next"] for part in parts)
        return page(entries[:limit], more=more)

    return StoreQuery(store, _all_of(store), read, merge)


def _all_of(store: StateStore) -> range:
    return range(store.definition.changelog.partitions)


def _entries(rows: Sequence[Row]) -> list[Members]:
    return [pagination.entry_body(*row) for row in rows]


def _merged(parts: Sequence[Members]) -> list[Members]:
    return sorted((entry for part in parts for entry in part["entries"]), key=lambda entry: entry["key"].encode())
