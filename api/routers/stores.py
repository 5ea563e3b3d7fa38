"""Queries on any store of the table: each from all instances and, under /local, from what this instance has alone."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from api.http import pagination, problems
from api.http.pagination import Key, Partitions, StoreName
from api.http.parameters import IfNoneMatch, MaxLag, MinSequence, OpenedTime, Timeout
from api.http.problems import Problem
from api.routing import store_queries
from api.routing.lookup import KeyQueries, KeyQuery
from api.routing.scatter_gather import StoreQueries
from api.routing.store_queries import StoreQuery, the_store
from api.schemas.documentation import FRESHNESS_HEADERS
from services.state_stores.definition import ReadConsistency
from services.state_stores.store import LocalStores

router = APIRouter(prefix="/v1/stores/{store}", tags=["stores"])
look_ups = APIRouter(prefix="/v1/stores/{store}", tags=["stores"])
"""Of single keys; see ``DirectRoutes``."""

Erased = Annotated[
    bool,
    Query(description="Wait instead until the account that was opened at openedTime, or earlier, is gone (404)."),
]

_ERRORS: tuple[type[Problem], ...] = (
    problems.UnknownStore,
    problems.InvalidParameters,
    problems.Restoring,
    problems.Starting,
    problems.Stopping,
    problems.TooStale,
)
_OF_OTHERS = (
    problems.Rebalancing,
    problems.OwnerUnreachable,
    problems.OwnerTimeout,
)
_ONE_KEY: dict[int | str, dict[str, Any]] = {
    200: {"headers": FRESHNESS_HEADERS},
    304: {"description": "The caller's copy (If-None-Match) is the current one.", "headers": FRESHNESS_HEADERS},
}


@look_ups.get(
    "/keys/{key:path}",
    summary="One key",
    response_model=pagination.StoreEntry,
    responses={
        **_ONE_KEY,
        **problems.responses(
            problems.UnknownKey,
            *_ERRORS,
            problems.SequenceNotReached,
            problems.NotTheOwner,
            *_OF_OTHERS,
        ),
    },
)
async def one_key(  # noqa: PLR0913 - one parameter a parameter of the request
    request: Request,
    store: StoreName,
    key: Key,
    min_sequence: MinSequence = 0,
    opened_time: OpenedTime = 0,
    *,
    erased: Erased = False,
    timeout_seconds: Timeout = 0,
    max_lag: MaxLag = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The entry of a key; any instance answers for every key, as it does for a customer's balance."""
    found = await the_store(request, store)
    key_queries: KeyQueries = request.app.state.key_queries
    render = pagination.renderer(found, key.encode(), if_none_match)
    return await key_queries.answer(
        request,
        KeyQuery(
            found, key.encode(), render, ReadConsistency(min_sequence, opened_time, erased), timeout_seconds, max_lag
        ),
    )


@look_ups.get(
    "/local/keys/{key:path}",
    summary="One key, here",
    response_model=pagination.StoreEntry,
    responses={**_ONE_KEY, **problems.responses(problems.UnknownKey, problems.NotHere, *_ERRORS)},
)
async def one_key_here(request: Request, store: StoreName, key: Key, if_none_match: IfNoneMatch = None) -> Response:
    """The entry of a key from the copy that is here, the owner's or a standby's; the headers say which."""
    found = await the_store(request, store)
    stores: LocalStores = request.app.state.stores
    partition = found.partition_of(key.encode())
    if stores.materialiser.restored and partition not in found.tasks:
        raise problems.NotHere(partition)
    key_queries: KeyQueries = request.app.state.key_queries
    render = pagination.renderer(found, key.encode(), if_none_match)
    return await key_queries.answer_here(KeyQuery(found, key.encode(), render))


class Operation(NamedTuple):
    """A question about several keys, and the shape of its answer."""

    method: str
    path: str
    summary: str
    query: Callable[..., Awaitable[StoreQuery]]
    model: type[BaseModel]
    errors: tuple[type[Problem], ...] = ()


OPERATIONS = (
    Operation(
        "POST",
        "/keys",
        "Several keys",
        store_queries.several_keys,
        pagination.FoundKeys,
        (problems.UnreadableBody, problems.BodyTooLarge),
    ),
    Operation("GET", "/range", "Keys from … to, or with a prefix", store_queries.key_range, pagination.EntryPage),
    Operation("GET", "/all", "Every entry", store_queries.everything, pagination.EntryPage),
    Operation("GET", "/count", "How many keys", store_queries.count_keys, pagination.Count),
    Operation(
        "GET",
        "/windows/{key:path}",
        "The windows of a key",
        store_queries.windows,
        pagination.Entries,
        (problems.NotWindowed,),
    ),
)


def _add(operation: Operation) -> None:
    """Both routes of an operation: all instances, and this one."""

    async def everywhere(
        request: Request,
        max_lag: MaxLag = None,
        query: StoreQuery = Depends(operation.query),  # noqa: B008
    ) -> Response:
        asked: StoreQueries = request.app.state.store_queries
        return await asked.everywhere(request, query, max_lag)

    async def here(
        request: Request,
        partition: Partitions = None,
        max_lag: MaxLag = None,
        query: StoreQuery = Depends(operation.query),  # noqa: B008
    ) -> Response:
        asked: StoreQueries = request.app.state.store_queries
        return await asked.here(query, pagination.checked_partitions(partition, query.store), max_lag)

    name, text = operation.query.__name__, operation.query.__doc__ or ""
    for path, endpoint, summary, description, errors in (
        (operation.path, everywhere, operation.summary, text, (*_ERRORS, *_OF_OTHERS)),
        (
            f"/local{operation.path}",
            here,
            f"{operation.summary}, here",
            f"{text}\n\nOnly copies that are here.",
            _ERRORS,
        ),
    ):
        router.add_api_route(
            path,
            endpoint,
            methods=[operation.method],
            name=f"{name}_{endpoint.__name__}",
            summary=summary,
            description=description,
            response_model=operation.model,
            responses=problems.responses(*operation.errors, *errors),
        )


for each in OPERATIONS:
    _add(each)
