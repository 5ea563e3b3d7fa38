"""Requests to the other instances: over pooled connections, one hop, never to anybody outside of the group."""

import asyncio
import logging
from contextlib import suppress

import httpx
import structlog
from fastapi import Request, Response
from pydantic import ValidationError

from api.http import headers
from services.interactive_queries.metadata import ClusterMetadata, Target
from services.interactive_queries.reports import InstanceReport, PeerReports

log = structlog.get_logger(__name__)

REPORT_PATH = "/v1/instances/local"

_CONNECT_SECONDS = 0.5
_REPORT_SECONDS = 1.0
_REPORT_INTERVAL_SECONDS = 1.0
_LIMITS = httpx.Limits(max_connections=512, max_keepalive_connections=64, keepalive_expiry=30)


class PeerError(Exception):
    """An instance gave no answer."""


class PeerUnreachableError(PeerError):
    """It refused the connection, or broke it."""


class PeerTimeoutError(PeerError):
    """It did not answer in time."""


class Forwarder:
    """Asks other instances of the group."""

    def __init__(self) -> None:
        # It logs every URL, and ours hold card numbers.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # No proxy from the environment, no redirects: an answer comes from the instance that was asked or not at all.
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False, limits=_LIMITS)

    async def forward(
        self, request: Request, target: Target, seconds_left: float, patience: float, *, path: bytes | None = None
    ) -> Response:
        """Send a request on as it is; returns the answer as it is, headers of the connection left out.

        Args:
            target: an instance of the group, and as what it is asked.
            seconds_left: until the caller's deadline; passed on.
            patience: seconds to wait for this instance.
            path: raw, with its query; None for the request's own.

        Raises:
            PeerError: there was no answer.
        """
        sent = {name: value for name in headers.REQUEST_HEADERS if (value := request.headers.get(name)) is not None}
        sent |= {headers.FORWARDED_TO: target.role.value, headers.DEADLINE: f"{seconds_left:.3f}"}
        if path is None:
            path, query = request.scope.get("raw_path") or request.url.path.encode(), request.scope["query_string"]
            path = path + b"?" + query if query else path
        url = httpx.URL(target.url).copy_with(raw_path=_literal(path))
        content = await request.body() if request.method == "POST" else None
        timeout = httpx.Timeout(patience, connect=min(patience, _CONNECT_SECONDS))
        try:
            async with asyncio.timeout(patience):
                answer = await self._client.request(
                    request.method,
                    url,
                    headers={"accept-encoding": "identity", **sent},
                    content=content,
                    timeout=timeout,
                )
        except (httpx.TimeoutException, TimeoutError) as error:
            raise PeerTimeoutError(f"{target.url} did not answer within {patience:.1f} s") from error
        except httpx.HTTPError as error:
            raise PeerUnreachableError(f"{target.url}: {type(error).__name__} {error}".strip()) from error
        kept = {name: value for name in headers.RESPONSE_HEADERS if (value := answer.headers.get(name)) is not None}
        return Response(answer.content, answer.status_code, kept)

    async def report(self, url: str, group: str) -> InstanceReport:
        """What an instance says of itself; raises PeerError, also if something else listens where it should be."""
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                answer = await self._client.get(url + REPORT_PATH, timeout=_REPORT_SECONDS)
            report = InstanceReport.model_validate_json(answer.content)
        except (httpx.HTTPError, TimeoutError, ValidationError) as error:
            raise PeerUnreachableError(f"{url}: {type(error).__name__}") from error
        if (report.url, report.group) != (url, group):
            raise PeerUnreachableError(f"{url} is {report.url} of the group {report.group}")
        return report

    async def close(self) -> None:
        await self._client.aclose()


def _literal(path: bytes) -> bytes:
    """The path and query so that httpx leaves them as they are.

    It resolves the segments "." and "..", which a key may hold: that would be another key, or another route.
    """
    path, mark, query = path.partition(b"?")
    segments = (each.replace(b".", b"%2E") if each in (b".", b"..") else each for each in path.split(b"/"))
    return b"/".join(segments) + mark + query


class ReportCollector:
    """Keeps the reports of the other instances fresh, as a task of the event loop."""

    def __init__(self, forwarder: Forwarder, metadata: ClusterMetadata, reports: PeerReports, group: str) -> None:
        self._forwarder = forwarder
        self._metadata = metadata
        self._reports = reports
        self._group = group
        self._wanted = asyncio.Event()

    def collect_soon(self) -> None:
        """Do not wait for the next interval: the group has changed. Called in the event loop."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            peers = self._metadata.peers
            self._reports.keep_only(peers)
            await asyncio.gather(*(self._ask(url) for url in peers))
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_INTERVAL_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()

    async def _ask(self, url: str) -> None:
        try:
            report = await self._forwarder.report(url, self._group)
        except PeerError as error:
            if self._reports.why_suspect(url) is None:
                log.warning("an instance does not answer", instance=url, error=str(error))
            self._reports.suspect(url, str(error))
        else:
            self._reports.note(report)
