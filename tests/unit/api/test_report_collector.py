"""The reports of the other instances: when an instance collects them, and which instances become suspects."""

import asyncio

import httpx
import pytest

from api.routing import report_collector
from services.clock import boot_seconds
from services.interactive_queries.reports import InstanceReport
from tests.support.clusters import Group, view
from tests.unit.api.three_instances import URLS, running, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_a_change_of_the_group_brings_new_reports_at_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that has left is forgotten. The others are asked once, and again only after the interval."""
    monkeypatch.setattr(report_collector, "_INTERVAL_SECONDS", 60)
    first, *_, last = group.instances
    peers, asked = first.app.state.dependencies.peers, list[str]()

    async def report(url: str) -> InstanceReport:
        asked.append(url)
        return next(each.local.report() for each in group.instances if each.url == url)

    peers.report = report
    async with running(group):
        await until(lambda: sorted(asked) == URLS[1:])
        assert first.reports.of(last.url)
        first.reports.suspect(last.url, "it does not answer")
        first.membership.view = view({url: [] for url in URLS[:2]}, boot_seconds())
        first.membership.changed()
        await until(lambda: len(asked) > 2)
        for _ in range(100):
            await asyncio.sleep(0)
        assert URLS[1:2] == asked[2:]
        assert (None, None) == (first.reports.of(last.url), first.reports.why_suspect(last.url))


async def test_an_unexpected_error_does_not_end_the_reports() -> None:
    """The peer becomes a suspect, and the next report ends that."""
    group = Group.of(2)
    group.share(lambda place: place[1] % 2)
    async with running(group):
        first, dependencies = group.instances[0], group.instances[0].app.state.dependencies
        collector = report_collector.ReportCollector(dependencies.peers, dependencies.locator, first.reports)
        report = dependencies.peers.report

        async def broken(*_: object) -> None:
            raise httpx.InvalidURL("no host")

        dependencies.peers.report = broken
        await collector._collect(URLS[1])
        assert first.reports.why_suspect(URLS[1])
        dependencies.peers.report = report
        await collector._collect(URLS[1])
        assert first.reports.why_suspect(URLS[1]) is None
