"""Collects the reports of the other instances of the group."""

import asyncio
from contextlib import suppress

import structlog

from api.routing.locator import Locator
from api.routing.peer_client import PeerClient
from api.routing.peer_messages import PeerError
from services.interactive_queries.reports import PeerReports

log = structlog.get_logger(__name__)

_INTERVAL_SECONDS = 1.0


class ReportCollector:
    """Collects the reports of all peers every second. It runs as a task of the event loop."""

    def __init__(self, peers: PeerClient, locator: Locator, reports: PeerReports) -> None:
        self._peers = peers
        self._locator = locator
        self._reports = reports
        self._wanted = asyncio.Event()

    def collect_soon(self) -> None:
        """Collect at once, because the group has changed. Call it in the event loop."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            urls = self._locator.peers
            self._reports.keep_only(urls)
            await asyncio.gather(*(self._collect(url) for url in urls))
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()

    async def _collect(self, url: str) -> None:
        try:
            report = await self._peers.report(url)
        except PeerError as error:
            if self._reports.why_suspect(url) is None:
                log.warning("an instance does not answer", instance=url, error=str(error))
            self._reports.suspect(url, str(error))
        except Exception:
            # This task must not end, because only a report clears a suspect.
            if self._reports.why_suspect(url) is None:
                log.exception("the report of an instance could not be collected", instance=url)
            self._reports.suspect(url, "its report could not be collected")
        else:
            self._reports.note(report)
