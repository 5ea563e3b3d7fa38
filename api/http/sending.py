"""How the server sends responses: what happens between the app and uvicorn."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import _types as uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from api.routing.problems import Stopping

PART_BYTES = 64 * 1024
"""The largest part of a body that uvicorn gets at once. A client must read as many bytes in the time of a request."""


def with_safe_responses(app: ASGIApp) -> ASGIApp:
    """Send large bodies in parts, and the problem ``stopping`` for a request that uvicorn cancels at the end.

    uvicorn alone would answer a cancelled request with 500.
    """

    async def responding(scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await _send_in_parts(send, message)

        try:
            await app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if scope["type"] != "http" or has_started:
                raise
            response = Stopping().response()
            response.headers["connection"] = "close"  # Otherwise uvicorn would start a request that waits for this one.
            await response(scope, receive, send)

    return responding


async def _send_in_parts(send: Send, message: Message) -> None:
    """Send a message. Send a large body in parts. uvicorn waits before a part while the client has too much to read.

    Over TLS, uvloop encrypts a part as a whole and gives it to the connection. ``get_write_buffer_size`` does not count
    these bytes. So one large part would look as if the client had read it.
    """
    body = message.get("body", b"")
    if len(body) <= PART_BYTES:
        await send(message)
        return
    for start in range(0, len(body), PART_BYTES):
        end = start + PART_BYTES
        is_last = end >= len(body) and not message.get("more_body")
        await send({"type": "http.response.body", "body": body[start:end], "more_body": not is_last})


def without_chunks(app: uvicorn.ASGI3Application, cycle: RequestResponseCycle) -> uvicorn.ASGI3Application:
    """Send a body without a known length as it is, until the end of the connection.

    Clients of HTTP/1.0 know no chunks (RFC 9112, section 6.1), but uvicorn would send chunks.
    """

    async def respond(
        scope: uvicorn.Scope, receive: uvicorn.ASGIReceiveCallable, send: uvicorn.ASGISendCallable
    ) -> None:
        has_length = True

        async def send_as_it_is(message: uvicorn.ASGISendEvent) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name == b"content-length" for name, _ in message.get("headers", ()))
                if not has_length:
                    cycle.chunked_encoding = cycle.keep_alive = False
            elif message["type"] == "http.response.body" and not has_length:
                cycle.expected_content_length = len(message.get("body", b""))  # uvicorn refuses a longer body.
            await send(message)

        await app(scope, receive, send_as_it_is)

    return respond
