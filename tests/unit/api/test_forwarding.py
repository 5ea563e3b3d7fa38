"""The bytes of a forwarded request, as a peer reads them from a real connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote_to_bytes

import httpx
import pytest
from fastapi import Request

from api.routing import peer_client
from api.routing.locator import Target
from api.routing.peer_client import PeerClient
from api.routing.peer_messages import PeerRequest, PeerTimeoutError, PeerUnreachableError
from services.interactive_queries.reports import InstanceReport, PeerReports
from services.state_stores.assignment import Role
from tests.support.clusters import TLS
from tests.support.responses import SlowToClose

pytestmark = pytest.mark.anyio

KEYS = "/v1/stores/customer-balances/keys/"
PATHS = [
    f"{KEYS}C01",
    f"{KEYS}a/../b",
    f"{KEYS}..",
    f"{KEYS}.",
    f"{KEYS}../../../../metrics",
    f"{KEYS}a/%2E./.%2e/b",
    f"{KEYS}...",
    f"{KEYS}a//b/",
    "/v1/customers/./balance",
    "/v1/customers/../balance",
]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine can need more than half a second to accept a connection."""
    monkeypatch.setattr(peer_client, "_CONNECT_SECONDS", 30)


async def head_of(request: PeerRequest) -> list[bytes]:
    """The lines of the head that a peer reads when an instance forwards the request."""
    lines: list[bytes] = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.extend((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n"))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        await writer.drain()
        writer.close()

    peers = PeerClient(PeerReports(), "test", None, TLS)
    async with await asyncio.start_server(peer, "127.0.0.1", 0) as server:
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Role.STANDBY)
        answer = await peers.forward(request, target, 30, 30)
    await peers.close()
    assert 200 == answer.status_code
    return lines


async def forwarded(path: str, query: str, *, given: bool) -> str:
    """The target in the request line that a peer reads."""
    raw = None if given else path.encode()
    scope = {
        "type": "http",
        "method": "GET",
        "headers": [],
        "path": path,
        "raw_path": raw,
        "query_string": query.encode(),
    }
    whole = f"{path}?{query}".encode() if given else None
    lines = await head_of(await PeerRequest.from_client(Request(scope), whole))
    return lines[0].decode().split(" ")[1]


@pytest.mark.parametrize("given", [False, True], ids=["the request's path", "a path of its own"])
@pytest.mark.parametrize("path", PATHS)
async def test_the_path_arrives_unchanged(path: str, *, given: bool) -> None:
    """Dots in a key are part of the key. The peer decodes the same path, and no segment is "." or ".."."""
    sent, _, query = (await forwarded(path, "maxLag=1&from=a/../b", given=given)).partition("?")

    assert unquote_to_bytes(path) == unquote_to_bytes(sent)
    assert not {".", ".."} & set(sent.split("/"))
    assert "maxLag=1&from=a/../b" == query


async def test_headers_arrive_unchanged() -> None:
    """A header may have bytes that are not ASCII (RFC 9110, section 5.5)."""
    lines = await head_of(PeerRequest("GET", b"/v1/stores", {"x-request-id": "\xe9\xff"}))
    assert b"x-request-id: \xe9\xff" in [line.lower() for line in lines]


async def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer cannot make an instance ask another server, and a proxy of the environment gets no request."""
    asked: list[str] = []

    async def server(name: str, answer: bytes) -> asyncio.Server:
        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.append(name)
            writer.write(
                b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                % answer
            )
            await writer.drain()
            writer.close()

        return await asyncio.start_server(respond, "127.0.0.1", 0)

    other = await server("other", b"200 OK")
    url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, url)
    for name in ("no_proxy", "NO_PROXY"):  # else a proxy would not be asked for this machine in any case
        monkeypatch.delenv(name, raising=False)
    peer = await server("peer", b"307 Temporary Redirect\r\nlocation: %s/secret" % url.encode())
    target = Target(f"http://127.0.0.1:{peer.sockets[0].getsockname()[1]}", Role.ACTIVE)
    client = PeerClient(PeerReports(), "test", None, TLS)
    try:
        async with other, peer:
            with pytest.raises(PeerUnreachableError, match="not of an instance"):
                await client.forward(PeerRequest("GET", b"/v1/stores"), target, 5.0, 5.0)
    finally:
        await client.close()
    assert ["peer"] == asked


PEER = Target("http://two:8080", Role.ACTIVE)


@asynccontextmanager
async def client_of(peer: Callable[[httpx.Request], httpx.Response], reports: PeerReports) -> AsyncIterator[PeerClient]:
    """A client of this peer, in the group "test"."""
    client = PeerClient(reports, "test", None, TLS)
    await client._client.aclose()
    client._client = httpx.AsyncClient(transport=httpx.MockTransport(peer))
    yield client
    await client.close()


async def test_a_timeout_does_not_interrupt_the_close_of_a_connection() -> None:
    """Otherwise slow peers, or callers with short deadlines, would leave open connections."""
    body = SlowToClose()
    async with client_of(lambda _: httpx.Response(304, stream=body), PeerReports()) as client:
        await client.forward(PeerRequest("GET", b"/v1/stores"), PEER, 0.1, 0.1)
    assert body.is_closed


async def test_the_client_gets_the_headers_of_the_response_and_not_those_of_the_connection() -> None:
    """For example, without Retry-After or Location it would not know how to go on."""
    kept = dict.fromkeys(("allow", "cache-control", "etag", "location", "retry-after", "vary", "x-request-id"), "1")
    kept["content-type"] = "application/json"
    sent = httpx.Response(200, headers={**kept, "loyalty-lag": "1", "server": "x", "set-cookie": "x=1"})
    async with client_of(lambda _: sent, PeerReports()) as client:
        answer = await client.forward(PeerRequest("GET", b"/v1/stores"), PEER, 5.0, 5.0)
    assert {**kept, "loyalty-lag": "1"} == answer.headers


@pytest.mark.parametrize(
    ("error", "is_suspect"),
    [(httpx.LocalProtocolError, False), (httpx.RemoteProtocolError, True), (httpx.ConnectError, True)],
)
async def test_a_request_that_cannot_be_sent_makes_no_suspect(
    error: type[httpx.TransportError], *, is_suspect: bool
) -> None:
    """A header of the client violates HTTP. Otherwise one client could make all peers suspects."""

    def fail(_: httpx.Request) -> httpx.Response:
        raise error("the reason")

    reports = PeerReports()
    async with client_of(fail, reports) as client:
        with pytest.raises(PeerUnreachableError):
            await client.forward(PeerRequest("GET", b"/v1/stores"), PEER, 5.0, 5.0)
    assert is_suspect == bool(reports.why_suspect(PEER.url))


@pytest.mark.parametrize(
    "sent",
    [
        httpx.Response(404, json={"detail": "no such route"}),
        httpx.Response(503, text="no healthy upstream"),
        httpx.Response(500, headers={"content-type": "application/problem+json"}, content=b"[]"),
        httpx.Response(200, html="<h1>It works!</h1>"),
        httpx.Response(200),
        httpx.Response(302, headers={"location": "https://login.example"}),
    ],
    ids=["other API", "proxy", "no problem", "web page", "nothing", "redirect"],
)
async def test_a_response_that_no_instance_sends_counts_as_no_response(sent: httpx.Response) -> None:
    """A proxy or another program responds at the address of a dead instance. A 404 is not the absence of the key."""
    reports = PeerReports()
    async with client_of(lambda _: sent, reports) as client:
        with pytest.raises(PeerUnreachableError, match="not of an instance"):
            await client.forward(PeerRequest("GET", b"/v1/stores"), PEER, 5.0, 5.0)
    assert reports.why_suspect(PEER.url)


async def report_of(answer: InstanceReport) -> InstanceReport:
    """The report that an instance accepts from the peer."""
    sent = httpx.Response(200, text=answer.model_dump_json(by_alias=True))
    async with client_of(lambda _: sent, PeerReports()) as client:
        return await client.report(PEER.url)


async def test_the_report_of_a_peer_is_accepted() -> None:
    """It names the URL and the group that the instance has asked for."""
    report = InstanceReport(url=PEER.url, group="test", partitions=())
    assert report == await report_of(report)


@pytest.mark.parametrize(("url", "group"), [("http://three:8080", "test"), ("http://two:8080", "other")])
async def test_the_report_of_another_process_is_refused(url: str, group: str) -> None:
    """An address can belong to another instance after a restart, or to another deployment. Its copies are not ours."""
    report = InstanceReport(url=url, group=group, partitions=())
    with pytest.raises(
        PeerUnreachableError, match=f"^http://two:8080 has another instance: {url} of the group {group}\\. "
    ):
        await report_of(report)


@pytest.mark.timeout(60)
async def test_a_peer_that_stops_within_its_refusal_of_a_stream_does_not_keep_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sends the head of a problem and then nothing, as a peer whose network breaks at this moment."""
    monkeypatch.setattr(peer_client, "_STREAM_SECONDS", 0.5)
    gone = asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\n")
        await reader.read()  # until the other side closes the connection
        writer.close()
        gone.set()

    peers = PeerClient(PeerReports(), "test", None, TLS)
    async with await asyncio.start_server(peer, "127.0.0.1", 0) as server:
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Role.ACTIVE)
        with pytest.raises(PeerTimeoutError, match="only a part of its response"):
            await peers.open_stream(PeerRequest("GET", PATHS[0].encode()), target)
        await gone.wait()
    await peers.close()
