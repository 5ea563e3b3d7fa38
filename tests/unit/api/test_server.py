"""The HTTP server itself, over sockets: slow and large requests, and TLS."""

import asyncio
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import orjson
import pytest
from cryptography import x509
from fastapi import FastAPI, Request, Response
from structlog.testing import capture_logs

from api.http.server import HEADER_BYTES, LimitedProtocol, LimitedServer, server_of
from api.routing.peer_client import KEEP_ALIVE_SECONDS
from infra.docker.healthy import is_healthy
from infra.local.ports import HOST, free_port
from infra.security.certificates import Authority
from services.settings import Settings, SettingsError, read_settings
from services.tls import CertificateError, certificate_of, client_context
from tests.support.waiting import wait_for

PATIENCE_SECONDS = 30.0
LARGE_BYTES = 64 * 2**20
"""More than the buffers of the system for a connection."""

app = FastAPI()


@app.get("/")
async def answer(seconds: float = 0) -> str:
    await asyncio.sleep(seconds)
    return "answer"


@app.get("/large")
async def large() -> Response:
    return Response(bytes(LARGE_BYTES))


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
    """Send the parts. Returns what arrives until the end."""
    with socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
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


def test_an_upgrade_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """HTTP allows that. uvicorn alone would answer 403 without a problem, and log two lines for each request."""
    upgrade = (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with serving() as settings:
        assert (200, "") == raw(settings, upgrade)

    assert not [each for each in caplog.records if each.levelname == "WARNING"]


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
    running, client = Thread(target=server.run, daemon=True), Thread(target=ask)
    running.start()
    wait_for("the start of the server", lambda: server.started)
    client.start()
    assert arrived.wait(PATIENCE_SECONDS)
    server.handle_exit(signal.SIGTERM, None)
    client.join(PATIENCE_SECONDS)
    running.join(PATIENCE_SECONDS)
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
def test_a_request_names_one_host(request_: bytes, status: int) -> None:
    """Without that, or with two, a proxy and the API could see different hosts (RFC 9112, section 3.2)."""
    with serving() as settings:
        assert (status, "unreadable-request" if status == 400 else "") == raw(settings, request_)


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


def test_connections_above_the_limit_are_refused_and_closed() -> None:
    """They get a problem without a request. A connection that ends makes room for another one."""
    with serving(most_connections=2, request_timeout="PT30S") as settings:
        url = settings.advertised_url
        with httpx.Client(base_url=url) as first, socket.create_connection((HOST, settings.api_port)):
            assert 200 == first.get("/").status_code
            assert (503, "too-many-connections") == raw(settings)
            assert 200 == first.get("/").status_code
        last = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        wait_for("a free connection", lambda: (200, "") == raw(settings, last))


@pytest.mark.usefixtures("_frequent_checks")
def test_slow_responses_and_idle_connections_are_no_slow_requests() -> None:
    """A long poll takes longer than a request may. A connection is idle for longer, and then has another request."""
    with serving() as settings, httpx.Client(base_url=settings.advertised_url) as client:
        assert 200 == client.get("/?seconds=1.25").status_code
        connection = client.get("/").extensions["network_stream"].get_extra_info("client_addr")
        time.sleep(1.25)
        assert connection == client.get("/").extensions["network_stream"].get_extra_info("client_addr")


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
def test_large_headers_are_refused(parts: list[bytes], expected: tuple[int, str]) -> None:
    """The server refuses a large header before its end."""
    with serving(request_timeout="PT30S") as settings:
        assert expected == raw(settings, b"GET / HTTP/1.1\r\nHost: a\r\n", *parts, pause=0.05)


def test_a_large_body_is_no_large_header() -> None:
    """Head and body can arrive together."""
    with serving() as settings:
        answer = httpx.post(settings.advertised_url, content=b"x" * 2**20)
    assert (200, 2**20) == (answer.status_code, answer.json())


CHUNKED = b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


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
def test_a_body_with_endless_framing_is_refused(start: bytes, filler: bytes) -> None:
    """Trailers, sizes and extensions of chunks have a limit, too. Otherwise they would fill the memory."""
    with serving(request_timeout="PT30S") as settings:
        answers = (raw(settings, b"POST /" + CHUNKED, start, *[filler] * 3, pause=0.05) for _ in range(5))
        # If the client still sends when the server closes the connection, a reset can discard the response.
        assert (431, "headers-too-large") == next(answer for answer in answers if answer[0])


def test_trailers_after_the_response_end_the_connection() -> None:
    """The client cannot take a problem for the response to its next request."""
    with serving(request_timeout="PT30S") as settings:
        response = exchange(settings, b"GET /" + CHUNKED, b"0\r\n", *[b"X: y\r\n" * 10_000] * 3, pause=0.05)
    assert [b'"answer"'] == response.split(b"\r\n\r\n")[1:]


def test_a_trailer_is_no_header() -> None:
    """A proxy that checks the header Authorization does not look at trailers (RFC 9110, section 6.5.1)."""
    trailer = b"0\r\nAuthorization: Bearer x\r\n\r\n"
    end = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with serving() as settings:
        response = exchange(settings, b"POST /authorization" + CHUNKED + trailer + end)
    assert b'"none"' in response
    assert response.endswith(b'"answer"')


def test_blanks_after_a_value_are_no_part_of_it() -> None:
    """A forwarded header with them would be refused, and two spellings of an Idempotency-Key would be two commands."""
    head = b"POST /authorization HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n"
    with serving() as settings:
        assert exchange(settings, head + b"Authorization: Bearer x \t \r\n\r\n").endswith(b'"Bearer x"')


def test_small_chunks_and_requests_in_a_row_are_served() -> None:
    """The limit of framing counts from the last part of the body."""
    small = b"1\r\nx\r\n" * 50_000 + b"0\r\nX: y\r\n\r\n"
    end = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with serving(request_timeout="PT30S") as settings:
        response = exchange(settings, (b"POST /" + CHUNKED + small) * 3 + end)
    assert 3 == response.count(b"\r\n\r\n50000")
    assert response.endswith(b'"answer"')


def test_the_end_of_a_large_body_is_no_large_head_of_the_next_request() -> None:
    """One read has the last part of a body and the begin of the next head."""
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    end = b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with serving() as settings:
        response = exchange(settings, body + b"GET /", end, pause=0.05)
        refused = exchange(
            settings, body + b"GET /" + end.replace(b"\r\n\r\n", b"\r\nX: " + b"y" * 70_000 + b"\r\n\r\n")
        )
    assert response.endswith(b'"answer"')
    assert b" 431 " not in response
    assert b'"answer"' not in refused


class Certificates:
    """An authority, and the certificate of a server in two files."""

    def __init__(self, folder: Path, authority: Authority | None = None) -> None:
        self.authority = authority or Authority.new()
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "certificate.pem", "key.pem"))
        self.ca.write_bytes(self.authority.certificate_pem())
        self.issue()

    def issue(self) -> int:
        """Write a new certificate and its key. Returns its serial number."""
        pem = self.authority.broker_pem([HOST])
        self.key.write_bytes(pem)
        self.certificate.write_bytes(pem)
        return x509.load_pem_x509_certificate(pem).serial_number

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "api_certificate_file": self.certificate,
            "api_certificate_key_file": self.key,
            "api_ca_file": self.ca,
        }


def serial_of(settings: Settings) -> int:
    """The serial number of the certificate that a new connection gets."""
    trusting = ssl.create_default_context(cafile=settings.api_ca_file)
    with (
        socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS) as plain,
        trusting.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"").serial_number


def test_a_new_certificate_is_used_without_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the files change, each new connection is served. A key that does not fit leaves the old certificate."""
    certificates = Certificates(tmp_path)
    with serving(**certificates.settings) as settings:
        assert settings.advertised_url.startswith("https://")
        first = serial_of(settings)
        second = certificates.issue()
        served = 0
        while serial_of(settings) != second:
            with httpx.Client(verify=client_context(settings)) as client:
                assert 200 == client.get(settings.advertised_url).status_code
            served += 1
        assert served
        assert first != second
        monkeypatch.setattr("api.http.server._TICKS_PER_SECOND", 1)
        certificates.key.write_bytes(Authority.new().broker_pem([HOST]))
        with capture_logs() as logs:
            wait_for("the log line", lambda: "the old one stays in use" in str(logs))
        assert second == serial_of(settings)


@pytest.mark.parametrize("wrong", ["certificate", "certificate_key", "ca", "client_ca"])
def test_files_without_certificates_are_named(tmp_path: Path, wrong: str) -> None:
    """The error says which file is wrong, before the server starts."""
    certificates = Certificates(tmp_path)
    file = tmp_path / "wrong"
    file.write_text("nothing")
    settings = Settings(**{**certificates.settings, f"api_{wrong}_file": file})
    certificate = certificate_of(settings)
    use = client_context if wrong == "ca" else partial(server_of, app, certificate=certificate, grace_seconds=1)
    with pytest.raises(CertificateError, match=str(file)):
        use(settings=settings)


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    """A setting without the other one would start without TLS."""
    certificates = Certificates(tmp_path)
    for alone in ("api_certificate_file", "api_certificate_key_file", "api_client_ca_file"):
        with pytest.raises(SettingsError, match="must be set, too"):
            read_settings(**{alone: certificates.certificate})


def test_idle_clients_do_not_delay_the_end(tmp_path: Path) -> None:
    """A client with TLS that keeps its connection does not answer its end. The server does not wait for it."""
    with ExitStack() as stack:
        settings = stack.enter_context(serving(10 * int(PATIENCE_SECONDS), **Certificates(tmp_path).settings))
        client = httpx.Client(verify=client_context(settings))
        assert 200 == client.get(settings.advertised_url).status_code
    client.close()


def test_tls_needs_trust(tmp_path: Path) -> None:
    """Plain HTTP gets no response, and a client refuses an unknown authority."""
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other")
    with serving(**Certificates(tmp_path).settings) as settings:
        with pytest.raises(httpx.TransportError):
            httpx.get(settings.advertised_url.replace("https", "http"))
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(settings.advertised_url, verify=ssl.create_default_context(cafile=other.ca))


def test_mutual_tls_asks_for_a_certificate_of_the_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without a certificate, or with another authority's, gets no response. An instance shows its own.

    So does the health check of a container, and it accepts a certificate for another name.
    """
    (tmp_path / "other").mkdir()
    own, other = Certificates(tmp_path), Certificates(tmp_path / "other")
    with serving(**own.settings, api_client_ca_file=own.ca) as settings:
        trusting = ssl.create_default_context(cafile=own.ca)
        foreign = ssl.create_default_context(cafile=own.ca)
        foreign.load_cert_chain(other.certificate, other.key)
        for context in (trusting, foreign):
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                httpx.get(settings.advertised_url, verify=context)
        assert 200 == httpx.get(settings.advertised_url, verify=client_context(settings)).status_code
        named = settings.advertised_url.replace(HOST, "localhost")
        assert not is_healthy(named)
        monkeypatch.setenv("LOYALTY_API_CERTIFICATE_FILE", str(own.certificate))
        monkeypatch.setenv("LOYALTY_API_CERTIFICATE_KEY_FILE", str(own.key))
        assert is_healthy(named)
