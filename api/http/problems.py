"""The errors of the API. Each response is application/problem+json (RFC 9457).

One class defines one problem: its status, type, title, text and example. **The docstring of the class is the text that
the client reads.** Routes name the problems that they can return, and OpenAPI takes the examples from the classes.

This module has the base class and the problems of HTTP itself. Other problems are next to the code that raises them:
``api.routing.problems``, ``api.commands.problems``, ``api.security.problems``, and single ones in other modules.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self

import httpx
import orjson
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

MEDIA_TYPE = "application/problem+json"

TYPE_PREFIX = "urn:problem-type:loyalty:"
"""Problem types are names and not addresses, because a deployment has no server for their documentation."""

RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
"""The header Retry-After, for OpenAPI."""

MOST_ERRORS = 100
"""The most errors that one response reports. The client corrects them, and repeats the request."""


class ProblemBody(BaseModel):
    """An error, after RFC 9457. Some types have further members."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(description="Names the kind of problem.", examples=["urn:problem-type:loyalty:unknown-customer"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str


class Problem(Exception):  # noqa: N818 - subclasses are named after what happened
    """An error that the client can act on. Each subclass is one problem, and each instance is one occurrence of it.

    A subclass sets ``status``, ``code``, ``title``, ``retry_after`` and ``example`` in its class statement. Its
    docstring becomes ``detail``, which is a template for the members.

    Args:
        retry_after: seconds after which the client can repeat the request. None: the value of the class.
        headers: further headers of the response.
        members: members of the JSON body that the RFC does not define.

    Attributes:
        code: the last part of the problem type. Programs tell problems apart by it.
        retry_after: seconds. None: a repetition does not help.
        example: the arguments of the occurrence that OpenAPI shows.
    """

    status: HTTPStatus
    code: str
    title: str
    detail: str
    retry_after: int | None = None
    example: Mapping[str, Any] = {}

    def __init_subclass__(cls, **declared: Any) -> None:
        cls.detail = " ".join((cls.__doc__ or "").split())
        for name, value in declared.items():
            setattr(cls, name, value)

    def __init__(
        self, *, retry_after: int | None = None, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        self.members = members
        self.headers = dict(headers or {})
        self.retry_after = retry_after or self.retry_after

    def describe(self) -> str:
        """The detail of this occurrence."""
        texts = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else "unknown" if value is None else value
            for name, value in self.members.items()
        }
        return self.detail.format_map(texts)

    def response(self) -> Response:
        body = {
            "type": TYPE_PREFIX + self.code,
            "title": self.title,
            "status": self.status.value,
            "detail": self.describe(),
            **self.members,
        }
        headers = self.headers if self.retry_after is None else {**self.headers, "Retry-After": str(self.retry_after)}
        return Response(orjson.dumps(body), self.status, headers, MEDIA_TYPE)


class OtherProblem(Problem):
    """A problem that has no class: an error of the framework, or a problem that another instance sent."""

    def __init__(self, status: int, code: str, title: str, detail: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.status = HTTPStatus(status)
        self.code = code
        self.title = title
        self.detail = detail

    @classmethod
    def from_response(cls, content: bytes, retry_after: str | None) -> Self:
        """The problem in the response of another instance."""
        body = orjson.loads(content)
        code = body.pop("type").removeprefix(TYPE_PREFIX)
        return cls(code=code, retry_after=int(retry_after) if retry_after else None, **body)

    def describe(self) -> str:
        return self.detail


def responses(*kinds: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for these problems, with an example of each. Every request can be unreadable."""
    described: dict[int | str, dict[str, Any]] = {}
    kinds = (UnreadableRequest, *kinds)
    for kind in kinds:
        response = described.setdefault(
            kind.status.value,
            {
                # The phrases of HTTPStatus depend on the version of Python.
                "description": httpx.codes.get_reason_phrase(kind.status),
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
            },
        )
        problem = kind(**kind.example)
        example = {"summary": kind.title, "value": orjson.loads(problem.response().body)}
        response["content"][MEDIA_TYPE]["examples"][kind.code] = example
        if problem.retry_after is not None:
            response["headers"] = {"Retry-After": RETRY_AFTER}
    return described


class NotFound(Problem, status=HTTPStatus.NOT_FOUND):
    """The requested object does not exist."""


class BadRequest(Problem, status=HTTPStatus.BAD_REQUEST):
    """The client must correct the request before it repeats it."""


class Unprocessable(Problem, status=HTTPStatus.UNPROCESSABLE_ENTITY):
    """The values of the request are not allowed."""


class Conflict(Problem, status=HTTPStatus.CONFLICT):
    """The state of the customer or of an earlier command does not allow the request."""


class Unavailable(Problem, status=HTTPStatus.SERVICE_UNAVAILABLE, retry_after=1):
    """A temporary state. The client can repeat the request."""


class UnknownRoute(NotFound, code="unknown-route", title="No such path"):
    """There is no such path. Correct it: /openapi.json has all paths."""


class MethodNotAllowed(
    Problem, status=HTTPStatus.METHOD_NOT_ALLOWED, code="method-not-allowed", title="The path has no such method"
):
    """The path does not take this method. Use a method in the header Allow."""


class UnreadableRequest(BadRequest, code="unreadable-request", title="The request cannot be read"):
    """Send an HTTP/1.1 request with a known method and one header Host. Path and query must be percent-encoded UTF-8
    without a #, and have at most 65,535 characters.
    """


class HeadersTooLarge(
    Problem,
    status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    code="headers-too-large",
    title="The headers are too large",
):
    """The headers of the request have more than 65,536 bytes together. The trailers, and the bytes between two parts of
    the body, have the same limit. Send fewer or shorter headers and trailers.
    """


class RequestTimeout(
    Problem, status=HTTPStatus.REQUEST_TIMEOUT, code="request-timeout", title="The request did not arrive in time"
):
    """The request was not complete in time (LOYALTY_REQUEST_TIMEOUT). Send it again on a new connection."""


class TooManyConnections(Unavailable, code="too-many-connections", title="Too many connections"):
    """This instance has reached its limit of open connections (LOYALTY_MOST_CONNECTIONS). Close connections that you do
    not use, and repeat the request later.
    """


class UnreadableBody(
    BadRequest,
    code="unreadable-body",
    title="The body cannot be read",
    example={"reason": "it is not JSON at line 1, column 11: Expecting value"},
):
    """The body must be JSON in UTF-8 that has each member once: {reason}. Correct the body."""


class NotJson(
    Problem, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, code="not-json", title="The body is not declared as JSON"
):
    """The body is not declared as JSON. Send the body as JSON, with the header Content-Type: application/json."""


class BodyTooLarge(
    Problem,
    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    code="body-too-large",
    title="The body is too large",
    example={"limit": 2**20},
):
    """This path accepts up to {limit} bytes. Send a smaller body."""


BODY_PROBLEMS = (UnreadableBody, NotJson, BodyTooLarge)
"""The problems of a body before its members are checked."""


class InvalidParameters(
    Unprocessable,
    code="invalid-parameters",
    title="Invalid parameters",
    example={"errors": [{"in": ["query", "minSequence"], "reason": "must be a whole number, for example 42"}]},
):
    """Each error has the members ``in``, which is the path to the value, and ``reason``."""

    @classmethod
    def in_query(cls, parameter: str, reason: str) -> Self:
        return cls(errors=[{"in": ["query", parameter], "reason": reason}])

    def describe(self) -> str:
        errors = self.members["errors"]
        return "; ".join(f"{'.'.join(each['in'][1:]) or each['in'][0]}: {each['reason']}" for each in errors)


class InternalError(
    Problem,
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
    code="internal-error",
    title="Internal Server Error",
):
    """The request failed because of a defect. The log of the server has the cause. Report it to the operator."""
