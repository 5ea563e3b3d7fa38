"""Deliveries to a server in the same event loop, which sends the bytes of a test."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from standardwebhooks import Webhook

from infra.local.ports import free_port
from infra.security.certificates import Authority
from services.webhooks.delivery import Delivery, UndeliveredError, _retry_after, http_client
from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Message
from services.webhooks.metrics import Metrics
from tests.support.responses import SlowToClose

pytestmark = pytest.mark.anyio

MESSAGE = Message("msg_1", "earned", b"{}")


def delivered(answers: list[bytes], requests: list[bytes] | None = None, **rules: object) -> tuple[int, float]:
    """Deliver to a server that sends these answers in turn and repeats the last one; an empty answer sends nothing.

    Returns the number of requests and the seconds. The requests are added to ``requests``.
    """
    request_count = 0
    connections: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal request_count
        connections.append(writer)
        request = await reader.readuntil(b"\r\n\r\n{}")
        if requests is not None:
            requests.append(request)
        request_count += 1
        writer.write(answers[min(request_count, len(answers)) - 1])
        if answers[min(request_count, len(answers)) - 1].endswith(b"\r\n\r\n"):
            writer.close()

    async def deliver() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        usual = {"first_wait": timedelta(seconds=0.01), "attempts": 3, "timeout": timedelta(seconds=5)}
        endpoint = Endpoint("a", f"http://127.0.0.1:{port}/t0ken", (b"x" * 24,), **{**usual, **rules})
        async with server:
            try:
                async with http_client() as client:
                    await Delivery(endpoint, client, Metrics(CollectorRegistry())).deliver(MESSAGE)
            finally:
                for connection in connections:
                    connection.close()
                await asyncio.gather(*(each.wait_closed() for each in connections), return_exceptions=True)

    started = time.monotonic()
    try:
        asyncio.run(deliver())
    except UndeliveredError as error:
        raise UndeliveredError(f"{error} after {request_count}") from error
    return request_count, time.monotonic() - started


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def test_any_2xx_is_delivered() -> None:
    """The status decides, whether or not there is a body."""
    for status in (b"200 OK", b"202 Accepted", b"204 No Content"):
        assert 1 == delivered([b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"])[0]


def test_an_error_after_the_status_does_not_matter() -> None:
    """A body that never ends or is too large does not make a delivery fail."""
    hangs = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbut it"
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 200_000
    assert 1 == delivered([hangs], timeout=timedelta(seconds=0.3))[0]
    assert 1 == delivered([large])[0]


def test_an_attempt_without_an_answer_ends_after_the_timeout() -> None:
    """Then comes the next attempt. After the last attempt the reason says that there was no answer."""
    assert 2 == delivered([b"", OK], timeout=timedelta(seconds=0.3))[0]
    with pytest.raises(UndeliveredError, match=r"^no answer: TimeoutError after 3$"):
        delivered([b""], timeout=timedelta(seconds=0.3))
    with pytest.raises(UndeliveredError, match=r"^no answer: RemoteProtocolError after 3$"):
        delivered([b"hello\r\n\r\n"])


async def reason_of_no_answer(url: str) -> str:
    endpoint = Endpoint("a", url, (b"x" * 24,), attempts=2, first_wait=timedelta(seconds=0.01))
    async with http_client() as client:
        with pytest.raises(UndeliveredError) as raised:
            await Delivery(endpoint, client, Metrics(CollectorRegistry())).deliver(MESSAGE)
    return str(raised.value)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
async def test_a_refused_connection_is_no_answer(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> None:
    """The reason names the error but not the URL, also if the host has several addresses."""
    port = free_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    reason = await reason_of_no_answer(f"http://crm.example:{port}/t0ken")
    assert "no answer: ConnectError (the connection was refused)" == reason


async def test_an_unknown_host_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert "no answer: ConnectError (the host name is not known)" == await reason_of_no_answer("https://crm.invalid/")


async def test_a_certificate_of_an_unknown_authority_is_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    file.write_bytes(Authority.new().broker_pem(["127.0.0.1"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server:
        reason = await reason_of_no_answer(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/t0ken")
    assert "no answer: ConnectError (the certificate is not valid)" == reason


@pytest.mark.parametrize("status", [b"301 Moved", b"400 Bad", b"401 No", b"404 Not Found", b"410 Gone", b"422 No"])
def test_other_answers_are_not_tried_again(status: bytes) -> None:
    """There is one attempt, and the reason names the answer."""
    with pytest.raises(UndeliveredError, match=f"^answer {status[:3].decode()} [A-Z][A-Za-z ]+ after 1$"):
        delivered([b"HTTP/1.1 " + status + b"\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"])


@pytest.mark.parametrize("status", [b"408 Slow", b"429 Busy", b"500 Oh", b"502 Bad", b"503 Down", b"599 What"])
def test_these_answers_are_tried_again(status: bytes) -> None:
    """Attempts follow until another answer comes, or until the last attempt."""
    again = b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"
    assert 3 == delivered([again, again, OK])[0]
    with pytest.raises(UndeliveredError, match=f"^answer {status[:3].decode()}( [A-Z][A-Za-z ]+)? after 3$"):
        delivered([again])


@pytest.mark.parametrize("value", [b"86400", b"9" * 400], ids=["a day", "more than a float can have"])
def test_a_receiver_cannot_ask_for_more_than_the_longest_wait(value: bytes) -> None:
    """A longer Retry-After is cut to the longest wait of the endpoint."""
    response = b"HTTP/1.1 429 Busy\r\nRetry-After: " + value + b"\r\nContent-Length: 0\r\n\r\n"
    request_count, seconds = delivered([response, OK], longest_wait=timedelta(seconds=0.2))

    assert 2 == request_count
    assert 0.2 <= seconds < 60


def test_the_usual_wait_does_not_grow_above_the_longest_wait() -> None:
    """Seven doubled waits would take more than six seconds."""
    wait = timedelta(seconds=0.05)
    answers = [b"HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n"] * 7
    request_count, seconds = delivered([*answers, OK], first_wait=wait, longest_wait=wait, attempts=8)

    assert 8 == request_count
    assert 0.35 <= seconds < 6


@pytest.mark.parametrize("value", [b"0", b"Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_receiver_cannot_ask_for_less_than_the_usual_wait(value: bytes) -> None:
    """Otherwise the receiver would use up all attempts in a moment."""
    response = b"HTTP/1.1 503 Down\r\nRetry-After: " + value + b"\r\nContent-Length: 0\r\n\r\n"
    request_count, seconds = delivered([response, OK], first_wait=timedelta(seconds=0.2))

    assert 2 == request_count
    assert seconds >= 0.2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        *((value, None) for value in (None, "-1", "1.5", "soon", "٣", "", "nan", "inf", "-1e9")),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 10000 00:00:00 GMT", None),
        ("Mon, 32 Jan 2026 00:00:00 GMT", None),
        ("Mon, 01 Jan 2026 00:00:00 +9999999", None),
        ("Mon, 01 Jan 2026 99:99:99 GMT", None),
    ],
)
def test_retry_after_can_be_whole_seconds(value: str | None, seconds: float | None) -> None:
    """Any other text that is not a date counts as absent, and the usual wait applies."""
    assert seconds == _retry_after(value)


def test_retry_after_can_be_a_date() -> None:
    """The wait lasts until the date. It is zero for a date in the past."""
    assert 50 < (_retry_after(format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)) or 0) <= 60
    assert 0 == _retry_after("Wed, 21 Oct 2015 07:28:00 GMT")


@given(st.text(max_size=60) | st.from_regex(r"\A\w{3}, \d{1,20} \w{3} \d{1,20} \d{1,5}:\d\d:\d\d [+-]?\w{1,9}\Z"))
def test_no_retry_after_raises_an_error(value: str) -> None:
    """Every text gives None or a number of seconds that is not negative."""
    seconds = _retry_after(value)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 \xff\xfe\r\nRetry-After: Mon, 01 Jan 99999999999 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Down\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Down\r\nSet-Cookie: a=b; Expires=Mon, 01 Jan 99999999999 00:00:00 GMT\r\n\r\n",
        b"HTTP/1.1 503 Down\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 503 Down\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 503 Down\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
    ],
)
def test_any_wrong_response_is_a_failed_attempt(answer: bytes) -> None:
    """No response raises anything but UndeliveredError. Another error would end the dispatchers of all endpoints."""
    with pytest.raises(UndeliveredError, match="after"):
        delivered([answer], attempts=1, timeout=timedelta(seconds=1))


@pytest.mark.parametrize("error", [UnicodeError("label too long"), OverflowError(), RuntimeError(), KeyError("a")])
async def test_an_unexpected_error_of_the_client_is_a_failed_attempt(error: Exception) -> None:
    """An error that httpx does not document counts as no answer."""

    class Client:
        def stream(self, *_: object, **__: object) -> None:
            raise error

    endpoint = Endpoint("a", "http://crm.example/hook", (b"x" * 24,), attempts=1)
    delivery = Delivery(endpoint, cast(httpx.AsyncClient, Client()), Metrics(CollectorRegistry()))
    with pytest.raises(UndeliveredError, match=rf"^no answer: {type(error).__name__}$"):
        await delivery.deliver(MESSAGE)


def delivery_to(answer: Callable[[httpx.Request], Awaitable[httpx.Response]], **rules: Any) -> Delivery:
    """A delivery to a receiver in this process. It needs no socket."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))  # type: ignore[arg-type]  # it accepts both
    return Delivery(Endpoint("a", "http://crm.example", (b"x" * 24,), **rules), client, Metrics(CollectorRegistry()))


@pytest.mark.parametrize(("sent", "read"), [(64, 64), (65, 65), (10_000, 65)], ids=["short", "a bit longer", "long"])
async def test_a_long_response_is_not_read(sent: int, read: int) -> None:
    """A receiver cannot keep a place with a response that never ends. A short response is read, for the next request.

    The numbers are KiB.
    """
    sizes: list[int] = []

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(sent):
                sizes.append(1024)
                yield b"x" * 1024

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Body())

    await delivery_to(answer).deliver(MESSAGE)
    assert read == len(sizes)


async def test_a_timeout_does_not_interrupt_the_close_of_a_connection() -> None:
    """Otherwise each slow receiver would leave open connections, until the process could open no more files."""
    body = SlowToClose()

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=body)

    await delivery_to(answer, timeout=timedelta(seconds=0.1)).deliver(MESSAGE)
    assert body.is_closed


async def test_a_receiver_can_verify_each_attempt() -> None:
    """A receiver refuses a request without a signature, and one whose signature is old."""
    answers, requests = iter([503, 200]), []

    async def answer(request: httpx.Request) -> httpx.Response:
        Webhook(b"x" * 24).verify(request.content, dict(request.headers))
        requests.append((request.method, request.headers["content-type"], request.headers["webhook-id"]))
        return httpx.Response(next(answers))

    delivery = delivery_to(answer, first_wait=timedelta(seconds=0.01))
    await delivery.deliver(MESSAGE)
    assert [("POST", "application/json", MESSAGE.identity)] * 2 == requests


async def test_a_receiver_gets_no_more_requests_at_once_than_it_allows() -> None:
    """The others wait for a place. All of them are delivered."""
    running, most, answered = 0, 0, 0

    async def answer(_: httpx.Request) -> httpx.Response:
        nonlocal running, most, answered
        running += 1
        most = max(most, running)
        for _ in range(10):
            await asyncio.sleep(0)  # let the others begin
        running -= 1
        answered += 1
        return httpx.Response(200)

    delivery = delivery_to(answer, concurrency=3)
    await asyncio.gather(*(delivery.deliver(MESSAGE) for _ in range(10)))
    assert (3, 10) == (most, answered)


@pytest.mark.parametrize(("status", "known"), [(b"422", " Unprocessable Entity"), (b"499", "")])
def test_the_words_of_a_receiver_become_no_reason(status: bytes, known: str) -> None:
    """They can be long and can contain a card. The reason goes into logs, dead letters and a table for analysts."""
    answer = b"HTTP/1.1 " + status + b" no customer with card 9265846829\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(UndeliveredError, match=f"^answer {status.decode()}{known} after 1$"):
        delivered([answer])


def test_cookies_are_not_kept() -> None:
    """A receiver that sets cookies would make each request, and the memory of the process, larger."""
    requests: list[bytes] = []
    sets = b"HTTP/1.1 503 Down\r\nSet-Cookie: session=1\r\nContent-Length: 0\r\n\r\n"
    delivered([sets, OK], requests=requests)
    assert 2 == len(requests)
    assert b"cookie" not in requests[1].lower()
