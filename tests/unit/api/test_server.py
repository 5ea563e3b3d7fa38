"""The HTTP server itself, over sockets: slow clients, large and wrong requests, and its end."""

import asyncio
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from threading import Event, Thread

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from api.http.bodies import BodyLimitMiddleware
from api.http.server import HEADER_BYTES, LimitedProtocol, server_of
from api.routing.peer_client import KEEP_ALIVE_SECONDS
from infra.local.ports import HOST, free_port
from services.settings import Settings
from tests.support.waiting import wait_for
from tests.unit.api.servers import LARGE_BYTES, PATIENCE_SECONDS, STREAMED_BYTES, app, exchange, raw, running, serving

CHUNKED = b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
"""A request after which the server closes the connection."""


@pytest.fixture
def _frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks for slow connections at each tick, so at ten times a second."""
    monkeypatch.setattr("api.http.server._TICKS_PER_SECOND", 1)


@pytest.mark.usefixtures("_frequent_checks")
def test_slow_requests_end_and_disturb_nobody() -> None:
    """If a head or body arrives byte by byte, or not at all, the connection ends. Others are served at once."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
    loris = [b"GET / HTTP/1.1\r\nHost: a\r\n", *(b"X-%d: a\r\n" % number for number in range(300))]
    found: dict[str, tuple[int, str]] = {}

    def slow(settings: Settings, name: str, parts: list[bytes]) -> None:
        found[name] = raw(settings, *parts, pause=0.1)

    with serving() as settings, httpx.Client(base_url=settings.advertised_url) as client:
        cases = {"head": loris, "body": [head, *(b"x" for _ in range(300))], "silence": []}
        threads = [Thread(target=slow, args=(settings, *case)) for case in cases.items()]
        for thread in threads:
            thread.start()
        started, calm = time.monotonic(), 0
        while any(thread.is_alive() for thread in threads):
            assert 200 == client.get("/").status_code
            calm += 1
            assert time.monotonic() < started + PATIENCE_SECONDS
        assert {"head": (408, "request-timeout"), "body": (408, "request-timeout"), "silence": (0, "")} == found
        assert calm > 10


@pytest.mark.usefixtures("_frequent_checks")
def test_slow_responses_and_idle_connections_are_no_slow_requests() -> None:
    """A long poll takes longer than a request may. A connection is idle for longer, and then has another request."""
    with serving() as settings, httpx.Client(base_url=settings.advertised_url) as client:
        assert 200 == client.get("/?seconds=1.25").status_code
        connection = client.get("/").extensions["network_stream"].get_extra_info("client_addr")
        time.sleep(1.25)
        assert connection == client.get("/").extensions["network_stream"].get_extra_info("client_addr")


@pytest.mark.usefixtures("_frequent_checks")
def test_a_client_that_does_not_read_is_disconnected() -> None:
    """A response waits for its client only as long as a request may take. Another caller is served at once."""
    settings = Settings(api_port=free_port(), request_timeout="PT1S")
    server = server_of(app, settings, None, 1)
    connections = server.server_state.connections
    with running(server), httpx.Client(base_url=settings.advertised_url) as client:
        with socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS) as connection:
            connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            wait_for("one connection", lambda: len(connections) == 1)
            assert 200 == client.get("/").status_code
            wait_for("one connection", lambda: len(connections) == 1)
            received = 0
            with suppress(ConnectionResetError):
                while part := connection.recv(2**20):
                    received += len(part)
            assert 0 < received < LARGE_BYTES
        with client.stream("GET", "/large") as response:
            assert LARGE_BYTES == sum(map(len, response.iter_bytes()))


@pytest.mark.usefixtures("_frequent_checks")
def test_a_slow_client_gets_the_end_of_a_streamed_response() -> None:
    """Each part of the response fills the buffer again, so the buffer does not become smaller."""
    with serving(request_timeout="PT1S") as settings, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        connection.connect((HOST, settings.api_port))
        connection.sendall(b"GET /streamed HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received, started = 0, time.monotonic()
        while part := connection.recv(16_384):
            received += len(part)
            time.sleep(max(0.0, started + received / 800_000 - time.monotonic()))
        assert received > STREAMED_BYTES


def test_an_idle_connection_outlives_the_pools_of_clients() -> None:
    """Otherwise the server could close a connection while a client sends its next request, which then fails."""
    settings = Settings(api_port=free_port())
    server = server_of(app, settings, None, 1)
    with running(server), httpx.Client(base_url=settings.advertised_url) as client:
        assert 200 == client.get("/").status_code
        (connection,) = server.server_state.connections
        assert isinstance(connection, LimitedProtocol)
        wait_for("an idle connection", lambda: connection.timeout_keep_alive_task)
        timer = connection.timeout_keep_alive_task
        assert timer
        load_balancers, peers = 60.0, KEEP_ALIVE_SECONDS
        assert max(load_balancers, peers) < timer.when() - time.monotonic()


@pytest.mark.parametrize(
    "body",
    [[b"{}"], [b"{", b"}"], [b"{", b"}", b"\r\n"]],
    ids=["in one packet", "in two packets", "with a line break"],
)
def test_a_connection_is_idle_after_a_body_that_nobody_reads(
    body: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response is complete before the body arrives. A client could otherwise occupy connections for ever."""
    monkeypatch.setattr("api.http.server._KEEP_ALIVE_SECONDS", 1)
    with serving(request_timeout="PT30S") as settings:
        head = b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
        started = time.monotonic()
        assert exchange(settings, head, *body, pause=0.1).startswith(b"HTTP/1.1 405")
        assert 1 < time.monotonic() - started < PATIENCE_SECONDS


def test_line_breaks_do_not_keep_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client could otherwise occupy connections for ever without a request. Before a request they are allowed."""
    monkeypatch.setattr("api.http.server._KEEP_ALIVE_SECONDS", 1)
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving() as settings, socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS) as client:
        client.sendall(request)
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        client.sendall(b"\r\n")
        client.sendall(request)
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        client.settimeout(0.1)
        ends = time.monotonic() + PATIENCE_SECONDS
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < ends:
                client.sendall(b"\r\n")
                with suppress(TimeoutError):
                    assert b"" == client.recv(65_536)
                    break
        assert time.monotonic() < ends


@pytest.mark.parametrize(
    ("proxy", "seen"), [(None, [HOST, "http"]), ("", [HOST, "http"]), (HOST, ["192.0.2.7", "https"])]
)
def test_only_a_named_proxy_names_its_callers(
    proxy: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a program of this machine could use another address for each wrong key."""
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if proxy is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxy)
    with serving() as settings:
        headers = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
        assert seen == httpx.get(f"{settings.advertised_url}/caller", headers=headers).json()


def test_connections_above_the_limit_are_refused_and_closed() -> None:
    """They get a problem without a request. A connection that ends makes room for another one."""
    with serving(most_connections=2, request_timeout="PT30S") as settings:
        url = settings.advertised_url
        with httpx.Client(base_url=url) as first, socket.create_connection((HOST, settings.api_port)):
            assert 200 == first.get("/").status_code
            assert (503, "too-many-connections") == raw(settings)
            assert 200 == first.get("/").status_code
        wait_for("a free connection", lambda: (200, "") == raw(settings, LAST))


def test_requests_that_wait_at_the_end_get_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    """They get 503, so that the client asks another instance. ``on_stop`` is called at the signal, before they end."""
    events: list[object] = []
    arrived = Event()

    waiting = FastAPI()

    @waiting.get("/")
    async def wait() -> None:
        arrived.set()
        await asyncio.sleep(10 * PATIENCE_SECONDS)

    def ask() -> None:
        events.append(raw(settings, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))

    settings = Settings(api_port=free_port())
    server = server_of(waiting, settings, None, 1, lambda: events.append("signal"))
    client = Thread(target=ask)
    with running(server):
        client.start()
        assert arrived.wait(PATIENCE_SECONDS)
        server.handle_exit(signal.SIGTERM, None)
        client.join(PATIENCE_SECONDS)
        assert not client.is_alive()
    assert ["signal", (503, "stopping")] == events
    assert not [each for each in caplog.records if each.levelname in {"ERROR", "WARNING"}]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_a_request_names_one_host(shared_server: Settings, request_: bytes, status: int) -> None:
    """Without that, or with two, a proxy and the API could see different hosts (RFC 9112, section 3.2)."""
    assert (status, "unreadable-request" if status == 400 else "") == raw(shared_server, request_)


def test_a_client_of_http_1_0_gets_a_stream_without_chunks(shared_server: Settings) -> None:
    """It would take the sizes of the chunks for a part of the body (RFC 9112, section 6.1)."""
    head, _, body = exchange(shared_server, b"GET /streamed HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert bytes(STREAMED_BYTES) == body


def test_blanks_after_a_value_are_no_part_of_it(shared_server: Settings) -> None:
    """A forwarded header with them would be refused, and two spellings of an Idempotency-Key would be two commands."""
    head = b"POST /authorization HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n"
    assert exchange(shared_server, head + b"Authorization: Bearer x \t \r\n\r\n").endswith(b'"Bearer x"')


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"X: " + b"x" * HEADER_BYTES + b"\r\n\r\n"], (431, "headers-too-large")),
        ([b"X: " + b"x" * 40_000, b"x" * 40_000, b"x" * 40_000], (431, "headers-too-large")),
        (
            [b"".join(b"X-%d: %s\r\n" % (number, b"x" * 100) for number in range(1_000)), b"\r\n"],
            (431, "headers-too-large"),
        ),
        ([b"X: " + b"x" * 60_000 + b"\r\nConnection: close\r\n\r\n"], (200, "")),
    ],
    ids=["one header", "one without an end", "many headers", "just small enough"],
)
def test_large_headers_are_refused(shared_server: Settings, parts: list[bytes], expected: tuple[int, str]) -> None:
    """The server refuses a large header before its end."""
    assert expected == raw(shared_server, b"GET / HTTP/1.1\r\nHost: a\r\n", *parts, pause=0.05)


def test_a_large_body_is_no_large_header(shared_server: Settings) -> None:
    """Head and body can arrive together."""
    answer = httpx.post(shared_server.advertised_url, content=b"x" * 2**20)
    assert (200, 2**20) == (answer.status_code, answer.json())


def test_a_large_body_does_not_break_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    """The body is above the limit, but nobody reads it before the response begins. Nothing is logged."""
    streams = FastAPI()
    streams.add_middleware(BodyLimitMiddleware)

    @streams.get("/")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begin"
            await asyncio.sleep(0.2)
            yield b"end"

        return StreamingResponse(parts())

    settings = Settings(api_port=free_port())
    with running(server_of(streams, settings, None, 1)):
        body = b"5000\r\n" + b"x" * 0x5000 + b"\r\n0\r\n\r\n"
        response = exchange(settings, b"GET /" + CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close") + body)
    assert response.endswith(b"5\r\nbegin\r\n3\r\nend\r\n0\r\n\r\n")
    assert [] == [each for each in caplog.records if each.levelname == "ERROR"]


def test_the_end_of_a_large_body_is_no_large_head_of_the_next_request(shared_server: Settings) -> None:
    """One read has the last part of a body and the begin of the next head."""
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    end = b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    response = exchange(shared_server, body + b"GET /", end, pause=0.05)
    refused = exchange(
        shared_server, body + b"GET /" + end.replace(b"\r\n\r\n", b"\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
    )
    assert response.endswith(b'"answer"')
    assert b" 431 " not in response
    assert b'"answer"' not in refused


@pytest.mark.parametrize(
    ("start", "filler"),
    [
        (b"0\r\n", b"X:\r\n" * 10_000),
        (b"0\r\nX: ", b"x" * 40_000),
        (b"0\r\n", b"x" * 40_000),
        (b"1;x=", b"x" * 40_000),
        (b"1\r\nx\r\n0;x=", b"x" * 40_000),
        (b"", b"0" * 40_000),
    ],
    ids=["many trailers", "a value", "a name", "an extension", "an extension after a part", "a size"],
)
def test_a_body_with_endless_framing_is_refused(shared_server: Settings, start: bytes, filler: bytes) -> None:
    """Trailers, sizes and extensions of chunks have a limit, too. Otherwise they would fill the memory."""
    answers = (raw(shared_server, b"POST /" + CHUNKED, start, *[filler] * 3, pause=0.05) for _ in range(5))
    # If the client still sends when the server closes the connection, a reset can discard the response.
    assert (431, "headers-too-large") == next(answer for answer in answers if answer[0])


def test_small_chunks_and_requests_in_a_row_are_served(shared_server: Settings) -> None:
    """The limit of framing counts from the last part of the body."""
    small = b"1\r\nx\r\n" * 50_000 + b"0\r\nX: y\r\n\r\n"
    response = exchange(shared_server, (b"POST /" + CHUNKED + small) * 3 + LAST)
    assert 3 == response.count(b"\r\n\r\n50000")
    assert response.endswith(b'"answer"')


def test_trailers_after_the_response_end_the_connection(shared_server: Settings) -> None:
    """The client cannot take a problem for the response to its next request."""
    response = exchange(shared_server, b"GET /" + CHUNKED, b"0\r\n", *[b"X: y\r\n" * 10_000] * 3, pause=0.05)
    assert [b'"answer"'] == response.split(b"\r\n\r\n")[1:]


def test_a_trailer_can_close_the_connection(shared_server: Settings) -> None:
    """The parser drops all bytes after it, so nobody would answer the next request."""
    request = b"POST /" + CHUNKED + b"3\r\nabc\r\n0\r\nConnection: close\r\n\r\n"
    assert exchange(shared_server, request, LAST, pause=0.05).endswith(b"\r\n\r\n3")


@pytest.mark.parametrize(
    "wrong",
    [
        b"}",
        b"\r\n\n}",
        b"\x00",
        b"GET /a#1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000,
        b"POST /" + CHUNKED + b"no size\r\n",
    ],
    ids=["a byte more than the body", "after line breaks", "no HTTP", "a refused URL", "large headers", "a wrong body"],
)
def test_requests_before_wrong_bytes_get_their_responses(shared_server: Settings, wrong: bytes) -> None:
    """The API executes them. With the problem, a client would believe that its command had no effect.

    The connection ends after the last response. Requests after the wrong bytes have no effect.
    """
    slow = b"GET /?seconds=0.1 HTTP/1.1\r\nHost: a\r\n\r\n"
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    for requests, bodies in {slow: [b'"answer"'], slow + body: [b'"answer"', b"2"]}.items():
        received = exchange(shared_server, requests + wrong, LAST, pause=0.05)
        responses = received.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert bodies == [each.partition(b"\r\n\r\n")[2] for each in responses]


def test_a_waiting_request_has_its_own_time_for_its_body() -> None:
    """The server has read nothing meanwhile, so the client is not slow."""
    first = b"GET /?seconds=2.2 HTTP/1.1\r\nHost: a\r\n\r\n"
    second = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab"
    with serving(request_timeout="PT1S") as settings:
        received = exchange(settings, first + second, b"cd", pause=0.05)
    assert 2 == received.count(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"\r\n\r\n4")


def test_wrong_bytes_do_not_damage_a_response_that_has_begun(shared_server: Settings) -> None:
    """A problem in a response, or after it, would be a part of it, or the response to the next request."""
    streamed = exchange(shared_server, b"GET /streamed HTTP/1.1\r\nHost: a\r\n\r\nx")
    assert STREAMED_BYTES < len(streamed)
    assert streamed.endswith(b"\r\n0\r\n\r\n")
    refused = exchange(shared_server, b"POST /livez" + CHUNKED, b"no size\r\n", pause=0.05)
    assert refused.startswith(b"HTTP/1.1 405")
    assert 1 == refused.count(b"HTTP/1.1")


def test_a_request_learns_of_a_disconnect_before_the_next_request(caplog: pytest.LogCaptureFixture) -> None:
    """The client has sent a second request, which waits. The stream ends at once, and nothing is logged."""
    streams, begun, ended = FastAPI(), Event(), Event()

    @streams.get("/")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"part"
                    begun.set()
                    await asyncio.sleep(0.01)
            finally:
                ended.set()

        return StreamingResponse(parts())

    settings = Settings(api_port=free_port())
    with running(server_of(streams, settings, None, 1)):
        with socket.create_connection((HOST, settings.api_port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # The close is a reset.
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
            assert begun.wait(PATIENCE_SECONDS)
        assert ended.wait(PATIENCE_SECONDS)
    assert [] == [each for each in caplog.records if each.levelname == "ERROR"]


def test_a_client_that_waits_before_its_body_is_told_to_continue(shared_server: Settings) -> None:
    with socket.create_connection((HOST, shared_server.api_port)) as client:
        client.settimeout(PATIENCE_SECONDS)
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-Continue \t\r\n\r\n")
        assert b"HTTP/1.1 100 Continue\r\n\r\n" == client.recv(65_536)
        client.sendall(b"abc")
        assert client.recv(65_536).endswith(b"\r\n\r\n3")


def test_a_trailer_is_no_header(shared_server: Settings) -> None:
    """A proxy that checks the header Authorization does not look at trailers (RFC 9110, section 6.5.1)."""
    trailer = b"0\r\nAuthorization: Bearer x\r\n\r\n"
    response = exchange(shared_server, b"POST /authorization" + CHUNKED + trailer + LAST)
    assert b'"none"' in response
    assert response.endswith(b'"answer"')
