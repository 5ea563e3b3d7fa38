"""Sends requests to the other instances of the group over pooled connections."""

import logging
from collections.abc import AsyncGenerator
from functools import partial
from http import HTTPStatus
from ssl import SSLContext

import anyio
import httpx
import structlog
from pydantic import ValidationError

from api.routing.locator import Target
from api.routing.peer_messages import (
    DEADLINE,
    FORWARDED_TO,
    GROUP,
    PeerRequest,
    PeerResponse,
    PeerTimeoutError,
    PeerUnreachableError,
)
from api.security.hops import HOP, HopRequest, Hops
from api.security.problems import ForwardRefused
from services import tracing
from services.interactive_queries.reports import InstanceReport, PeerReports

log = structlog.get_logger(__name__)

_RESPONSE_HEADERS = frozenset(
    {"allow", "cache-control", "content-type", "etag", "location", "retry-after", "vary", "x-request-id"}
)
"""The headers of a peer's response that the client gets, besides those of this API (Loyalty-…)."""

REPORT_PATH = "/v1/instances/local"

_CONNECT_SECONDS = 0.5
# A live peer sends its report, or the response to a read that need not wait, within this time.
_REPORT_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 30.0
"""An idle connection to a peer is not used again after this time. The server of the peer keeps it open for longer."""

# LOYALTY_MOST_CONNECTIONS limits the requests that wait for peers. With a lower limit here, long polls could use all
# connections. Then other requests would wait for a connection, and a healthy peer would become a suspect.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_ALIVE_SECONDS)
# Each stream keeps its connection, so streams have a pool of their own.
_STREAM_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=KEEP_ALIVE_SECONDS)
_STREAM_SECONDS = 5.0
"""A live peer sends the first bytes of a stream within milliseconds."""


class PeerStream:
    """A stream of events of a peer. It keeps its connection until ``close``, also if nobody reads it.

    A generator could not promise this: the close of a generator that has not begun does not run its ``finally``.
    """

    def __init__(self, response: httpx.Response, target: Target) -> None:
        self._response = response
        self._url = target.url

    async def parts(self) -> AsyncGenerator[bytes]:
        """The bytes as they arrive. Raises PeerError when the connection breaks."""
        try:
            async for part in self._response.aiter_raw():
                yield part
        except httpx.HTTPError as error:
            raise PeerUnreachableError(f"{self._url}: {type(error).__name__}") from error

    async def close(self) -> None:
        await self._response.aclose()


class PeerClient:
    """Sends requests to peers. The peer serves such a request itself, and never forwards it again.

    Args:
        group: the group of this instance. A peer of another group refuses a request.
        hops: signs the requests; None: they are not signed, because peers need no credentials.
    """

    def __init__(self, reports: PeerReports, group: str, hops: Hops | None, tls: SSLContext) -> None:
        self._reports = reports
        self._group = group
        self._hops = hops
        # httpx logs every URL, and our URLs contain card numbers.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # A proxy or a redirect could send the request to a server outside of the group.
        client = partial(httpx.AsyncClient, trust_env=False, follow_redirects=False, verify=tls)
        self._client, self._streams = client(limits=_LIMITS), client(limits=_STREAM_LIMITS)

    async def forward(
        self,
        request: PeerRequest,
        target: Target,
        seconds_left: float,
        timeout_seconds: float,
        suspect_after: float = _REPORT_SECONDS,
    ) -> PeerResponse:
        """Send a request to a peer.

        Args:
            target: the peer, and the role in which it reads.
            seconds_left: time until the deadline of the client. The peer receives it.
            timeout_seconds: seconds to wait for the response.
            suspect_after: seconds. A peer that does not respond in time becomes a suspect only if ``timeout_seconds``
                is at least so long.

        Raises:
            PeerError: there is no response.
        """
        response = await self._send(self._client, request, target, seconds_left, timeout_seconds, suspect_after)
        return self._answer(response, target)

    async def open_stream(self, request: PeerRequest, target: Target) -> PeerStream | PeerResponse:
        """Send a request for a stream of events. Returns the stream, or the response with a problem.

        Raises PeerError if there is no response.
        """
        response = await self._send(self._streams, request, target, _STREAM_SECONDS, _STREAM_SECONDS)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            try:
                with anyio.fail_after(_STREAM_SECONDS):  # The HTTP client of streams has no timeout for reads.
                    await response.aread()
            except httpx.HTTPError as error:
                raise PeerUnreachableError(f"{target.url}: {type(error).__name__}") from error
            except TimeoutError as error:
                raise PeerTimeoutError(f"{target.url} sent only a part of its response in time") from error
            return self._answer(response, target)
        return PeerStream(response, target)

    async def _send(
        self,
        client: httpx.AsyncClient,
        request: PeerRequest,
        target: Target,
        seconds_left: float,
        timeout_seconds: float,
        suspect_after: float = _REPORT_SECONDS,
    ) -> httpx.Response:
        """Send a request and wait for the response, or for the headers of a stream. Raises PeerError."""
        url = httpx.URL(target.url).copy_with(raw_path=_escape_dots(request.path))
        own_headers = {FORWARDED_TO: target.role.value, GROUP: self._group, DEADLINE: f"{seconds_left:.3f}"}
        sent_headers = {"accept-encoding": "identity", **request.headers, **own_headers}
        if self._hops:
            # The peer trusts this instance, so the credentials of the caller are not sent.
            sent_headers.pop("authorization", None)
            key = request.headers.get("idempotency-key", "")
            signed = HopRequest(request.method, url.raw_path.decode("latin-1"), target.role.value, key)
            sent_headers[HOP] = self._hops.sign(request.caller, target.url, signed, request.content)
        is_stream = client is self._streams
        connect_timeout = min(timeout_seconds, _CONNECT_SECONDS)
        timeouts = httpx.Timeout(timeout_seconds, connect=connect_timeout, read=None if is_stream else timeout_seconds)
        try:
            with tracing.span("forward", "client", address=str(url.netloc, "ascii")):
                built = client.build_request(
                    request.method,
                    url,
                    headers=httpx.Headers(sent_headers | tracing.headers(), encoding="latin-1"),
                    content=request.content,
                    timeout=timeouts,
                )
                # httpx protects the close of a connection from timeouts of anyio. A timeout of asyncio would interrupt
                # the close, and the connection would stay open for ever.
                with anyio.fail_after(timeout_seconds):
                    return await client.send(built, stream=is_stream)
        except (httpx.TimeoutException, TimeoutError) as error:
            reason = f"{target.url} did not answer within {timeout_seconds:.1f} s"
            if isinstance(error, httpx.ConnectTimeout):
                reason = f"{target.url} did not accept a connection within {connect_timeout:.1f} s"
            # A client can send a deadline of a millisecond. Then a timeout says nothing about the peer.
            if timeout_seconds >= suspect_after:
                self._reports.suspect(target.url, reason)
            raise PeerTimeoutError(reason) from error
        except httpx.HTTPError as error:
            reason = f"{target.url}: {type(error).__name__} {error}".strip()
            # httpx did not send a request that violates HTTP. So the error says nothing about the peer.
            if not isinstance(error, httpx.LocalProtocolError):
                self._reports.suspect(target.url, reason)
            raise PeerUnreachableError(reason) from error

    def _answer(self, response: httpx.Response, target: Target) -> PeerResponse:
        """The part of a response that the client gets.

        Raises PeerError if the peer has refused this instance, or if something else than an instance has responded.
        """
        kept = {
            name: value
            for name, value in response.headers.items()
            if name in _RESPONSE_HEADERS or name.startswith("loyalty-")
        }
        answer = PeerResponse(response.content, response.status_code, kept)
        if not _is_of_an_instance(answer):
            # A proxy may respond for a dead peer, or another program may use its address.
            reason = f"{target.url} sent a response that is not of an instance (status {answer.status_code})"
            self._reports.suspect(target.url, reason)
            raise PeerUnreachableError(reason)
        if answer.problem_code == ForwardRefused.code:
            log.error(
                "an instance refused a request of this instance",
                instance=target.url,
                hint="compare LOYALTY_TOPIC_PREFIX, LOYALTY_APPLICATION_SERVER, LOYALTY_API_ACCESS, "
                "LOYALTY_INSTANCE_SECRET_FILE and the clocks of both",
            )
            raise PeerUnreachableError(f"{target.url} refused a request of this instance")
        return answer

    async def report(self, url: str) -> InstanceReport:
        """The report of the instance at a URL. Raises PeerError, also if another process listens at the URL."""
        try:
            with anyio.fail_after(_REPORT_SECONDS):
                signed = {HOP: self._hops.sign(None, url, HopRequest("GET", REPORT_PATH))} if self._hops else {}
                response = await self._client.get(url + REPORT_PATH, headers=signed, timeout=_REPORT_SECONDS)
            report = InstanceReport.model_validate_json(response.content)
        except (httpx.HTTPError, TimeoutError, ValidationError) as error:
            raise PeerUnreachableError(f"{url}: {type(error).__name__}") from error
        if (report.url, report.group) != (url, self._group):
            raise PeerUnreachableError(
                f"{url} has another instance: {report.url} of the group {report.group}. "
                "If it stays there, correct LOYALTY_APPLICATION_SERVER"
            )
        return report

    async def close(self) -> None:
        await self._client.aclose()
        await self._streams.aclose()


def _is_of_an_instance(answer: PeerResponse) -> bool:
    """Whether the response of a forwarded request can come from an instance: JSON, a problem, or 304 without a body."""
    if answer.status_code >= HTTPStatus.BAD_REQUEST:
        return answer.problem_code is not None
    if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
        return answer.status_code == HTTPStatus.NOT_MODIFIED
    return answer.headers.get("content-type", "").startswith("application/json")


def _escape_dots(path: bytes) -> bytes:
    """Escape the segments "." and "..". httpx would resolve them, but a key may contain them."""
    path, mark, query = path.partition(b"?")
    segments = (each.replace(b".", b"%2E") if each in (b".", b"..") else each for each in path.split(b"/"))
    return b"/".join(segments) + mark + query
