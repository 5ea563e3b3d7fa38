"""Routes for operators: the state of the system, the settings of this instance, and the caller of a request."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from api.dependencies import PLACE_OF_STREAM, LocalDep, LocatorDep, MetricsDep, OperationsDep, StoresDep, StreamsDep
from api.events.streams import MEDIA_TYPE, START, Event, TooManyStreams
from api.http import problems
from api.http.bodies import JsonRoute
from api.http.responses import NO_STORE, json_response
from api.routers.instances import instance_list
from api.schemas.operations import CallerReport, StatusReport
from api.security.permissions import caller_of, needs
from services.api_keys.keys import Scope
from services.domain.formats import clamped_time_text
from services.status import ApiState
from services.status_figures import Rates, Status

router = APIRouter(prefix="/v1", tags=["operations"], route_class=JsonRoute)

_STATUS_SECONDS = 2.0


@router.get("/caller", dependencies=[needs(*Scope)], summary="The caller of this request", response_model=CallerReport)
async def caller(request: Request) -> Response:
    """The caller of this request, its scopes and its limits."""
    found = caller_of(request)
    stores = None if found.store_ids is None else sorted(found.store_ids)
    body = {"name": found.name, "scopes": sorted(found.scopes), "card": found.card, "stores": stores}
    return json_response(body, caching=NO_STORE)


@router.get(
    "/settings",
    dependencies=[needs(Scope.OPERATE)],
    summary="The settings of this instance",
    response_model=dict[str, Any],
)
async def settings_in_force(operations: OperationsDep) -> Response:
    """All settings of this instance with their values. Passwords are hidden, also in URLs."""
    return json_response(operations.settings.shown(), caching=NO_STORE)


StatusReader = Callable[[], Awaitable[dict[str, Any]]]
"""Reads the state of the system, as the body of a status."""


async def status_reader(
    operations: OperationsDep, local: LocalDep, locator: LocatorDep, metrics: MetricsDep, stores: StoresDep
) -> StatusReader:
    async def read() -> dict[str, Any]:
        materialiser = stores.materialiser
        problem = materialiser.kafka_error or (None if materialiser.restored else "restores its stores")
        own = ApiState(metrics.exposition().decode(), problem, instance_list(locator, local))
        return _status_body(*await operations.status(own))

    return read


StatusReaderDep = Annotated[StatusReader, Depends(status_reader)]


@router.get(
    "/status",
    dependencies=[needs(Scope.OPERATE)],
    summary="What runs",
    response_model=StatusReport,
)
async def status(read_status: StatusReaderDep) -> Response:
    """What runs, the records and the lag of the topics, the work of the queries, the instances and the freshness.

    It is at most two seconds old.
    """
    return json_response(await read_status(), caching=NO_STORE)


@router.get(
    "/status/events",
    dependencies=[needs(Scope.OPERATE), PLACE_OF_STREAM],
    summary="The state of the system, every two seconds",
    response_class=Response,
    responses={
        200: {"description": "Events.", "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
        **problems.responses(TooManyStreams),
    },
)
async def status_events(request: Request, read_status: StatusReaderDep, streams: StreamsDep) -> Response:
    """Server-sent events `status`, each with the body of `GET /v1/status`."""

    async def events() -> AsyncGenerator[bytes]:
        yield START
        while True:
            yield Event("status", orjson.dumps(await read_status())).encode()
            try:
                await streams.step(asyncio.Event().wait(), _STATUS_SECONDS)
            except TimeoutError:
                continue

    return streams.response(request, events())


def _status_body(status: Status, rates: Rates | None) -> dict[str, Any]:
    lags: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for lag in status.lags:
        lags[lag.topic][lag.reader] = lag.records
    freshness = (rates and rates.freshness) or status.freshness
    within = freshness.within if freshness else {}
    return {
        "time": clamped_time_text(int(status.time * 1_000)),
        "parts": [part._asdict() for part in status.parts],
        "topics": [
            {"name": name, "records": records, "rate": rates and _rounded(rates.topics.get(name)), "lag": lags[name]}
            for name, records in status.records.items()
        ],
        "queries": [
            {
                "name": name,
                "rate": rates and _rounded(rates.queries.get(name)),
                "batchSeconds": rates and _rounded(rates.batch_seconds.get(name)),
            }
            for name in sorted(status.work)
        ],
        "instances": status.instances,
        "deadLetters": status.dead_letters,
        "freshnessSeconds": {f"{share:g}": seconds for share, seconds in within.items()},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
