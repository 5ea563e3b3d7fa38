"""Turns every error of the app into a problem response: problems, errors of FastAPI, and defects."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.http import problems

_REASONS = {
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a text",
    "string_unicode": "must be a text without half of a surrogate pair",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"),
        "must be a time with a time zone, for example 2026-01-31T09:30:00Z, or milliseconds since 1970",
    ),
    **dict.fromkeys(
        ("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        "must be a date, for example 2026-01-31",
    ),
}
"""Why a value is not allowed, by Pydantic's type of the error."""


def _reason(error: Mapping[str, Any]) -> str:
    if error["type"] == "value_error":  # A validator of this project has raised it.
        return str(error["ctx"]["error"])
    reason = _REASONS.get(error["type"]) or re.sub(r"^\w+ should ", "must ", error["msg"])
    if error["loc"][0] == "query" and error["type"].startswith("datetime") and " " in str(error["input"]):
        reason += "; write + as %2B in a query"  # A + in a query means a blank.
    return reason.replace(" after validation", "")


async def _answer_incomplete_body(_: Request, __: Exception) -> Response:
    # Nobody reads the response. Without this handler, the log gets a traceback, so any client could fill the log.
    return problems.UnreadableRequest().response()


def install(app: FastAPI) -> None:
    app.add_exception_handler(ClientDisconnect, _answer_incomplete_body)

    @app.exception_handler(problems.Problem)
    async def answer_problem(_: Request, problem: problems.Problem) -> Response:
        return problem.response()

    @app.exception_handler(HTTPException)
    async def answer_framework_error(_: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, problems.Problem):
            return error.__cause__.response()
        status = HTTPStatus(error.status_code)
        headers = dict(error.headers or {})
        if headers.get("Allow") == "GET":
            headers["Allow"] = "GET, HEAD"
        if status == HTTPStatus.NOT_FOUND:
            return problems.UnknownRoute().response()
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            return problems.MethodNotAllowed(headers=headers).response()
        title = httpx.codes.get_reason_phrase(status)
        return problems.OtherProblem(status, "http-error", title, str(error.detail), headers=headers).response()

    @app.exception_handler(RequestValidationError)
    async def answer_invalid_request(_: Request, error: RequestValidationError) -> Response:
        if isinstance(error.body, bytes):  # FastAPI parses only a body that is declared as JSON.
            return problems.NotJson().response()
        found = error.errors()[: problems.MOST_ERRORS]
        errors = [{"in": list(map(str, each["loc"])), "reason": _reason(each)} for each in found]
        return problems.InvalidParameters(errors=errors).response()

    @app.exception_handler(Exception)
    async def answer_unexpected_error(_: Request, __: Exception) -> Response:
        return problems.InternalError().response()
