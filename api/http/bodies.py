"""JSON bodies of requests. Without this module, Python's parser accepts NaN, other encodings and repeated members."""

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from api.http.problems import UnreadableBody


class JsonRoute(APIRoute):
    """A route that reads its body with ``parse_body``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse_body(await self.body())


def parse_body(body: bytes) -> Any:
    """Parse JSON (RFC 8259) in UTF-8. Raises UnreadableBody with the place, counted from 1."""
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
    except ValueError:  # Python limits the digits, because reading them takes quadratic time.
        reason = "a number has too many digits"
    raise UnreadableBody(reason=reason)


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        twice, _ = Counter(name for name, _ in members).most_common(1)[0]
        raise UnreadableBody(reason=f"it has the member {twice!a} twice")
    return found


def _refuse_constant(name: str) -> None:
    raise UnreadableBody(reason=f"{name} is not a number in JSON")
