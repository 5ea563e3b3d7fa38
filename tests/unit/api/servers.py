"""The HTTP server in a thread, with a small app, and a client that sends its bytes."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from api.http.server import LimitedServer, server_of
from infra.local.ports import HOST, free_port
from services.settings import Settings
from services.tls import certificate_of
from tests.support.waiting import wait_for

PATIENCE_SECONDS = 30.0
LARGE_BYTES = 64 * 2**20
"""More than the buffers of the system for a connection."""
STREAMED_BYTES = 5_000_000

app = FastAPI()


@app.get("/")
async def answer(seconds: float = 0) -> str:
    await asyncio.sleep(seconds)
    return "answer"


@app.get("/livez")
async def livez() -> str:
    return "alive"


@app.get("/large")
async def large() -> Response:
    return Response(bytes(LARGE_BYTES))


@app.get("/streamed")
async def streamed() -> Response:
    return StreamingResponse(bytes(STREAMED_BYTES // 100) for _ in range(100))


@app.get("/caller")
async def caller(request: Request) -> list[str]:
    assert request.client
    return [request.client.host, request.url.scheme]


@app.post("/")
async def size(request: Request) -> int:
    return len(await request.body())


@app.post("/authorization")
async def authorization(request: Request) -> str:
    await request.body()
    return request.headers.get("authorization", "none")


@contextmanager
def serving(grace_seconds: int = 1, **changes: Any) -> Iterator[Settings]:
    """A server with these settings, which ends at the end of the block."""
    settings = Settings(api_port=free_port(), **{"request_timeout": "PT1S", **changes})
    with running(server_of(app, settings, certificate_of(settings), grace_seconds)):
        yield settings


@contextmanager
def running(server: LimitedServer) -> Iterator[None]:
    """A server in a thread, which ends at the end of the block."""
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for("the start of the server", lambda: server.started)
        yield
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def raw(settings: Settings, *parts: bytes, pause: float = 0.0) -> tuple[int, str]:
    """Send the parts, and read to the end. Returns the status (0 without a response) and the problem."""
    head, _, body = exchange(settings, *parts, pause=pause).partition(b"\r\n\r\n")
    status = int(head[9:12] or 0)
    return status, orjson.loads(body)["type"].rpartition(":")[2] if status >= 400 else ""


def exchange(settings: Settings, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send the parts, with a pause between them. Returns what arrives until the end."""
    with socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS) as connection:
        try:
            for number, part in enumerate(parts):
                time.sleep(pause if number else 0)
                connection.sendall(part)
            connection.settimeout(PATIENCE_SECONDS)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has closed the connection already
        received = b""
        try:
            while part := connection.recv(65_536):
                received += part
        except ConnectionResetError:
            pass
    return received
