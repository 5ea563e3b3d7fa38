"""Bodies of requests: the limit of their size, and strict JSON.

The limit applies before the whole body is in memory. Python's parser alone would accept NaN, other encodings and
repeated members.
"""

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.problems import BodyTooLarge, UnreadableBody
from api.security.permissions import checks_of

_COMMAND_BYTES = 16 * 1024
"""A command has only a few short texts."""

_WITHOUT_BODY = frozenset({"GET", "HEAD"})

_MOST_MEMBERS = 1_000
"""The most members of an object. Pydantic reports each unknown member, so millions would keep an instance busy."""

_MOST_CONTAINERS = 50_000
"""The most lists and objects of a body. The parser needs a second for a million. A basket may have 10,000 lines."""

_LARGE_BYTES = 2**20
"""As large as the largest invoice in Kafka. 1,000 cards of 128 escaped characters of six bytes have 771,010 bytes."""

_LARGE = ("/v1/stores/", "/v1/simulate", "/v1/programmes", "/v1/dead-letters", "/console/operations/")


_ONE_AT_A_TIME = CapacityLimiter(1)


class BodyLimitMiddleware:
    """Responds with 413 if Content-Length is too large, or as soon as a body becomes too large.

    No route reads the body of a GET request. Starlette reads and drops it, while a stream waits for the end of the
    connection. An exception at this place would break the stream. So here only Content-Length has a limit.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = _LARGE_BYTES if scope["path"].startswith(_LARGE) else _COMMAND_BYTES
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            await BodyTooLarge(limit=limit).response()(scope, receive, send)
            return
        if scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                # FastAPI turns an exception during the read of a body into 400, unless it is an HTTPException. The
                # error handler makes the response from the cause of the HTTPException.
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from BodyTooLarge(limit=limit)
            return message

        await self._app(scope, receive_limited, send)


class JsonRoute(APIRoute):
    """A route that reads its body with ``parse_body``, after it has checked the rights of the caller.

    FastAPI would read and parse the body first. So a caller without rights could keep an instance busy.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        checks = checks_of(self)

        async def handle_json(request: Request) -> Response:
            for check in checks:
                await check(request)
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= _COMMAND_BYTES:
            return parse_body(body)
        # The event loop continues with other requests. One body at a time, so that a caller cannot use all threads.
        return await to_thread.run_sync(parse_body, body, limiter=_ONE_AT_A_TIME)


def parse_body(body: bytes) -> Any:
    """Parse JSON (RFC 8259) in UTF-8. Raises UnreadableBody with the place, counted from 1."""
    if body.count(b"[") + body.count(b"{") > _MOST_CONTAINERS:
        # This also counts the characters in texts, because only a parser can tell them apart.
        raise UnreadableBody(reason=f"it has more than {_MOST_CONTAINERS:,} characters [ and {{")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        before = body[: error.start].decode().split("\n")
        place = f"line {len(before)}, column {len(before[-1]) + 1}"
        raise UnreadableBody(reason=f"the byte 0x{body[error.start]:02X} at {place} is not UTF-8") from error
    if text.startswith("\ufeff"):
        raise UnreadableBody(reason="it starts with a byte order mark")
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        reason = f"it is not JSON at {place}: {error.msg.removesuffix(' at')}"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError:  # Python limits the digits, because the conversion takes quadratic time.
        reason = "a number has too many digits"
    raise UnreadableBody(reason=reason)


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members) > _MOST_MEMBERS:
        reason = f"an object has {len(members):,} members, and at most {_MOST_MEMBERS:,} are allowed"
        raise UnreadableBody(reason=reason)
    found = dict(members)
    if len(found) < len(members):
        twice, _ = Counter(name for name, _ in members).most_common(1)[0]
        raise UnreadableBody(reason=f"it has the member {twice!a} twice")
    return found


def _refuse_constant(name: str) -> None:
    raise UnreadableBody(reason=f"{name} is not a number in JSON")
