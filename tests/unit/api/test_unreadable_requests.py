"""Requests and bodies that the API cannot read."""

import asyncio

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from uvicorn import Config
from uvicorn.server import ServerState

from api.__main__ import ProblemProtocol
from tests.support.builders import problem_type

JSON = {"Content-Type": "application/json"}
KEYS = "/v1/stores/customer-balances/keys"
PATHS = pytest.mark.parametrize("path", ["/v1/customers/A/redemptions", "/v1/transfers", "/v1/simulate", KEYS])


@PATHS
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"hello", "it is not JSON at line 1, column 1: Expecting value"),
        (b'{\n "points": }', "it is not JSON at line 2, column 12: Expecting value"),
        (b'{"points": "1', "it is not JSON at line 1, column 12: Unterminated string starting"),
        (b"\xff", "the byte 0xFF at line 1, column 1 is not UTF-8"),
        ('{\n"é": "'.encode() + b"\xe9", "the byte 0xE9 at line 2, column 7 is not UTF-8"),
        (b'\xef\xbb\xbf{"points": "1"}', "it starts with a byte order mark"),
        ('{"points": "1"}'.encode("utf-16"), "the byte 0xFF at line 1, column 1 is not UTF-8"),
        (b'{"points": "1", "points": "2"}', "it has the member 'points' twice"),
        (b'{"a": [{"b": 1, "\\u0062": 1}]}', "it has the member 'b' twice"),
        (b'{"points": NaN}', "NaN is not a number in JSON"),
        (b'{"points": -Infinity}', "-Infinity is not a number in JSON"),
        (b"[" * 5_000, "it is nested too deeply"),
        (b"1" * 5_000, "a number has too many digits"),
    ],
)
def test_a_body_that_is_no_json_is_unreadable(client: TestClient, path: str, body: bytes, reason: str) -> None:
    """400 gives the reason and the place, from line 1 and column 1. A member that is given twice is not clear."""
    answer = client.post(path, content=body, headers={**JSON, "Idempotency-Key": "k"})

    assert "unreadable-body" == problem_type(answer, 400)
    assert reason == answer.json()["reason"]
    assert reason in answer.json()["detail"]


@PATHS
@pytest.mark.parametrize("declared", [{}, {"Content-Type": "text/plain"}], ids=["nothing", "text"])
def test_json_must_be_declared(client: TestClient, path: str, declared: dict[str, str]) -> None:
    """415 says which header to send."""
    answer = client.post(path, content=b'{"points":"1"}', headers={**declared, "Idempotency-Key": "k"})

    assert "not-json" == problem_type(answer, 415)
    assert "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET /v1/customers/%s/balance HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * 100_000), b"hello\r\n\r\n"],
    ids=["a path of 100,000 characters", "no HTTP"],
)
def test_bytes_that_are_no_request_get_a_problem(request_bytes: bytes) -> None:
    """The server itself responds to them, and ends the connection."""

    async def response() -> bytes:
        loop, config, state = asyncio.get_running_loop(), Config(FastAPI(), log_config=None), ServerState()
        config.load()
        server = await loop.create_server(lambda: ProblemProtocol(config, state, {}), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(request_bytes)
            answer = await reader.read()
            writer.close()
            return answer

    head, _, body = asyncio.run(asyncio.wait_for(response(), 10)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    assert f"content-length: {len(body)}".encode() in head
    assert b"urn:problem-type:loyalty:unreadable-request" in body
