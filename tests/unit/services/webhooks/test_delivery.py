"""One delivery, against a server in the same loop that answers byte by byte as told."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from prometheus_client import CollectorRegistry

from infra.local.ports import free_port
from services.webhooks.delivery import Delivery, UndeliveredError, _retry_after, http_client
from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Message
from services.webhooks.metrics import Metrics

MESSAGE = Message("msg_1", "earned", b"{}")


def delivered(answers: list[bytes], **rules: object) -> tuple[int, float]:
    """Deliver to a server that gives these answers in turn, an empty one hangs; how many it gave, and seconds."""
    asked = 0
    connections: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n{}")
        asked += 1
        writer.write(answers[min(asked, len(answers)) - 1])
        if answers[min(asked, len(answers)) - 1].endswith(b"\r\n\r\n"):
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
        raise UndeliveredError(f"{error} after {asked}") from error
    return asked, time.monotonic() - started


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def test_any_2xx_is_delivered() -> None:
    """Also one without a body, or with one that does not matter."""
    for status in (b"200 OK", b"202 Accepted", b"204 No Content"):
        assert 1 == delivered([b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"])[0]


def test_with_its_status_here_the_rest_of_an_answer_does_not_matter() -> None:
    """A body that never ends, or is far too large, does not make a delivery fail."""
    hangs = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbut it"
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 200_000
    assert 1 == delivered([hangs], timeout=timedelta(seconds=0.3))[0]
    assert 1 == delivered([large])[0]


def test_an_answer_that_does_not_come_is_waited_for_as_long_as_said() -> None:
    """Then it is tried again; after the last try the reason says that there was none."""
    assert 2 == delivered([b"", OK], timeout=timedelta(seconds=0.3))[0]
    with pytest.raises(UndeliveredError, match=r"^no answer: TimeoutError after 3$"):
        delivered([b""], timeout=timedelta(seconds=0.5))
    with pytest.raises(UndeliveredError, match=r"^no answer: RemoteProtocolError after 3$"):
        delivered([b"hello\r\n\r\n"])


def test_nobody_listening_is_no_answer() -> None:
    """The reason names the error, and not the URL."""

    async def deliver() -> None:
        url = f"http://127.0.0.1:{free_port()}/t0ken"
        endpoint = Endpoint("a", url, (b"x" * 24,), attempts=2, first_wait=timedelta(seconds=0.01))
        async with http_client() as client:
            await Delivery(endpoint, client, Metrics(CollectorRegistry())).deliver(MESSAGE)

    with pytest.raises(UndeliveredError, match=r"^no answer: ConnectError$"):
        asyncio.run(deliver())


@pytest.mark.parametrize("status", [b"301 Moved", b"400 Bad", b"401 No", b"404 Not Found", b"410 Gone", b"422 No"])
def test_other_answers_are_final(status: bytes) -> None:
    """One try, and the answer is the reason."""
    with pytest.raises(UndeliveredError, match=f"^answer {status.decode()} after 1$"):
        delivered([b"HTTP/1.1 " + status + b"\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"])


@pytest.mark.parametrize("status", [b"408 Slow", b"429 Busy", b"500 Oh", b"502 Bad", b"503 Down", b"599 What"])
def test_these_answers_are_tried_again(status: bytes) -> None:
    """Until the answer is another one, or after the last try."""
    again = b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"
    assert 3 == delivered([again, again, OK])[0]
    with pytest.raises(UndeliveredError, match=f"^answer {status.decode()} after 3$"):
        delivered([again])


def test_a_receiver_cannot_ask_for_more_than_the_longest_wait() -> None:
    """A Retry-After of a day is cut to the endpoint's own limit."""
    asks = b"HTTP/1.1 429 Busy\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n"
    asked, seconds = delivered([asks, OK], longest_wait=timedelta(seconds=0.5))
    assert 2 == asked
    assert 0.5 <= seconds < 60


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("0", 0), ("120", 120), ("-1", None), ("1.5", None), ("soon", None), ("٣", None), ("", None)],
)
def test_retry_after_in_seconds(value: str | None, seconds: float | None) -> None:
    """Whole seconds; what is neither those nor a date is as if it were not there."""
    assert seconds == _retry_after(value)


def test_retry_after_as_a_date() -> None:
    """The time until then, none for a time that has passed."""
    assert 50 < (_retry_after(format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)) or 0) <= 60
    assert 0 == _retry_after("Wed, 21 Oct 2015 07:28:00 GMT")
