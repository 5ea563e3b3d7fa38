"""Routes for operators: dead letters, and runs of the audit."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from api.dependencies import OperationsDep
from api.http import problems
from api.http.bodies import JsonRoute
from api.http.parameters import LONGEST_PAGE, IsInteger, Limit
from api.http.responses import NO_STORE, json_response
from api.operations import BrokerUnavailable, Excerpt, ReplayNeedsPipeline, UnknownDeadLetter
from api.schemas.fields import must_match
from api.schemas.operations import AuditRunList, DeadLetterList, Replay, ReplayOrder
from api.security.permissions import caller_of, needs
from api.security.problems import NotYours
from services.api_keys.keys import Scope
from services.domain.formats import clamped_time_text
from services.messaging.avro import Record
from services.messaging.dead_letters import Age, RecordPosition, positions_text
from services.messaging.replaying import replayed_since

router = APIRouter(prefix="/v1", tags=["operations"], route_class=JsonRoute)

_CURSOR = "[0-9]+[.][0-9]+[.][0-9]+"
_NO_CURSOR = "is not a cursor: use next of a response"


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
    limit: Annotated[
        int, Query(ge=0, le=LONGEST_PAGE, description="Entries in one page. 0 gives only the numbers."), IsInteger
    ] = 50,
    cursor: Annotated[
        str | None, Query(max_length=100, description="`next` of the previous page."), must_match(_CURSOR, _NO_CURSOR)
    ] = None,
) -> Response:
    """The newest dead letters, and how many there are for each reason. A record counts once for each reason.

    The response can be ten seconds old.
    """
    before = _age_of(cursor) if cursor else None
    # One more than the page has shows whether there is a next page.
    reasons, newest = await operations.newest_dead_letters(reason, limit + 1, before)
    page = newest[:limit]
    caller = caller_of(request)
    shows_bytes = Scope.DEAD_LETTERS in caller.scopes and not caller.is_limited
    # Only dead letters with their bytes are an export.
    request.scope["is_export"] = shows_bytes and bool(page)

    def response() -> Response:
        body = {
            "total": reasons.total(),
            "reasons": dict(reasons.most_common()),
            "deadLetters": [_letter_body(letter, shows_bytes=shows_bytes) for letter in page],
            "next": _cursor_of(page[-1].age) if page and len(newest) > limit else None,
        }
        return json_response(body, caching=NO_STORE)

    return await run_in_threadpool(response)  # To render many letters takes too long for the event loop.


@router.post(
    "/dead-letters/replay",
    dependencies=[needs(Scope.DEAD_LETTERS)],
    summary="Publish dead letters again",
    response_model=Replay,
    responses=problems.responses(
        *problems.BODY_PROBLEMS, problems.InvalidParameters, UnknownDeadLetter, ReplayNeedsPipeline, BrokerUnavailable
    ),
)
def replay(request: Request, order: ReplayOrder, operations: OperationsDep) -> Response:
    """Publish the original keys and values to their original topics again. The dead letters stay in the list.

    Without `older`, the replay leaves out records that became dead letters more than `LOYALTY_REPEAT_HORIZON` (nine
    days) ago, and a record that was already processed is not counted again. A caller that is limited to one card or to
    some shops gets 403 `not-yours`, because a dead letter can be of any card and shop.
    """
    wanted = {RecordPosition(*map(int, each.split(":"))) for each in order.positions}
    request.scope["audit_details"] = {
        "positions": positions_text(wanted),
        "dryRun": str(order.dry_run).lower(),
        "older": str(order.older).lower(),
    }
    if caller_of(request).is_limited:
        raise NotYours
    since = replayed_since(operations.settings, older=order.older)
    letters, found, left_out = operations.select(wanted, since)
    body = {
        "selected": found.total(),
        "published": 0 if order.dry_run else operations.replay(letters, found, since),
        "leftOut": left_out,
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


def _cursor_of(age: Age) -> str:
    return f"{age.time}.{age.position.partition}.{age.position.offset}"


def _age_of(cursor: str) -> Age:
    time, partition, offset = map(int, cursor.split("."))
    return Age(time, RecordPosition(partition, offset))


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
