"""Calls the HTTP API for the console. Each request goes through the gate with the credentials of the user."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx
from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

COOKIE = "loyalty_console"
"""The cookie with the user's API key or token. Scripts cannot read it, and browsers send it only to the console."""

_SECONDS = 40
_LIVE = b"event: live\ndata:\n\n"
_AGAIN = b"retry: 2000\n\n"
_ENDED = b"event: ended\ndata:\n\n"
_ERASED = b"event: erased\ndata: {}\n\n"


class Answer(NamedTuple):
    """A response of the API. ``body`` is the JSON object."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def is_good(self) -> bool:
        return self.status < 300  # noqa: PLR2004 - RFC 9110


def credentials(request: Request) -> dict[str, str]:
    """The header with the credentials of the user. Empty if they are not ASCII, because then they are not valid."""
    text = request.cookies.get(COOKIE, "")
    return {"Authorization": f"Bearer {text}"} if text and text.isascii() and text.isprintable() else {}


async def call(
    request: Request, method: str, path: str, *, json: Any = None, key: str | None = None, **query: Any
) -> Answer:
    """Send a request to the API of this process, with the credentials of the user of the console.

    Args:
        path: the path, percent-encoded.
        key: the Idempotency-Key.
        query: the parameters of the query. Those that are None or empty are not sent.
    """
    # A forged form can have a key that is not ASCII. UTF-8 can encode each key, and the API refuses such a key.
    headers = httpx.Headers(credentials(request) | ({"Idempotency-Key": key} if key else {}), encoding="utf-8")
    parameters = {name: value for name, value in query.items() if value not in (None, "")}
    # A failed login counts for the address of the user.
    client = (request.client.host, request.client.port) if request.client else ("", 0)
    transport = httpx.ASGITransport(request.app, raise_app_exceptions=False, client=client)
    async with httpx.AsyncClient(transport=transport, base_url="http://console", timeout=_SECONDS) as http:
        response = await http.request(method, path, json=json, headers=headers, params=parameters)
    return Answer(response.status_code, response.json(), response.headers)


class ForwardedStream(Response):
    """Forwards the API's stream of events, part by part as it arrives. The first event is ``live``.

    A browser logs an error for each response that is not a stream. So a problem becomes a stream, too. If a later
    attempt can succeed, the stream is empty, and the browser connects again. Otherwise it has the event ``ended``, and
    the page makes no more attempts. If the customer does not exist any more, the event ``erased`` comes first, because
    a page that was hidden still shows the balance.

    Args:
        path: percent-encoded.
    """

    def __init__(self, request: Request, path: str) -> None:
        super().__init__()
        self._request = request
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept = {name: scope[name] for name in ("type", "http_version", "scheme", "server", "client")}
        own = [(name.lower().encode(), value.encode("latin-1")) for name, value in credentials(self._request).items()]
        last = [each for each in scope["headers"] if each[0] == b"last-event-id"]
        asked = {"method": "GET", "path": unquote(self._path), "raw_path": self._path.encode(), "query_string": b""}
        await self._request.app({**kept, **asked, "root_path": "", "headers": own + last}, receive, _as_stream(send))


def _as_stream(send: Send) -> Send:
    """Begin a stream with the event ``live``. Send a stream in place of each response that has another status than 200.

    A browser cannot distinguish these streams before their first event.
    """
    is_replaced = False

    async def replaced(message: Message) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start" and message["status"] != HTTPStatus.OK:
            is_replaced = True
            may_succeed = message["status"] >= HTTPStatus.TOO_MANY_REQUESTS
            erased = _ERASED if message["status"] == HTTPStatus.NOT_FOUND else b""
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({**message, "status": int(HTTPStatus.OK), "headers": headers})
            await send({"type": "http.response.body", "body": _AGAIN if may_succeed else erased + _ENDED})
        elif message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": _LIVE, "more_body": True})
        elif not is_replaced:
            await send(message)

    return replaced
