"""The pages of the console in a browser: the overview, the page of operations, and the look of all pages."""

from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from api import operations
from api.operations import BrokerUnavailable, Operations
from services import clock
from services.messaging.dead_letters import RecordPosition
from services.settings import Settings
from tests.support.browser import Browser
from tests.support.clusters import Instance
from tests.unit.api.console.console_customer import PAGES
from tests.unit.api.console_in_browser.browser_and_gates import IN_BROWSER, opened
from tests.unit.api.operators.played_kafka import LETTERS, Kafka

pytestmark = IN_BROWSER
STATUS: dict[str, Any] = {
    "time": "2026-11-28T12:00:00Z",
    "parts": [{"name": "pipeline", "problem": None, "address": "http://127.0.0.1:9000/metrics"}],
    "instances": [],
    "queries": [{"name": "fan-out", "rate": 3.0, "batchSeconds": None}],
    "topics": [{"name": "pos-invoices", "records": 7, "rate": 1.5, "lag": {}}],
    "freshnessSeconds": {"0.5": 0.4, "0.99": 0.9},
}
PROBLEM = BrokerUnavailable(reason="the test has no Kafka")


class StatusOfSystem:
    """Answers for a system, as long as it has a status."""

    def __init__(self, app: ASGIApp, statuses: list[dict[str, Any]]) -> None:
        self._app = app
        self._statuses = statuses

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        answer = JSONResponse(self._statuses[-1]) if self._statuses else PROBLEM.response()
        await (answer if scope.get("path") == "/v1/status" else self._app)(scope, receive, send)


def test_the_overview_keeps_the_place_of_its_reader(chromium: Browser) -> None:
    """On a phone, nobody could read the last columns, and nobody could reach the last table by keyboard."""
    instance, statuses = Instance(), [STATUS]
    instance.app.add_middleware(StatusOfSystem, statuses=statuses)
    with opened(instance, chromium) as browser:
        browser.resize(320, 800)
        browser.open("/console/")
        browser.until_shown("7", "#topics")
        browser.driver.execute_script("box = topics.parentElement; box.focus(); box.scrollLeft = 200")
        statuses.append(STATUS | {"topics": [STATUS["topics"][0] | {"records": 8}]})
        browser.driver.execute_script("htmx.trigger('#state', 'refresh')")
        browser.until_shown("8", "#topics")
        assert [200, True] == browser.driver.execute_script("return [box.scrollLeft, document.activeElement === box]")
        assert "" == browser.text("#state")
        assert [] == browser.violations()
        statuses.clear()
        browser.driver.execute_script("htmx.trigger('#state', 'refresh')")
        browser.until_shown("Kafka does not answer", "#state")
        assert "8" in browser.text("#topics")
        browser.resize(1200, 1000)


def test_a_chart_shows_its_newest_values_as_text_and_no_line_without_values(chromium: Browser) -> None:
    """A value is null if it is longer than the metric measures. The colours follow the scheme of the browser.

    The archive reads once an hour, so its values would hide the others.
    """
    queries = [STATUS["queries"][0] | {"name": name} for name in ("fan-out", "archive")]
    topic = STATUS["topics"][0] | {"lag": {"query fan-out": 2, "query archive": 36_000}}
    with opened(Instance(), chromium) as browser:
        browser.open("/console/")
        for second, freshness in enumerate((0.4, None, 0.75), start=1):
            status = STATUS | {"time": f"2026-11-28T12:00:0{second}Z", "freshnessSeconds": {"0.5": freshness}}
            status |= {"queries": queries, "topics": [topic]}
            browser.driver.execute_script("showStatus(arguments[0])", status)
        browser.until_shown("0.75", "[data-chart=freshness] .u-legend")
        assert "12:00:03" in browser.text("[data-chart=freshness] .u-legend")
        names = browser.driver.execute_script("return ['rate', 'lag'].map((kind) => charts.get(kind).names)")
        assert [["fan-out"], ["query fan-out"]] == names
        plot = "charts.get('freshness').plot"
        assert not browser.driver.execute_script(f"return {plot}.series[1].spanGaps")
        ink = f"return [{plot}.series[1].stroke(), {plot}.axes[0].stroke()]"
        light = browser.driver.execute_script(ink)
        browser.resize(1200, 1000, "dark")
        dark = browser.driver.execute_script(ink)
        assert (True, True) == (light[0] != dark[0], light[1] != dark[1])
        browser.resize(1200, 1000)


def test_each_reader_has_a_line_in_the_chart_of_the_lag(chromium: Browser) -> None:
    """A deployment can have many webhooks. No two lines look the same."""
    readers = [*(f"query {name}" for name in ("fan-out", "loyalty", "sales", "export")), "ledger"]
    readers += [f"webhook {number}" for number in range(8)]
    topic = STATUS["topics"][0] | {"lag": dict.fromkeys(readers, 7)}
    with opened(Instance(), chromium) as browser:
        browser.open("/console/")
        browser.driver.execute_script("showStatus(arguments[0])", STATUS | {"topics": [topic]})
        assert all(reader in browser.text("[data-chart=lag] .u-legend") for reader in readers)
        lines = "charts.get('lag').plot.series.slice(1).map((each) => each.stroke() + each.dash)"
        looks = browser.driver.execute_script(f"return {lines}")
        assert len(readers) == len(set(looks))


def test_every_dead_letter_can_be_replayed(chromium: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator replays hundreds of records of one reason page by page, without a click for each record."""
    kafka, now = Kafka(), clock.now()
    kafka.letters = [replace(LETTERS[0], position=RecordPosition(0, number), time=now) for number in range(3)]
    monkeypatch.setattr(operations.dead_letters, "DeadLetters", kafka.read)
    monkeypatch.setattr("api.console.operations._LETTERS_ON_A_PAGE", 2)
    instance = Instance()
    instance.app.state.dependencies.operations = Operations(Settings())
    with opened(instance, chromium) as browser:
        browser.open("/console/operations")
        for count, name in ((2, "newest"), (1, "next")):
            browser.until_shown(f"The {name} {count} of 3.", "#letters")
            browser.element("[data-all]").click()
            browser.click("Replay the selection …")
            browser.until_shown(f"The replay publishes {count} to pos-invoices.", "#replay")
            assert [] == browser.violations()
            for each in browser.all("#letters > button"):
                each.click()


def test_pages_are_accessible_in_both_colour_schemes(chromium: Browser) -> None:
    """Other tests run axe in the light scheme, except for the sign-in."""
    with opened(Instance(), chromium) as browser:
        for page, scheme in (("sign-in", "light"), *((page, "dark") for page in PAGES)):
            browser.resize(360, 800, scheme)
            browser.open(f"/console/{page}")
            browser.until("all parts", lambda: not browser.all(".htmx-request"))
            assert ([], False) == (browser.violations(), browser.is_wider_than_the_screen()), (page, scheme)
        browser.resize(1200, 1000)
