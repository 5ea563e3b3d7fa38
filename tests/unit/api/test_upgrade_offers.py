"""Requests that offer another protocol: the server handles them as if the offer were missing.

httptools alone loses the body of such a request, and then parses it as the next request.
"""

import socket
import time
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path
from random import Random

import httptools
import orjson
import pytest

from api.http.server import HEADER_BYTES, LimitedProtocol, server_of
from api.http.upgrade_offers import OfferIgnoringParser
from infra.local.ports import HOST, free_port
from services.api_keys.keys import Scope
from services.settings import Settings
from tests.support.builders import balance
from tests.support.clusters import with_marks
from tests.support.examples import examples
from tests.support.secured import SecuredGroup
from tests.support.waiting import wait_for
from tests.unit.api.servers import PATIENCE_SECONDS, app, exchange, raw, running

HTTP_2 = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"
"""The default of Java's HttpClient for http://."""
WEBSOCKET = b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
TWICE = b"upgrade: x\r\nUpgrade: y\r\nconnection: upgrade\r\n"
OFFERS = pytest.mark.parametrize("offer", [HTTP_2, WEBSOCKET, TWICE], ids=["h2c", "websocket", "twice"])

HIDDEN = b"POST /authorization HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nX-Rest: "
"""A body that would become a request. The head of the next request of a proxy would become its last header."""
CHUNKS = b"3\r\nabc\r\n%x\r\n%s\r\n0\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n" % (len(HIDDEN), HIDDEN)


def post(offer: bytes, body: bytes = HIDDEN, version: bytes = b"1.1") -> bytes:
    return b"POST / HTTP/%s\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s" % (version, offer, len(body), body)


def chunked(offer: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\n%sTransfer-Encoding: chunked\r\n\r\n%s" % (offer, CHUNKS)


def get(offer: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: a\r\n%s\r\n" % offer


LAST = (
    b"POST /authorization HTTP/1.1\r\nHost: a\r\nAuthorization: last\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)


def bodies(received: bytes) -> list[bytes]:
    """The body of each response. All of them must have status 200."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n"), received
        (size,) = (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        found.append(rest[:size])
        received = rest[size:]
    return found


def connected(settings: Settings) -> socket.socket:
    return socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS)


def response(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next response."""
    found = HTTPResponse(connection)
    found.begin()
    return found.status, found.read()


SIZE, SIZE_OF_CHUNKS = b"%d" % len(HIDDEN), b"%d" % (len(HIDDEN) + 3)


@OFFERS
@pytest.mark.parametrize(("request_of", "size"), [(post, SIZE), (chunked, SIZE_OF_CHUNKS)], ids=["post", "chunked"])
@pytest.mark.parametrize("place", ["in the head", "after the head", "in the body", "nowhere"])
def test_the_body_arrives_and_the_next_request_gets_its_own_response(
    shared_server: Settings, offer: bytes, request_of: Callable[[bytes], bytes], size: bytes, place: str
) -> None:
    """The packets end anywhere. No byte of the body becomes a request, also if it looks like one."""
    request = request_of(offer)
    head = request.index(b"\r\n\r\n") + 4
    split = {"in the head": head - 3, "after the head": head, "in the body": head + 30, "nowhere": len(request)}[place]
    received = exchange(shared_server, request[:split], request[split:] + LAST, pause=0.05)
    in_turn = exchange(shared_server, request[:split], request[split:], request, LAST, pause=0.05)
    assert [size, b'"last"'] == bodies(received)
    assert [size, size, b'"last"'] == bodies(in_turn)


@OFFERS
def test_each_byte_can_be_a_packet(shared_server: Settings, offer: bytes) -> None:
    requests = get(offer) + post(offer) + chunked(offer) + LAST
    received = exchange(shared_server, *(bytes([byte]) for byte in requests), pause=0.001)
    assert [b'"answer"', SIZE, SIZE_OF_CHUNKS, b'"last"'] == bodies(received)


def test_many_offers_in_one_packet_are_served(shared_server: Settings) -> None:
    """Each of them has its response. They need no deep recursion."""
    received = exchange(shared_server, (get(HTTP_2) + post(WEBSOCKET)) * 750 + LAST)
    assert [*[b'"answer"', SIZE] * 750, b'"last"'] == bodies(received)


@OFFERS
def test_a_client_can_wait_for_100_continue(shared_server: Settings, offer: bytes) -> None:
    head = post(offer + b"Expect: 100-continue\r\n").removesuffix(HIDDEN)
    with connected(shared_server) as connection:
        connection.sendall(head)
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(HIDDEN)
        assert (200, SIZE) == response(connection)
        connection.sendall(get(offer))
        assert (200, b'"answer"') == response(connection)


@pytest.mark.parametrize(
    ("offer", "version"),
    [
        (b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n", b"1.1"),
        (b"Connection: Upgrade\r\nUpgrade: h2c\r\nConnection: close\r\n", b"1.1"),
        (HTTP_2, b"1.0"),
    ],
    ids=["one header", "two headers", "HTTP/1.0"],
)
@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_a_connection_that_must_end_ends(shared_server: Settings, offer: bytes, version: bytes, pause: float) -> None:
    """The option ``close`` next to ``Upgrade`` counts. A request after it gets no response."""
    request = post(offer, version=version)
    assert [SIZE] == bodies(exchange(shared_server, request[:-5], request[-5:] + LAST, pause=pause))
    assert [SIZE] == bodies(exchange(shared_server, request + LAST))


def test_nobody_executes_a_command_with_the_credentials_of_another_caller(tmp_path: Path) -> None:
    """A proxy has one connection for both. The body of the first caller, who has no credentials, is no request."""
    group = SecuredGroup(tmp_path)
    instance = with_marks(group.instance())
    instance.write(*balance("A", "100.00"))
    clerk = group.key(*Scope).text.encode()
    hidden = b"DELETE /v1/customers/A HTTP/1.1\r\nIdempotency-Key: x\r\nX-Rest: "
    attack = post(HTTP_2, hidden).replace(b"POST /", b"POST /v1/simulate", 1)
    read = b"GET /v1/customers/A/balance HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n" % clerk
    settings = Settings(api_port=free_port())
    with running(server_of(instance.app, settings, None, 1)), connected(settings) as proxy:
        proxy.sendall(attack.removesuffix(hidden))
        time.sleep(0.05)
        proxy.sendall(hidden)
        assert 401 == response(proxy)[0]
        proxy.sendall(read)
        status, body = response(proxy)
    assert (200, "100.00") == (status, orjson.loads(body)["TotalLoyaltyPoints"])
    assert [] == instance.command_log.commands


@pytest.mark.parametrize("target", [b"a:80", b"/"])
@pytest.mark.parametrize("offer", [b"", HTTP_2], ids=["alone", "h2c"])
def test_connect_is_refused(shared_server: Settings, target: bytes, offer: bytes) -> None:
    """It offers a tunnel. The server does not parse the bytes of the tunnel."""
    request = b"CONNECT %s HTTP/1.1\r\nHost: a\r\n%s\r\n" % (target, offer)
    assert (400, "unreadable-request") == raw(shared_server, request + LAST)


def test_nothing_is_logged(shared_server: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """Any client can make an offer. uvicorn alone would log two lines for each of them."""
    assert [b'"answer"', b'"last"'] == bodies(exchange(shared_server, get(WEBSOCKET) + LAST))
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_the_limits_of_headers_apply(shared_server: Settings, pause: float) -> None:
    large = b"X: " + b"x" * HEADER_BYTES + b"\r\n"
    assert (431, "headers-too-large") == raw(shared_server, get(HTTP_2 + large)[:-2], b"\r\n", pause=pause)
    received = exchange(shared_server, post(HTTP_2, b"x" * 2 * HEADER_BYTES) + LAST)
    assert [b"%d" % (2 * HEADER_BYTES), b'"last"'] == bodies(received)


def test_the_time_of_a_request_begins_with_its_first_byte() -> None:
    """The parser parses the head again, but the client does not get more time."""
    settings = Settings(api_port=free_port())
    server = server_of(app, settings, None, 1)
    head = post(HTTP_2).removesuffix(HIDDEN)
    with running(server), connected(settings) as connection:
        connection.sendall(head[:20])
        wait_for("the connection", lambda: server.server_state.connections)
        (protocol,) = server.server_state.connections
        assert isinstance(protocol, LimitedProtocol)
        wait_for("the begin of the head", lambda: protocol._in_head)
        began = protocol._arriving_since
        connection.sendall(head[20:])
        wait_for("the end of the head", lambda: not protocol._in_head)
        assert began == protocol._arriving_since


class Recorder:
    """A protocol that keeps the requests of its parser."""

    def __init__(self, parser: type[httptools.HttpRequestParser]) -> None:
        self.requests: list[list[object]] = []
        self.url, self.headers, self.body = b"", list[tuple[bytes, bytes]](), bytearray()
        self.parser = parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", [], bytearray()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            headers = [each for each in self.headers if each[0] not in {b"upgrade", b"connection"}]
            version, is_kept = self.parser.get_http_version(), self.parser.should_keep_alive()
            self.requests.append([self.parser.get_method(), self.url, version, is_kept, headers, self.body])

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.requests[-1].append("complete")


def recorded(parser: type[httptools.HttpRequestParser], *packets: bytes) -> tuple[list[list[object]], bool]:
    """The requests of these packets, and whether the parser accepts all bytes."""
    protocol = Recorder(parser)
    try:
        for packet in packets:
            protocol.parser.feed_data(packet)
    except httptools.HttpParserError:
        return protocol.requests, False
    return protocol.requests, True


_LINES = (
    *(b"Content-Length: %s" % size for size in (b"0", b"5", b"5 ", b"5\t", b"12", b"-1", b"+5", b"5, 5", b"", b"0x5")),
    *(
        b"Transfer-Encoding: %s" % each
        for each in (b"chunked", b"chunked\t", b"gzip, chunked", b"chunked, x", b"x", b"")
    ),
    *(b"Connection: close", b"Connection: x,close", b"Connection:", b"Proxy-Connection: close", b"Keep-Alive: 1"),
    *(b"Host: a", b"X:", b"X: \t y \t", b"X: \xff", b"X-Upgrade: a", b"Trailer: upgrade", b"Expect: 100-continue"),
)
_BODIES = (
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;x\r\nhello\r\n0\r\nUpgrade: y\r\n\r\n",
    b"junk",
    HIDDEN,
    CHUNKS,
)
_START = (b"POST / HTTP/1.1", b"GET /%ff?x=1 HTTP/1.1", b"HEAD http://a/b HTTP/1.0", b"OPTIONS * HTTP/2.0")


def test_a_request_is_the_same_with_and_without_an_offer() -> None:
    """Odd framing, too: what httptools refuses without an offer, it refuses with an offer."""
    rng = Random(1)
    for _ in range(examples(5_000)):
        offered = plain = b""
        for _ in range(rng.choice((1, 1, 2, 3))):
            lines, body = rng.choices(_LINES, k=rng.randrange(4)), rng.choice(_BODIES)
            start = rng.choice(_START)
            plain += b"\r\n".join([start, *lines, b"", body])
            for line in rng.choice(
                ((), (b"Upgrade: x", b"Connection: upgrade"), (b"UPGRADE: h2c", b"connection: Upgrade"))
            ):
                lines.insert(rng.randrange(len(lines) + 1), line)
            offered += b"\r\n".join([start, *lines, b"", body])
        cuts = sorted(rng.choices(range(len(offered)), k=rng.choice((0, 1, 3, 20))))
        packets = [offered[first:last] for first, last in zip([0, *cuts], [*cuts, len(offered)], strict=True)]
        assert recorded(httptools.HttpRequestParser, plain) == recorded(OfferIgnoringParser, *packets), offered
