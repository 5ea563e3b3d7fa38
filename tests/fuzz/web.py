"""The targets for HTTP: requests in the process, requests that Schemathesis makes, and bytes over sockets."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from api.http.server import server_of
from infra.local.ports import HOST, free_port
from schemas.topics import LOYALTY_DECISIONS
from services.api_keys.keys import Scope
from services.codecs.records import mark_of
from services.ledger.queries import LedgerQueries
from services.messaging.avro import Record
from services.settings import Settings
from tests.fuzz.target import DefectError, Feed, FuzzTarget, Outcome
from tests.support.builders import balance, sales, shop
from tests.support.clusters import Instance
from tests.support.ledger import Ledger
from tests.support.mutations import ANY_MUTATIONS, JSON_MUTATIONS, damaged
from tests.support.secured import SecuredGroup

_TIMEOUT_SECONDS = 10.0
_QUIET_SECONDS = 0.01
"""A client that has received nothing for this time closes its half of the connection."""

_PAUSE_SECONDS = 0.001
"""Between two packets, so that the server reads them one after the other. It may read them at once."""

_UNAVAILABLE = (502, 503, 504)


class HttpRequest(NamedTuple):
    """A request.

    Attributes:
        target: the path and the query as they are on the wire.
        is_keyed: whether it goes to an app that demands credentials, with a key that may do all.
    """

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_keyed: bool


@contextmanager
def _instance(*, secured: bool) -> Iterator[tuple[FastAPI, dict[str, bytes]]]:
    """An app with data and a ledger, and the keys of its callers by name."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fuzz-")))
        group = SecuredGroup(folder)
        instance = Instance("http://one:8080", group.security("http://one:8080") if secured else None)
        instance.own_everything()
        for record in (balance("A", "100.00"), sales("STR1", 1_700_000_040_000, "1.00"), shop("STR1", "Gonda")):
            instance.write(*record)
        ledger = Ledger(f"sqlite:///{folder}/ledger.sqlite")
        stack.callback(ledger.close)
        queries = LedgerQueries(Settings(ledger_url=ledger.url))
        stack.callback(queries.close)
        instance.app.state.dependencies.ledger = queries
        _decide_commands(instance)
        keys = {"all": group.key(*Scope).text.encode(), "none": group.key().text.encode()}
        yield instance.app, keys


def _decide_commands(instance: Instance) -> None:
    """Refuse each command at once, so that no request waits for a decision or a balance."""
    log = instance.command_log

    def mark(record: Record) -> None:
        log.marks.clear()  # they would fill the memory of the test
        instance.write(LOYALTY_DECISIONS, record["CommandID"], record)

    def send(record: Record) -> None:
        log.commands.clear()
        decided = mark_of(record["CommandID"], record["Kind"], record["RequestHash"])
        refused = {"Sequence": 2, "Status": "refused", "Reason": "insufficient-points", "AccountSequence": 1}
        instance.write(LOYALTY_DECISIONS, record["CommandID"], {**decided, **refused, "CustomerCardNo": "A"})

    log.on_mark, log.on_send = mark, send


_TARGET_TEXTS = (
    *(b"A", b"A", b"STR1", b"customer-balances", b"store-sales", b"stores", b"decisions", b"0", b"1", b"-1", b"1e3"),
    *(b"%00", b"%2F", b"%2e%2e", b"%zz", b"%C3%A9", b"%ff", b"%ED%A0%80", b"%E2%80%8B", b"%20", b"+", b"*", b"x" * 129),
    *(b"9" * 400, b"nan", b"inf", b"1_0", b"%D9%A0", b"2026-01-31", b"2026-02-30", b"2026-01-31T09:30:00Z"),
    *(b"0001-01-01", b"9999-12-31T23:59:59.999999Z", b"true", b"false", b"null", b"", b"x" * 5_000),
    *(b"%F0%9F%9B%92", b"a=b", b"%0d%0aX:1"),
)
_SECONDS = (b"0", b"0", b"0.001", b"-1", b"x", b"nan", b"inf", b"30.0001", b"1e9", b"%30", b"")
"""Values of ``timeout``. None of them makes a request wait for long."""

_HEADER_VALUES = (
    *(b"", b"x", b"k1", b"k2", b"\xff", b"x" * 256, b'"1.2.3"', b"*", b"application/json", b"text/plain", b"0", b"-1"),
    *(b"Bearer ", b"Bearer x.y.z", b"Basic YTpi", b"1767373451000.3.117", b"9" * 400, b"00-" + b"a" * 32, b"1", b"nan"),
    *(b"http://one:8080", b"application/json; charset=utf-16", b"chunked", b"127.0.0.1", b"gzip", b"\x0b", b"1,2"),
    b"e30.e30.e30",
)
_HEADERS = (
    *(b"idempotency-key", b"content-type", b"loyalty-deadline", b"if-none-match", b"last-event-id", b"accept", b"host"),
    *(b"loyalty-hop", b"loyalty-forwarded-to", b"authorization", b"traceparent", b"x-request-id", b"origin", b"cookie"),
)
_BODIES = (
    b'{"points": "10.00", "reason": "r", "actor": "a", "allowNegative": false}',
    b'{"from": "A", "to": "B", "points": "10.00"}',
    b'{"reason": "r", "actor": "a", "newCard": "B"}',
    b'{"into": "B", "reason": "r", "actor": "a"}',
    b'{"keys": ["A", "B"]}',
    b'{"positions": ["0:42"], "dryRun": true}',
    b'{"programme": "loyalty-factor: 0.02\\n", "effectiveFrom": "2027-01-01T00:00:00Z"}',
    b'{"TotalAmount": 12.5, "CustomerCardNo": "A", "InvoiceLineItems": [{"ItemCode": "458", "TotalValue": 12.5}]}',
)


@cache
def _operations() -> list[tuple[str, str, list[str]]]:
    """Method, path and query parameters of each operation."""
    paths = Instance().app.openapi()["paths"]
    return [
        (method.upper(), path, [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]


def requests(rng: Random) -> Iterator[HttpRequest]:
    """Requests of all operations with odd values, damaged bodies, and paths that do not exist."""
    operations = _operations()
    while True:
        method, path, parameters = rng.choice(operations)
        parts = path.split("/")
        target = b"/".join(rng.choice(_TARGET_TEXTS) if part[:1] == "{" else part.encode() for part in parts)
        query = {name: rng.choice(_TARGET_TEXTS) for name in parameters if rng.random() < 0.4}
        if "timeout" in parameters:
            query["timeout"] = rng.choice(_SECONDS)
        if rng.random() < 0.05:
            query["unknown"] = b"1"
        if query:
            target += b"?" + b"&".join(name.encode() + b"=" + value for name, value in query.items())
        if rng.random() < 0.05:
            target = b"/" + damaged(target, ANY_MUTATIONS, rng).replace(b" ", b"")
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        if rng.random() < 0.9:
            headers.append((b"idempotency-key", b"k%d" % rng.randrange(10_000)))
        headers += [(rng.choice(_HEADERS), rng.choice(_HEADER_VALUES)) for _ in range(rng.choice((0, 0, 1, 2)))]
        has_body = method == "POST" or rng.random() < 0.05
        body = damaged(rng.choice(_BODIES), JSON_MUTATIONS, rng) if has_body else b""
        if rng.random() < 0.03:
            method = rng.choice(("PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "GET", "x"))
        yield HttpRequest(method, target, headers, body, rng.random() < 0.5)


@contextmanager
def prepare_requests() -> Iterator[Feed]:
    """An app without credentials, and one that demands them."""
    with ExitStack() as stack:
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        apps: dict[bool, FastAPI] = {}
        credentials: list[tuple[bytes, bytes]] = []
        for secured in (False, True):
            apps[secured], keys = stack.enter_context(_instance(secured=secured))
            lifespan = apps[secured].router.lifespan_context(apps[secured])
            loop.run_until_complete(lifespan.__aenter__())
            stack.callback(lambda each: loop.run_until_complete(each.__aexit__(None, None, None)), lifespan)
            credentials = [(b"authorization", b"Bearer " + keys["all"])]

        def feed(request: HttpRequest) -> Outcome:
            # If the input has credentials, the app gets two. It must refuse them.
            more = credentials if request.is_keyed else []
            sent = request._replace(headers=[*request.headers, *more])
            return loop.run_until_complete(_call(apps[request.is_keyed], sent))

        yield feed


async def _call(app: FastAPI, request: HttpRequest) -> Outcome:
    """Give a request to an app as uvicorn does, and look at its response."""
    path, _, query = request.target.partition(b"?")
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": request.body, "more_body": False}]
    sent: list[dict[str, Any]] = []
    ended = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        if not any(message.get("body") for message in sent):
            # A stream of events ends when its client disconnects. Other responses end earlier.
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 0.002 if path.endswith(b"/events") else _TIMEOUT_SECONDS)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if not message.get("more_body", False) and message["type"] == "http.response.body":
            ended.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": request.method,
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "root_path": "",
        "query_string": query,
        "headers": request.headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
    await asyncio.wait_for(app(scope, receive, send), _TIMEOUT_SECONDS)
    start = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return judged(start["status"], dict(start["headers"]), body, has_body=request.method != "HEAD")


def judged(status: int, headers: dict[bytes, bytes], body: bytes, *, has_body: bool = True) -> Outcome:
    """Check a response: no status 500, and each error is a problem with a text."""
    if status >= 500 and status not in _UNAVAILABLE:
        raise DefectError(f"status {status}: {body[:500]!r}")
    if status < 400:
        return Outcome.ACCEPTED
    if headers.get(b"content-type") != b"application/problem+json":
        raise DefectError(f"status {status} has no problem, but {headers} {body[:200]!r}")
    if has_body:
        problem = orjson.loads(body)
        if not problem["type"].startswith("urn:problem-type:loyalty:") or not problem["detail"]:
            raise DefectError(f"an unclear problem: {problem}")
    return Outcome.REFUSED


_CASES = 50


def cases(rng: Random) -> Iterator[tuple[str, str, GenerationMode, int]]:
    """An operation, whether its requests are valid, and a seed from which Schemathesis makes many requests."""
    operations = [(method, path) for method, path, _ in _operations() if not path.endswith("/events")]
    while True:
        yield *rng.choice(operations), rng.choice([*GenerationMode]), rng.randrange(2**31)


@contextmanager
def prepare_cases() -> Iterator[Feed]:
    with _instance(secured=False) as (app, _), TestClient(app, raise_server_exceptions=False):
        document = schemathesis.openapi.from_asgi("/openapi.json", app)

        def feed(given_case: tuple[str, str, GenerationMode, int]) -> Outcome:
            method, path, mode, number = given_case
            outcomes = []

            @seed(number)
            @settings(max_examples=_CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=document[path][method].as_strategy(generation_mode=mode))
            def each(case: Any) -> None:
                for waits in ("minSequence", "openedTime", "erased"):
                    (case.query or {}).pop(waits, None)
                if "timeout" in (case.query or {}) or method in {"POST", "DELETE"}:
                    case.query = {**(case.query or {}), "timeout": 0}
                response = case.call()
                headers = {name.lower().encode(): value[0].encode() for name, value in response.headers.items()}
                outcomes.append(judged(response.status_code, headers, response.content))

            with suppress(Unsatisfiable):  # no request of this operation is invalid
                each()
            return Outcome.ACCEPTED if Outcome.ACCEPTED in outcomes else Outcome.REFUSED

        yield feed


_SOCKET_PIECES = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\t", b"\xff", b"\x16\x03\x01\x02\x00", b"HTTP/1.0", b"HTTP/9.9"),
    *(b"Content-Length: %s\r\n" % size for size in (b"5", b"-1", b"9" * 20, b"x")),
    *(b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"Expect: 100-continue\r\n"),
    *(b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"Host: a\r\nHost: b\r\n"),
    *(b"X: " + b"y" * 70_000, b"GET " + b"/" * 70_000, b"A: b\r\n" * 3_000, b" folded\r\n"),
]


class Stream(NamedTuple):
    """The bytes of one connection.

    Attributes:
        responses: how many requests it has, if all of them are whole and valid. The server closes such a connection.
    """

    packets: list[bytes]
    responses: int | None = None


_NOT_A_REQUEST = b"DELETE /v1/customers/B HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 0\r\n\r\n"
"""A body that looks like a request."""

_OFFERS = (b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n")
_LAST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
"""A valid request, after which the server closes the connection."""


def _whole_requests(rng: Random) -> Stream:
    """Valid requests in a row, also with an offer of another protocol. The packets end anywhere."""
    count = rng.randrange(1, 5)
    whole = b""
    for _ in range(count):
        body = rng.choice((b"", *_BODIES, _NOT_A_REQUEST, _NOT_A_REQUEST * 2))
        length, framed = b"Content-Length: %d" % len(body), body
        if body and rng.random() < 0.4:
            length, framed = b"Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        start = rng.choice((b"GET /livez", b"POST /v1/simulate", b"POST /unknown"))
        head = start + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + rng.choice(_OFFERS)
        whole += head + length + b"\r\n\r\n" + framed
    whole += _LAST
    cuts = [0, *sorted(rng.choices(range(len(whole)), k=rng.choice((0, 1, 1, 2, 5)))), len(whole)]
    return Stream([whole[first:last] for first, last in pairwise(cuts)], count + 1)


def streams(rng: Random) -> Iterator[Stream]:
    """Connections: whole and damaged requests, several requests in a row, and random bytes."""
    for request in requests(rng):
        if rng.random() < 0.05:
            yield Stream([rng.randbytes(rng.randrange(200))])
            continue
        if rng.random() < 0.2:
            yield _whole_requests(rng)
            continue
        headers = [*request.headers, (b"content-length", b"%d" % len(request.body))]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        whole = request.method.encode() + b" " + request.target + b" HTTP/1.1\r\n" + head + b"\r\n" + request.body
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            place = rng.randrange(len(whole) + 1)
            piece = rng.choice(_SOCKET_PIECES)
            whole = whole[:place] + piece + whole[place + rng.randrange(3) :]
        whole = damaged(whole, ANY_MUTATIONS, rng) if rng.random() < 0.3 else whole
        yield Stream([whole * rng.choice((1, 1, 1, 2)) if not request.target.endswith(b"/events") else whole])


@contextmanager
def prepare_streams() -> Iterator[Feed]:
    """A server with its own thread. A client that has sent its bytes closes its half of the connection."""
    with _instance(secured=False) as (app, _):
        server = server_of(app, Settings(api_host=HOST, api_port=free_port()), None, 1)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.01)
        try:
            yield lambda stream: exchanged((HOST, server.config.port), stream)
        finally:
            server.should_exit = True
            thread.join()


def exchanged(address: tuple[str, int], stream: Stream) -> Outcome:
    """Send packets over a new connection and read to its end. Then the server must answer a valid request.

    Each whole request must get one response.
    """
    received = _received(address, stream)
    alive = _received(address, Stream([_LAST], 1))
    if not alive.startswith(b"HTTP/1.1 200 "):
        raise DefectError(f"the server is not alive: {alive[:200]!r}")
    statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", received)
    if any(status[:1] == b"5" and int(status) not in _UNAVAILABLE for status in statuses):
        raise DefectError(f"a status of {statuses}: {received[:500]!r}")
    if stream.responses not in {None, len(statuses)}:
        raise DefectError(f"{len(statuses)} responses to {stream.responses} requests: {received[:500]!r}")
    return Outcome.ACCEPTED if b"200" in statuses or b"201" in statuses else Outcome.REFUSED


def _received(address: tuple[str, int], stream: Stream) -> bytes:
    received = bytearray()
    with socket.create_connection(address, timeout=_TIMEOUT_SECONDS) as connection, suppress(ConnectionError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, packet in enumerate(stream.packets):
            time.sleep(_PAUSE_SECONDS if number else 0)
            connection.sendall(packet)
        if stream.responses is None:
            connection.settimeout(_QUIET_SECONDS)
            with suppress(TimeoutError):
                while data := connection.recv(65_536):
                    received += data
            connection.settimeout(_TIMEOUT_SECONDS)
            with suppress(OSError):  # the server may have closed the connection
                connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(65_536):
            received += data
    return bytes(received)


TARGETS = (
    FuzzTarget("http-requests", requests, prepare_requests, chunk=5_000),
    FuzzTarget("http-schemathesis", cases, prepare_cases, chunk=20, share=1 / _CASES),
    FuzzTarget("http-sockets", streams, prepare_streams, chunk=2_000),
)
