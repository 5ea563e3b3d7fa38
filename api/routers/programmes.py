"""Routes for operators: check a programme file, and publish it as the next version."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from api.dependencies import OperationsDep, ProgrammeDep
from api.http import problems
from api.http.bodies import JsonRoute
from api.http.responses import NO_STORE, json_response
from api.operations import BrokerUnavailable, InvalidProgramme, PublicationUncertain
from api.schemas.operations import ProgrammeCheck, ProgrammeFile, Publication, PublishedVersion
from api.security.permissions import needs
from services.api_keys.keys import Scope
from services.domain.formats import clamped_time_text, to_milliseconds
from services.programmes.file import ProgrammeError

router = APIRouter(prefix="/v1", tags=["operations"], route_class=JsonRoute)


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
        *problems.BODY_PROBLEMS, problems.InvalidParameters, InvalidProgramme, BrokerUnavailable, PublicationUncertain
    ),
)
def publish_programme(request: Request, publication: Publication, operations: OperationsDep) -> Response:
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
    request.scope["audit_details"] = {"version": str(version.number)}
    body = {
        "version": version.number,
        "effectiveTime": clamped_time_text(version.effective_time),
        "publishedTime": clamped_time_text(version.published_time),
    }
    return json_response(body, 201, caching=NO_STORE)


def _file_problems(error: ProgrammeError) -> list[dict[str, Any]]:
    return [{"line": each.line, "path": each.path, "message": each.message} for each in error.problems]
