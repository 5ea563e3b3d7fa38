"""The requests that an instance sends to a peer, the responses, and the errors if there is no response."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import orjson
from fastapi import Request, Response
from starlette.types import Scope

from api.http.problems import MEDIA_TYPE, TYPE_PREFIX, Problem
from api.routing.problems import OwnerTimeout, OwnerUnreachable, Rebalancing
from api.security.caller import Caller
from api.security.problems import ForwardRefused

FORWARDED_TO = "Loyalty-Forwarded-To"
"""The header of a forwarded request with the role in which the receiver reads its copy."""
GROUP = "Loyalty-Group"
"""The header of a forwarded request with the group of the sender."""
DEADLINE = "Loyalty-Deadline"
"""The header of a forwarded request with the seconds until the deadline of the client."""

_REQUEST_HEADERS = (
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "if-none-match",
    "last-event-id",
    "traceparent",
    "tracestate",
    "x-request-id",
)
"""The headers of a client's request that an instance forwards."""


def note_role(scope: Scope, group: str) -> None:
    """Put the role of a forwarded request into its scope.

    Raises ForwardRefused if an instance of another group has sent it: two deployments can have the same address, one
    after the other or by a wrong setting. Release 0.1 sends no group.
    """
    scope["role"] = _received(scope, FORWARDED_TO)
    if scope["role"] and _received(scope, GROUP) not in {None, group}:
        raise ForwardRefused


def role_in(request: Request) -> str | None:
    """The role in which a forwarded request reads; None for the request of a client."""
    role: str | None = request.scope.get("role")
    return role


def _received(scope: Scope, name: str) -> str | None:
    """A header of a request; None if it is absent. Starlette's lookup of an absent header is slow: it raises."""
    wanted = name.lower().encode()
    for header, value in scope["headers"]:
        if header == wanted:
            return str(value, "latin-1")
    return None


def seconds_left(request: Request) -> float:
    """Seconds until the deadline that a peer or a client has sent; infinity without a deadline."""
    try:
        seconds = float(_received(request.scope, DEADLINE) or "inf")
    except ValueError:
        return math.inf
    return math.inf if math.isnan(seconds) else max(0.0, seconds)


class PeerError(Exception):
    """A peer did not respond.

    Attributes:
        outcome: the label of the metric.
    """

    outcome: str


class PeerUnreachableError(PeerError):
    """The peer refused or closed the connection."""

    outcome = "unreachable"


class PeerTimeoutError(PeerError):
    """The peer did not respond in time."""

    outcome = "timeout"


def no_answer(partition: int, failures: Mapping[str, PeerError]) -> Problem:
    """The problem of a request that no instance has answered. ``failures`` are the errors of the peers by URL."""
    if not failures:
        return Rebalancing(partition=partition)
    timed_out = any(isinstance(error, PeerTimeoutError) for error in failures.values())
    kind = OwnerTimeout if timed_out else OwnerUnreachable
    return kind(partition=partition, tried=list(failures))


class PeerRequest(NamedTuple):
    """A request to a peer.

    Attributes:
        path: the path and the query, percent-encoded.
        caller: the caller whose request this is; None: this instance asks for itself.
    """

    method: str
    path: bytes
    headers: Mapping[str, str] = {}
    content: bytes | None = None
    caller: Caller | None = None

    @classmethod
    async def from_client(cls, request: Request, path: bytes | None = None) -> "PeerRequest":
        """Copy the request of a client. ``path`` replaces its path and query."""
        if path is None:
            path, query = request.scope.get("raw_path") or request.url.path.encode(), request.scope["query_string"]
            path = path + b"?" + query if query else path
        copied = {name: value for name in _REQUEST_HEADERS if (value := request.headers.get(name)) is not None}
        content = await request.body() if request.method == "POST" else None
        return cls(request.method, path, copied, content, request.scope.get("caller"))


class PeerResponse(NamedTuple):
    """The response of an instance, without the headers that belong to the connection."""

    content: bytes
    status_code: int
    headers: Mapping[str, str]

    @classmethod
    def from_problem(cls, problem: Problem) -> "PeerResponse":
        """The response that a peer would get for a problem of this instance."""
        response = problem.response()
        return cls(bytes(response.body), response.status_code, dict(response.headers))

    def response(self, *_: object) -> Response:
        """The response for the client. It ignores the arguments that ``LocalRead.response`` needs."""
        return Response(*self)

    @property
    def problem_code(self) -> str | None:
        """The last part of the problem type; None if the response is not a problem."""
        if self.headers.get("content-type") != MEDIA_TYPE:
            return None
        try:
            return str(orjson.loads(self.content)["type"]).removeprefix(TYPE_PREFIX)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
