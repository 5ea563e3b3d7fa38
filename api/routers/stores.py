"""Queries of every store. Each query has two routes: one reads all instances, and one under /local reads this one."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from inspect import cleandoc
from typing import Annotated

import orjson
from fastapi import APIRouter, Body, Depends, Query, Request, Response
from pydantic import BaseModel

from api.dependencies import LookupDep, ScatterGatherDep, StoreOfPath, StoresDep, store_by_name
from api.http import pagination, problems
from api.http.bodies import JsonRoute
from api.http.parameters import (
    Cursor,
    From,
    FromTime,
    IfNoneMatch,
    IsBoolean,
    Key,
    Limit,
    MaxLag,
    MinSequence,
    OpenedTime,
    Partitions,
    Prefix,
    StoreName,
    Timeout,
    To,
    ToTime,
)
from api.http.problems import Problem
from api.http.responses import ENTRY_RESPONSES, json_response
from api.routing.lookup import KeyRead
from api.routing.problems import (
    COPY_PROBLEMS,
    FORWARDING_PROBLEMS,
    NotHere,
    NotTheOwner,
    NotWindowed,
    SequenceNotReached,
    TooStale,
    UnknownKey,
    UnknownStore,
)
from api.routing.scatter_gather import Members, StoreQuery
from api.schemas.stores import Count, Entries, EntryPage, FoundKeys, Keys, StoreEntry
from api.security.caller import EVERYBODY, Caller
from api.security.permissions import caller_of, may_read_store, require_keys
from services.interactive_queries.local_queries import (
    KeyRange,
    Row,
    ServingPartitions,
    count,
    look_up,
    scan,
    window_keys,
)
from services.state_stores.definition import ReadConsistency, VersionedValue
from services.state_stores.store import StateStore

router = APIRouter(
    prefix="/v1/stores/{store}", tags=["stores"], dependencies=[Depends(may_read_store)], route_class=JsonRoute
)
lookups = APIRouter(prefix="/v1/stores/{store}", tags=["stores"], dependencies=[Depends(may_read_store)])
"""Routes for single keys. ``LookupApp`` serves them."""

Erased = Annotated[
    bool,
    Query(description="Wait for an erasure instead: until the account that was opened at openedTime is gone (404)."),
    IsBoolean,
]

_PROBLEMS: tuple[type[Problem], ...] = (UnknownStore, problems.InvalidParameters, *COPY_PROBLEMS, TooStale)


@lookups.get(
    "/keys/{key:path}",
    summary="One key",
    response_model=StoreEntry,
    responses={
        **ENTRY_RESPONSES,
        **problems.responses(UnknownKey, *_PROBLEMS, *FORWARDING_PROBLEMS, SequenceNotReached, NotTheOwner),
    },
)
async def one_key(  # noqa: PLR0913, PLR0917 - each parameter of the request is a parameter
    request: Request,
    store: StoreName,
    key: Key,
    lookup: LookupDep,
    stores: StoresDep,
    min_sequence: MinSequence = 0,
    opened_time: OpenedTime = 0,
    *,
    erased: Erased = False,
    timeout_seconds: Timeout = 0,
    max_lag: MaxLag = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The entry of a key. Any instance answers for every key."""
    consistency = ReadConsistency(min_sequence, opened_time, erased)
    state_store = await store_by_name(stores, store)
    read = KeyRead(state_store, key.encode(), consistency, timeout_seconds, max_lag, request)
    found = await lookup.query(read)
    return found.response(partial(_entry_body, read, caller_of(request)), UnknownKey, if_none_match)


@lookups.get(
    "/local/keys/{key:path}",
    summary="One key of this instance",
    response_model=StoreEntry,
    responses={**ENTRY_RESPONSES, **problems.responses(UnknownKey, NotHere, *_PROBLEMS)},
)
async def one_key_here(
    request: Request,
    store: StoreName,
    key: Key,
    lookup: LookupDep,
    stores: StoresDep,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The entry of a key from the copy of this instance, active or standby. The headers name the role."""
    read = KeyRead(await store_by_name(stores, store), key.encode())
    if stores.materialiser.restored and read.partition not in read.store.tasks:
        raise NotHere(partition=read.partition)
    found = await lookup.query_local(read)
    return found.response(partial(_entry_body, read, caller_of(request)), UnknownKey, if_none_match)


def _entry_body(read: KeyRead, caller: Caller, entry: VersionedValue) -> bytes:
    return orjson.dumps(pagination.entry_body(read.key, read.partition, entry, caller))


# Each of the following functions is a dependency of two routes (see _add_routes). They are coroutines, because FastAPI
# runs plain functions in threads.


async def several_keys(request: Request, store: StoreOfPath, body: Annotated[Keys, Body()]) -> StoreQuery:
    """The entries of the keys that exist."""
    require_keys(request, store.definition.name, body.keys)
    keys, caller = sorted({key.encode() for key in body.keys}), caller_of(request)

    def read(share: ServingPartitions) -> Members:
        rows = look_up(store, share, keys)
        found = {row.key for row in rows}
        unknown = [key for key in keys if key not in found and store.partition_of(key) in share.tasks]
        return {"entries": _entries(rows, caller), "unknownKeys": [key.decode() for key in unknown]}

    def merge(parts: Sequence[Members]) -> Members:
        unknown = sorted((key for part in parts for key in part["unknownKeys"]), key=str.encode)
        return {"entries": _merged(parts), "unknownKeys": unknown}

    return StoreQuery(store, {store.partition_of(key) for key in keys}, read, merge)


async def key_range(
    store: StoreOfPath,
    first: From = None,
    to: To = None,
    prefix: Prefix = "",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> StoreQuery:
    """A page of the entries from the first key to the last, both included, in the order of UTF-8 bytes."""
    return _page(store, pagination.key_range(first, to, prefix), limit, cursor)


async def everything(store: StoreOfPath, limit: Limit = 100, cursor: Cursor = None) -> StoreQuery:
    """A page of all entries, in the order of their keys' UTF-8 bytes."""
    return _page(store, pagination.key_range(None, None, ""), limit, cursor)


async def count_keys(store: StoreOfPath) -> StoreQuery:
    """The exact number of keys in the partitions that are read."""

    def merge(parts: Sequence[Members]) -> Members:
        return {"count": sum(part["count"] for part in parts)}

    return StoreQuery(store, _all_partitions(store), lambda share: {"count": count(share)}, merge)


async def windows(store: StoreOfPath, key: Key, first: FromTime, last: ToTime) -> StoreQuery:
    """The windows of a key, e.g. the minutes of a shop, that start from the first time to the last, both included.

    A window without sales does not exist.
    """
    definition = store.definition
    if definition.window is None:
        raise NotWindowed(store=definition.name)
    keys = window_keys(definition, key, *pagination.milliseconds(first, last, definition.window))
    return StoreQuery(
        store,
        {store.partition_of(each) for each in keys},
        lambda share: {"entries": _entries(look_up(store, share, keys))},
        lambda parts: {"entries": _merged(parts)},
    )


def _page(store: StateStore, keys: KeyRange, limit: int, cursor: str | None) -> StoreQuery:
    name = store.definition.name
    remaining = pagination.resume(cursor, name, keys)

    def page(entries: list[Members], *, more: bool) -> Members:
        following = pagination.cursor_after(entries[-1]["key"].encode(), name, keys) if more and entries else None
        return {"entries": entries, "next": following}

    def read(share: ServingPartitions) -> Members:
        found = scan(share, remaining, limit)
        return page(_entries(found.rows), more=found.more)

    def merge(parts: Sequence[Members]) -> Members:
        entries = _merged(parts)
        more = len(entries) > limit or any(part["next"] for part in parts)
        return page(entries[:limit], more=more)

    return StoreQuery(store, _all_partitions(store), read, merge)


def _all_partitions(store: StateStore) -> Collection[int]:
    return range(store.partitions)


def _entries(rows: Sequence[Row], caller: Caller = EVERYBODY) -> list[Members]:
    return [pagination.entry_body(*row, caller) for row in rows]


def _merged(parts: Sequence[Members]) -> list[Members]:
    return sorted((entry for part in parts for entry in part["entries"]), key=lambda entry: entry["key"].encode())


def _add_routes(
    method: str,
    path: str,
    summary: str,
    query: Callable[..., Awaitable[StoreQuery]],
    model: type[BaseModel],
    *own_problems: type[Problem],
) -> None:
    """Add the route that reads all instances, and the route under /local that reads this instance.

    Args:
        query: the dependency that makes the query. Its docstring describes both routes.
        own_problems: the problems of this query, in addition to those of all queries.
    """
    QueryOfRequest = Annotated[StoreQuery, Depends(query)]  # noqa: N806 - a type

    async def everywhere(
        request: Request, scatter_gather: ScatterGatherDep, query: QueryOfRequest, max_lag: MaxLag = None
    ) -> Response:
        return json_response(await scatter_gather.read_all(request, query, max_lag))

    async def here(
        scatter_gather: ScatterGatherDep, query: QueryOfRequest, partition: Partitions = None, max_lag: MaxLag = None
    ) -> Response:
        numbers = pagination.checked_partitions(partition, query.store)
        return json_response(await scatter_gather.read_local(query, numbers, max_lag))

    text = cleandoc(query.__doc__ or "")
    local_text = f"{text}\n\nReads only the copies of this instance."
    for full_path, endpoint, title, description, errors in (
        (path, everywhere, summary, text, (*_PROBLEMS, *FORWARDING_PROBLEMS)),
        (f"/local{path}", here, f"{summary}, here", local_text, _PROBLEMS),
    ):
        router.add_api_route(
            full_path,
            endpoint,
            methods=[method],
            name=f"{query.__name__}_{endpoint.__name__}",
            summary=title,
            description=description,
            response_model=model,
            responses=problems.responses(*own_problems, *errors),
        )


_add_routes("POST", "/keys", "Several keys", several_keys, FoundKeys, *problems.BODY_PROBLEMS)
_add_routes("GET", "/range", "Keys from … to, or with a prefix", key_range, EntryPage)
_add_routes("GET", "/all", "Every entry", everything, EntryPage)
_add_routes("GET", "/count", "How many keys", count_keys, Count)
_add_routes("GET", "/windows/{key:path}", "The windows of a key", windows, Entries, NotWindowed)
