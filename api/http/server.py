"""The HTTP/1.1 server: uvicorn with certificates, and with limits for slow and for large requests."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from types import FrameType
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application, HTTPScope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.http.problems import HeadersTooLarge, Problem, RequestTimeout, TooManyConnections, UnreadableRequest
from api.http.sending import PART_BYTES, with_safe_responses, without_chunks
from api.http.upgrade_offers import OfferIgnoringParser
from services.settings import Settings
from services.tls import Certificate

log = structlog.get_logger(__name__)

HEADER_BYTES = 64 * 1024
"""The largest headers of a request, together. Also the most bytes between two parts of its body, and after them."""

HANDSHAKE_SECONDS = 10.0
"""The longest TLS handshake of a client. It needs two round trips, and less than a second in a slow mobile network."""

_NOT_LOGGED = ("Invalid HTTP request received.", "Cancel %s running task(s)")
_LONGEST_URL = 65_535
_LAST_SECONDS = 1.0
_TICKS_PER_SECOND = 10
_KEEP_ALIVE_SECONDS = 75
"""How long a connection stays open without a request. Clients and load balancers give up an idle connection after 5 to
60 seconds. They must do so before the server does. Otherwise the server can close a connection while a request arrives.
"""


class HandshakeLimitedLoop(uvloop.Loop):
    """The event loop of the server. It ends a TLS handshake sooner than after asyncio's minute.

    Until its handshake has ended, a connection is unknown to ``LimitedProtocol``. So idle clients could use up the open
    files of the process. uvicorn has no option for this time.
    """

    async def create_server(self, *args: Any, **options: Any) -> asyncio.AbstractServer:  # type: ignore[override]  # stubs of uvloop
        if options.get("ssl"):
            options["ssl_handshake_timeout"] = HANDSHAKE_SECONDS
        return await super().create_server(*args, **options)


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol HTTP/1.1, with limits that uvicorn does not have.

    It ends a request that is not complete in time, and one whose headers, trailers, or sizes and extensions of chunks
    are too large. It ends a connection whose client does not read the response, and each connection above the
    limit of the process. It responds with a problem to bytes that are not a request. It ignores offers of an upgrade.

    ``LimitedServer`` checks the times once a second. This costs less than a timer for each request.

    Attributes:
        most_connections: how many connections the process has open at once.
    """

    most_connections: int

    _arriving_since: float | None
    """When the current request began to arrive; None if it is complete."""

    _in_head = False
    """Whether the request line or the headers are arriving."""

    _framing_bytes = 0
    """The bytes of the head. After the head: bytes since the last part of the body, for example sizes of chunks."""

    _is_counted = True
    """Whether ``_framing_bytes`` has all bytes of the head. The head of a pipelined request can begin in bytes that
    were counted for the previous request.
    """

    _started: RequestResponseCycle | None = None
    """The request that the app has got last. See ``_running``."""

    _drops_bytes = False
    """Whether the connection ends after the responses that are on their way, so that later bytes have no effect."""

    _problem: Problem | None = None
    _unread_bytes = 0
    _unread_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = OfferIgnoringParser(self)
        self._arriving_since = self.loop.time()
        # The kernel and TLS keep up to megabytes. While a client reads those, end_if_unread sees no progress.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, PART_BYTES)
        transport.set_write_buffer_limits(PART_BYTES)
        # limit_concurrency of uvicorn would refuse only requests, and leave idle connections open.
        if len(self.connections) > self.most_connections:
            self._refuse(TooManyConnections())
            self._abort_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if running := self._running:
            # uvicorn tells only the newest request. The app would continue to write into the closed connection.
            running.disconnected = True
            running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._drops_bytes:
            return
        self._is_counted = self._is_counted or not self._in_head
        self._framing_bytes += len(data)
        idle_timer = self.timeout_keep_alive_task if self._arriving_since is None else None
        super().data_received(data)
        if self._arriving_since is None and not self._running:
            self._wait_for_request(idle_timer)
        limit = HEADER_BYTES + (min(len(self.url), _LONGEST_URL) if self._in_head else 0)
        if (self._in_head or self._arriving_since is not None) and self._framing_bytes > limit:
            self._end(HeadersTooLarge())

    def _wait_for_request(self, idle_timer: asyncio.TimerHandle | None) -> None:
        """Let the time of an idle connection run again, because the bytes have begun no request.

        uvicorn ends this time at each packet, and starts it only at the end of a response. The packet can be the end of
        a body that arrives after the response: then the time begins now.

        Args:
            idle_timer: the timer before the packet, if no request was arriving. Then the packet only has line breaks,
                and they do not give the client more time.
        """
        if not self.transport.is_closing():
            end = idle_timer.when() if idle_timer else self.loop.time() + self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_at(end, self.timeout_keep_alive_handler)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:  # The parser repeats the head of a request with an offer. It arrives only once.
            self._arriving_since, self._in_head = self.loop.time(), True

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # The parser repeats the head without the offer.
        # Blanks and tabs around a value are no part of it (RFC 9110, section 5.5). httptools removes only those before
        # the value. The scope has the same list.
        self.headers[:] = [(name, value.rstrip(b" \t")) for name, value in self.headers]
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )
        is_small = self._is_counted and self._framing_bytes <= HEADER_BYTES
        if not is_small and _size(self.headers) > HEADER_BYTES:
            self._problem = HeadersTooLarge()
            raise httptools.HttpParserError
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):  # RFC 9112, section 3.2
            raise httptools.HttpParserError
        if b"#" in self.url:
            # uvicorn would ignore the text after it. If a client does not encode the # of a card, the request would
            # reach another card.
            raise httptools.HttpParserError
        if b"%" in self.url:
            _require_unambiguous(self.url)
        super().on_headers_complete()
        # An error until here leaves the request in its head, because ``cycle`` is still the previous request.
        self._in_head, self._framing_bytes = False, 0
        # uvicorn appends trailers to this list, but a trailer is no header (RFC 9110, section 6.5.1). The request keeps
        # the former list.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        # All bytes until now belong to this request. The next request may begin in the same bytes.
        self._arriving_since, self._framing_bytes, self._is_counted = None, 0, False
        super().on_message_complete()
        if not self.parser.should_keep_alive():
            # For example, a trailer says Connection: close. httptools drops all later bytes, and nobody would answer.
            cycle: RequestResponseCycle = self.cycle
            cycle.keep_alive = False
            if cycle.response_complete:
                self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._started = cycle
        if self._arriving_since is not None and cycle is self.cycle and not self._in_head:
            # uvicorn has read nothing while this request waited. So the time for its body begins now.
            self._arriving_since = self.loop.time()
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] == "1.1" else without_chunks(app, cycle))

    @property
    def _running(self) -> RequestResponseCycle | None:
        """The request that the app handles now; None if no response is on its way.

        uvicorn's ``cycle`` is the newest request. If a client sends requests before it has the responses to others,
        ``cycle`` waits in ``pipeline`` until the response to the running one is complete.
        """
        started = self._started
        return None if started is None or started.response_complete else started

    def send_400_response(self, msg: str) -> None:
        self._end(self._problem or UnreadableRequest())

    def shutdown(self) -> None:
        super().shutdown()
        if not self._running:
            self._abort_soon()

    def _abort_soon(self) -> None:
        """Do not wait for the client at the end of the connection.

        With TLS, ``close`` waits 30 seconds for the client's part of the end. An idle client may not look until its
        next request.
        """
        self.loop.call_later(_LAST_SECONDS, self._abort)

    def _abort(self) -> None:
        if self.transport.get_write_buffer_size():
            self._abort_soon()  # The client still reads a response. ``end_if_unread`` limits this time.
        else:
            self.transport.abort()

    def end_if_slow(self, seconds: float) -> None:
        """End the connection if its request has not arrived completely within this time."""
        if self._arriving_since is None or self.loop.time() - self._arriving_since < seconds:
            return
        if self._running and (self._in_head or self.pipeline):
            return  # The response to the previous request is on its way.
        self._end(RequestTimeout())

    def end_if_unread(self, seconds: float) -> None:
        """End the connection if its client has not read enough of the response within this time."""
        now, unread = self.loop.time(), self.transport.get_write_buffer_size()
        if not unread or not self._unread_bytes or unread <= self._unread_bytes - PART_BYTES:
            self._unread_bytes, self._unread_since = unread, now
        elif now - self._unread_since >= seconds:
            self.transport.abort()

    def resume_writing(self) -> None:
        # The client has read the buffer. The next part of a streamed response can make the buffer as large as before.
        # Without this line it would then seem that the client has read nothing.
        super().resume_writing()
        self._unread_bytes = 0

    def _end(self, problem: Problem) -> None:
        """Refuse the request that arrives. The complete requests before it get their responses, and no problem.

        If there is no request, or its response is on its way, only close the connection.
        """
        # uvicorn sets both with the first request.
        scope: HTTPScope | None = self.scope
        cycle: RequestResponseCycle | None = self.cycle
        running = self._running
        if running and self._in_head:
            self._end_after(self.cycle)
        elif running and self.pipeline:
            self.pipeline.popleft()  # A part of the body of the newest request is missing, so it must not start.
            self._end_after(self.pipeline[0][0] if self.pipeline else running)
        elif scope is None or (not self._in_head and cycle is not None and cycle.response_started):
            self.transport.close()
        else:
            self._refuse(problem)

    def _end_after(self, last: RequestResponseCycle) -> None:
        """Close the connection after the response to this request, and drop all bytes that still arrive.

        A problem at once would be wrong: the client would take it for the response to its first request. This can be a
        command that takes effect.
        """
        self._arriving_since, self._in_head, self._drops_bytes = None, False, True
        last.keep_alive = False  # Then uvicorn closes the connection.
        # If bytes were unread at that time, the kernel would reset the connection, and the client would lose a part of
        # the response.
        self.flow.resume_reading()

    def _refuse(self, problem: Problem) -> None:
        self._arriving_since, self._in_head = None, False
        response = problem.response()
        headers = (*response.raw_headers, (b"connection", b"close"))
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[response.status_code] + lines + b"\r\n" + response.body)
        self.transport.close()


class LimitedServer(uvicorn.Server):
    """Checks once a second for slow requests, for responses that nobody reads, and for a new certificate."""

    def __init__(
        self, config: uvicorn.Config, request_seconds: float, renew: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._request_seconds = request_seconds
        self._renew = renew
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # While uvicorn runs, this is the handler of SIGTERM and SIGINT. Another handler would be called at the end.
        self._on_stop()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SECOND == 0:
            self._renew()
            for connection in list(self.server_state.connections):
                if isinstance(connection, LimitedProtocol):
                    connection.end_if_slow(self._request_seconds)
                    connection.end_if_unread(self._request_seconds)
        return await super().on_tick(counter)


def _require_unambiguous(url: bytes) -> None:
    """Refuse a URL if two different URLs would lead to the same resource. Raises HttpParserError.

    In a text that is not UTF-8, each wrong byte would become U+FFFD. So two cards could get the same account. The
    patterns of Starlette's routes ignore a line feed at the end of a path.
    """
    try:
        unquote_to_bytes(url).decode()
    except UnicodeDecodeError as error:
        raise httptools.HttpParserError from error
    if unquote_to_bytes(url.partition(b"?")[0]).endswith(b"\n"):
        raise httptools.HttpParserError


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def server_of(
    app: ASGIApp,
    settings: Settings,
    certificate: Certificate | None,
    grace_seconds: int,
    on_stop: Callable[[], None] = lambda: None,
) -> LimitedServer:
    """The server of an app.

    Args:
        certificate: None for HTTP without TLS.
        grace_seconds: running requests may take this long after a signal. Then they get the problem ``stopping``.
        on_stop: is called at the signal, before the running requests end.
    """
    # Do not log the mistakes of clients, because a client could fill the log. Do not log requests that are cancelled at
    # the end of the process, because they get a response.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith(_NOT_LOGGED))
    config = uvicorn.Config(
        with_safe_responses(app),
        host=settings.api_host,
        port=settings.api_port,
        loop=f"{__name__}:{HandshakeLimitedLoop.__name__}",
        http=type("Protocol", (LimitedProtocol,), {"most_connections": settings.most_connections}),
        ws="none",
        # Paths contain card numbers, and a log line costs more than a lookup.
        access_log=False,
        log_config=None,
        # Without the variable, uvicorn would trust the headers of 127.0.0.1. So a local program could name any address.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace_seconds,
        server_header=False,
        # A request that waited for another one would otherwise start in its context, and so in its trace.
        reset_contextvars=True,
    )
    config.load()
    if certificate:
        config.ssl = certificate.serve(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings.api_client_ca_file)
    return LimitedServer(
        config, settings.request_timeout.total_seconds(), certificate.renew if certificate else lambda: None, on_stop
    )
