"""Routes for operators: the state of the system, its settings, dead letters, and versions of the programme."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from api.dependencies import (
    PLACE_OF_STREAM,
    LocalDep,
    LocatorDep,
    MetricsDep,
    OperationsDep,
    ProgrammeDep,
    StoresDep,
    StreamsDep,
)
from api.events.streams import MEDIA_TYPE, START, Event, TooManyStreams
from api.http import problems
from api.http.bodies import JsonRoute
from api.http.parameters import Limit
from api.http.responses import NO_STORE, json_response
from api.operations import BrokerUnavailable, Excerpt, InvalidProgramme, UnknownDeadLetter
from api.routers.instances import instance_list
from api.schemas.operations import (
    AuditRunList,
    CallerReport,
    DeadLetterList,
    ProgrammeCheck,
    ProgrammeFile,
    Publication,
    PublishedVersion,
    Replay,
    ReplayOrder,
    StatusReport,
)
from api.security.permissions import caller_of, needs
from services.api_keys.keys import Scope
from services.domain.formats import clamped_time_text, to_milliseconds
from services.messaging.avro import Record
from services.messaging.dead_letters import RecordPosition
from services.programmes.file import ProgrammeError
from services.status import ApiState, Rates, Status

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
    responses=problems.responses(BrokerUnavailable),
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
    responses=problems.responses(BrokerUnavailable),
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
        **problems.responses(BrokerUnavailable, TooManyStreams),
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


@router.get(
    "/dead-letters",
    dependencies=[needs(Scope.OPERATE, Scope.DEAD_LETTERS)],
    summary="Dead letters",
    response_model=DeadLetterList,
    responses=problems.responses(problems.InvalidParameters, BrokerUnavailable),
)
async def dead_letters(
    request: Request,
    operations: OperationsDep,
    reason: Annotated[
        str | None, Query(max_length=200, description="Only those with this text in their reason, in any case.")
    ] = None,
    limit: Limit = 50,
) -> Response:
    """The newest dead letters, and how many there are for each reason. A record counts once for each reason.

    The response can be ten seconds old.
    """
    reasons, newest = await operations.newest_dead_letters(reason, limit)
    shows_bytes = Scope.DEAD_LETTERS in caller_of(request).scopes

    def response() -> Response:
        body = {
            "total": reasons.total(),
            "reasons": dict(reasons.most_common()),
            "deadLetters": [_letter_body(letter, shows_bytes=shows_bytes) for letter in newest],
        }
        return json_response(body, caching=NO_STORE)

    return await run_in_threadpool(response)  # To render many letters takes too long for the event loop.


@router.post(
    "/dead-letters/replay",
    dependencies=[needs(Scope.DEAD_LETTERS)],
    summary="Publish dead letters again",
    response_model=Replay,
    responses=problems.responses(
        *problems.BODY_PROBLEMS, problems.InvalidParameters, UnknownDeadLetter, BrokerUnavailable
    ),
)
def replay(order: ReplayOrder, operations: OperationsDep) -> Response:
    """Publish the original keys and values to their original topics again. The dead letters stay in the list.

    An invoice that was already processed is not counted again.
    """
    wanted = {RecordPosition(*map(int, each.split(":"))) for each in order.positions}
    letters, found = operations.select(wanted)
    body = {
        "selected": found.total(),
        "published": 0 if order.dry_run else operations.replay(letters, found),
        "topics": found,
        "dryRun": order.dry_run,
    }
    return json_response(body, caching=NO_STORE)


@router.get(
    "/audits",
    dependencies=[needs(Scope.OPERATE)],
    summary="Runs of the audit",
    response_model=AuditRunList,
    responses=problems.responses(problems.InvalidParameters, BrokerUnavailable),
)
async def audits(operations: OperationsDep, limit: Limit = 10) -> Response:
    """The newest runs of `loyalty audit` with what they have found. They name customers by pseudonyms."""
    found = (await operations.audits())[:limit]

    def response() -> Response:
        return json_response({"runs": [_run_body(run) for run in found]}, caching=NO_STORE)

    return await run_in_threadpool(response)  # Each run can have a thousand findings.


@router.post(
    "/programmes/check",
    dependencies=[needs(Scope.PROGRAMME_PUBLISH)],
    summary="Check a programme file",
    response_model=ProgrammeCheck,
    responses=problems.responses(*problems.BODY_PROBLEMS, problems.InvalidParameters),
)
async def check_programme(file: ProgrammeFile, programme: ProgrammeDep) -> Response:
    """All problems of a programme file. Nothing is stored."""
    try:
        await programme.check(file.programme)
    except ProgrammeError as error:
        return json_response({"valid": False, "problems": _file_problems(error)}, caching=NO_STORE)
    return json_response({"valid": True, "problems": []}, caching=NO_STORE)


@router.post(
    "/programmes",
    dependencies=[needs(Scope.PROGRAMME_PUBLISH)],
    summary="Publish a programme file",
    status_code=201,
    response_model=PublishedVersion,
    responses=problems.responses(
        *problems.BODY_PROBLEMS, problems.InvalidParameters, InvalidProgramme, BrokerUnavailable
    ),
)
def publish_programme(publication: Publication, operations: OperationsDep) -> Response:
    """Publish a file as the next version. It decides about all events from its time on. Versions cannot be removed.

    The store `programmes` shows all versions.
    """
    effective_time = None
    if publication.effective_from is not None:
        try:
            effective_time = to_milliseconds(datetime.fromisoformat(publication.effective_from))
        except (ValueError, TypeError) as error:
            reason = "must be a time with an offset, for example 2026-12-01T00:00:00Z"
            raise problems.InvalidParameters(errors=[{"in": ["body", "effectiveFrom"], "reason": reason}]) from error
    try:
        version = operations.publish_programme(publication.programme, effective_time)
    except ProgrammeError as error:
        reason = "; ".join(str(error).splitlines())
        raise InvalidProgramme(reason=reason, problems=_file_problems(error)) from error
    body = {
        "version": version.number,
        "effectiveTime": clamped_time_text(version.effective_time),
        "publishedTime": clamped_time_text(version.published_time),
    }
    return json_response(body, 201, caching=NO_STORE)


def _file_problems(error: ProgrammeError) -> list[dict[str, Any]]:
    return [{"line": each.line, "path": each.path, "message": each.message} for each in error.problems]


def _run_body(run: Record) -> dict[str, Any]:
    return {
        "id": run["RunID"],
        "startedTime": clamped_time_text(run["StartedTime"]),
        "endedTime": clamped_time_text(run["EndedTime"]),
        "actor": run["Actor"],
        "outcome": run["Outcome"],
        "accounts": run["Accounts"],
        "entries": run["Entries"],
        "notRecomputed": run["NotRecomputed"],
        "compared": {each["Place"]: each["Number"] for each in run["Compared"]},
        "differences": run["Differences"],
        "findings": [{name.lower(): text for name, text in each.items()} for each in run["Findings"]],
        "unreadable": run["Unreadable"],
        "notes": run["Notes"],
    }


def _letter_body(letter: Excerpt, *, shows_bytes: bool) -> dict[str, Any]:
    value = letter.value if shows_bytes else None
    return {
        "position": str(letter.position),
        "time": clamped_time_text(letter.time),
        "topic": letter.topic,
        "origin": str(letter.origin) if letter.origin else None,
        "reason": letter.reason,
        "size": letter.size,
        "key": letter.key.decode("utf-8", "replace") if letter.key is not None and shows_bytes else None,
        "text": None if value is None else value.decode("utf-8", "replace"),
        "hex": None if value is None else value.hex(" "),
    }


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
            {
                "name": name,
                "records": records,
                "rate": rates and _rounded(rates.topics.get(name)),
                "lag": lags[name],
            }
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
