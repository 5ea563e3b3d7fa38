"""The script of the console, in a browser. The instance is real, with memory stores and no Kafka."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from api import operations
from api.http.server import server_of
from api.operations import BrokerUnavailable, Operations
from infra.local.ports import free_port
from schemas.topics import LOYALTY_BALANCES
from services import clock
from services.api_keys.keys import Scope
from services.domain.entries import Kind
from services.ledger.queries import LedgerQueries
from services.messaging.dead_letters import RecordPosition
from services.settings import Settings
from tests.support.browser import CHROMIUM, DRIVER, Browser
from tests.support.builders import available_points, entry
from tests.support.clusters import Instance
from tests.support.ledger import Ledger
from tests.support.secured import SecuredGroup
from tests.unit.api.console.conftest import BALANCE, CARD, PAGES, decide
from tests.unit.api.operators.conftest import LETTERS, Kafka
from tests.unit.api.servers import PATIENCE_SECONDS, running

pytestmark = [
    pytest.mark.program,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium and its driver are not installed"),
]

REQUESTS = "form.htmx-request, button.htmx-request"
"""What the user has sent, and has no response yet."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for all tests, because its start takes seconds."""
    with Browser("") as browser:
        yield browser


@contextmanager
def opened(instance: Instance, browser: Browser) -> Iterator[Browser]:
    """The browser for a customer of an instance that decides commands at once."""
    instance.own_everything()
    instance.write(LOYALTY_BALANCES, CARD, BALANCE)
    decide(instance)
    settings = Settings(api_port=free_port())
    browser.url = settings.advertised_url
    with running(server_of(instance.app, settings, None, 1)):
        try:
            yield browser
        finally:
            first, *others = browser.driver.window_handles
            for each in others:
                browser.driver.switch_to.window(each)
                browser.driver.close()
            browser.driver.switch_to.window(first)
            browser.driver.get("about:blank")
            browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})


def confirm_an_adjustment(browser: Browser) -> None:
    """Fill in the form, up to the button Confirm."""
    browser.open(f"/console/helpdesk?card={CARD}")
    browser.click("Adjust")
    browser.until("the form", lambda: browser.focus_is_on("points"))
    for name, text in {"points": "5.00", "reason": "goodwill", "actor": " of Ann"}.items():
        browser.element(f"#field-{name}").send_keys(text)
    browser.click("Continue")
    browser.until("the confirmation", lambda: browser.focus_is_on("Confirm"))


def test_a_lost_response_is_shown_and_a_repetition_takes_effect_once(chromium: Browser) -> None:
    """Without the message somebody would begin again, with a new key. Then the points could change twice."""
    instance = Instance()
    with opened(instance, chromium) as browser:
        confirm_an_adjustment(browser)
        browser.go_offline()
        browser.click("Confirm")
        browser.until_shown("Choose Confirm again: a repetition takes effect once.", "#beside-form")
        browser.click("Back")
        browser.until("the end of the request", lambda: not browser.all(REQUESTS))
        assert "Choose Confirm again" in browser.text("#beside-form")
        browser.go_offline(offline=False)
        browser.click("Confirm")
        browser.until_shown("Adjust: done.")
        assert [] == browser.all("#beside-form")
        assert browser.element("[data-done]") == browser.driver.switch_to.active_element
    assert 1 == len(instance.command_log.commands)


def click(browser: Browser, selector: str, count: int) -> None:
    """Click an element with the mouse. ``count`` is 2 for the second click of a double click."""
    find = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.x + 9, box.y + 9]"
    x, y = browser.driver.execute_script(find, selector)
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": count}
        browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)


def press_enter(browser: Browser, *, again: bool = False) -> None:
    """Press Enter and hold it. ``again`` is a repetition of the key while it is held."""
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "autoRepeat": again, **key})


def test_a_held_key_and_a_double_click_confirm_nothing(chromium: Browser) -> None:
    """The button Confirm appears at the place of Continue, and gets the focus. Nobody has read the confirmation yet."""
    instance = Instance()
    with opened(instance, chromium) as browser:
        browser.open(f"/console/helpdesk?card={CARD}")
        for is_key in (True, False):

            def hasten(*, is_key: bool = is_key) -> None:
                press_enter(browser, again=True) if is_key else click(browser, "#action [type=submit]", 2)

            browser.click("Erase")
            browser.until("the form", lambda: browser.focus_is_on("Continue"))
            hasten()
            assert (1, 0) == (len(browser.all("#action form")), len(browser.all(REQUESTS)))
            assert browser.focus_is_on("Continue")
            press_enter(browser)
            browser.until("the confirmation", lambda: browser.focus_is_on("Confirm"))
            hasten()
            assert (True, 0) == (browser.focus_is_on("Confirm"), len(browser.all(REQUESTS)))
        assert [] == instance.command_log.commands
        click(browser, "#action [type=submit]", 1)
        browser.until_shown("Erase: done.")
    assert 1 == len(instance.command_log.commands)


def test_a_command_under_way_keeps_its_form(chromium: Browser) -> None:
    """Its key would be gone, and the user would begin again with a new key. Meanwhile the user may type elsewhere."""
    instance = Instance()
    with opened(instance, chromium) as browser:
        answer, instance.command_log.on_send = instance.command_log.on_send, lambda _: None
        confirm_an_adjustment(browser)
        browser.click("Back")
        browser.until("the form", lambda: browser.element("#field-reason").get_attribute("value") == "goodwill")
        browser.click("Continue")
        browser.until("the confirmation", lambda: browser.focus_is_on("Confirm"))
        browser.click("Confirm")
        for label in ("Back", "Redeem", "Confirm"):
            browser.click(label)
            (under_way,) = browser.all(REQUESTS)
            assert ("form", True) == (under_way.tag_name, "Sending …" in under_way.text)
        browser.element("#card").send_keys("7")
        answer(instance.command_log.commands[0])
        browser.until_shown("Adjust: done.")
        assert browser.focus_is_on("card")
        assert 1 == len(instance.command_log.commands)
        confirm_an_adjustment(browser)
        browser.driver.execute_script("htmx.config.timeout = 500")
        browser.click("Confirm")
        browser.until_shown("No response came. Choose Confirm again", "#beside-form")


class Gateway:
    """Passes each request on. For each path in ``broken``, it replaces one response with an error of its own."""

    def __init__(self, app: ASGIApp, broken: set[str]) -> None:
        self._app = app
        self._broken = broken

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope.get("path") not in self._broken:
            await self._app(scope, receive, send)
            return

        self._broken.remove(scope["path"])

        async def lose(_: Message) -> None: ...

        await self._app(scope, receive, lose)
        await PlainTextResponse("Bad Gateway", 502)(scope, receive, send)


def leaving_is_asked(browser: Browser) -> bool:
    """Whether the browser asks the user before it leaves the page."""
    script = "return !window.dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    return bool(browser.driver.execute_script(script))


def test_an_error_of_a_gateway_does_not_replace_the_confirmation(chromium: Browser) -> None:
    """The command was executed. The form keeps its key, so a repetition takes effect once."""
    instance, broken = Instance(), set[str]()
    instance.app.add_middleware(Gateway, broken=broken)
    with opened(instance, chromium) as browser:
        broken.add("/console/customer")
        browser.open(f"/console/helpdesk?card={CARD}")
        browser.until_shown("The server answered with an error (status 502). Load the page again.", "#customer")
        confirm_an_adjustment(browser)
        assert not leaving_is_asked(browser)
        broken.add("/console/customer/adjust")
        browser.click("Confirm")
        browser.until_shown("(status 502). Choose Confirm again: a repetition takes effect once.", "#beside-form")
        assert leaving_is_asked(browser)
        browser.click("Confirm")
        browser.until_shown("Adjust: done.")
        assert [] == browser.all("#beside-form")
        assert not leaving_is_asked(browser)
    assert 1 == len(instance.command_log.commands)


def test_a_page_does_not_call_an_old_balance_live(chromium: Browser) -> None:
    """A refresh fails once, and no later event comes. Then nobody owns the partition. Then the stream hangs."""
    instance, broken = Instance(), set[str]()
    instance.app.add_middleware(Gateway, broken=broken)
    with opened(instance, chromium) as browser:
        browser.open(f"/console/helpdesk?card={CARD}")
        browser.until_shown("Live.", "#connection")
        broken.add("/console/customer/balance")
        instance.write(LOYALTY_BALANCES, CARD, BALANCE | available_points("17.00") | {"Sequence": 4})
        browser.until_shown("17.00", "#balance .value")
        assert set() == broken
        announced = browser.element("#total[role=status]")
        browser.until("the total", lambda: announced.get_attribute("textContent") == "17.00 points available")

        for place in instance.membership.owned:
            instance.drop(place)
        browser.until_shown("No connection. Trying again …", "#connection")
        collect = "new MutationObserver(() => (seen = connection.textContent)).observe(connection, {childList: true})"
        browser.driver.execute_script(f"window.seen = ''; {collect}")
        time.sleep(5)  # The stream begins again two times, and has no event.
        assert not browser.driver.execute_script("return seen")

        browser.driver.execute_script("window.EventSource = class { addEventListener() {} close() {} }")
        browser.driver.execute_script("document.dispatchEvent(new Event('visibilitychange'))")
        assert "Connecting …" == browser.text("#connection")


@dataclass
class Held:
    """Which responses the Gate holds.

    Attributes:
        next: a part of the URL of the next request whose response the Gate holds.
        asked: the URLs of all requests.
        waiting: the URLs of the requests whose responses are ready and held, until the test clears the list.
        lost: a part of the URL of the next request that gets an error of a gateway.
    """

    next: str | None = None
    asked: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    lost: str | None = None


class Gate:
    """Holds responses. They show the state at the time of their requests."""

    def __init__(self, app: ASGIApp, held: Held) -> None:
        self._app = app
        self._held = held

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        url = f"{scope.get('path')}?{scope.get('query_string', b'').decode()}"
        self._held.asked.append(url)
        if self._held.lost and self._held.lost in url:
            self._held.lost = None
            await PlainTextResponse("Bad Gateway", 502)(scope, receive, send)
            return
        if not self._held.next or self._held.next not in url:
            await self._app(scope, receive, send)
            return
        self._held.next = None
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        self._held.waiting.append(url)
        while url in self._held.waiting:  # noqa: ASYNC110 - the test is in another thread
            await asyncio.sleep(0.02)
        for each in messages:
            await send(each)


def hold(browser: Browser, held: Held, url: str, ask: Callable[[], Any]) -> None:
    """Send a request to the URL, and hold its response."""
    held.next = url
    ask()
    browser.until("the held response", lambda: held.waiting)


def test_a_later_choice_replaces_one_that_waits(chromium: Browser) -> None:
    """A slow response has blocked all buttons for 45 seconds. Later its form replaced another one."""
    instance, held = Instance(), Held()
    instance.app.add_middleware(Gate, held=held)
    with opened(instance, chromium) as browser:
        browser.open(f"/console/helpdesk?card={CARD}")
        hold(browser, held, "/customer/adjust", lambda: browser.click("Adjust"))
        browser.click("Adjust")
        browser.until("the form", lambda: browser.focus_is_on("points"))
        held.waiting.clear()
        hold(browser, held, "/customer/block", lambda: browser.click("Block"))
        browser.click("Redeem")
        browser.until_shown("Redeem", "#action h3")
        held.waiting.clear()
        browser.until("the end of the requests", lambda: not browser.all(REQUESTS))
        assert "Redeem" == browser.text("#action h3")

        browser.open("/console/operations")
        browser.until_shown("Programme file", "#programmes")
        browser.element("#programme").send_keys("loyalty-factor: 0.05")
        hold(browser, held, "/operations/programmes", lambda: browser.click("Check"))
        browser.click("Check")
        browser.until_shown("The programme is valid.", "#programme-outcome")
        held.waiting.clear()


@contextmanager
def with_statement(browser: Browser, ledger: Ledger, entries: int) -> Iterator[tuple[Held, Callable[..., None]]]:
    """A page with a statement, the Gate, and a function that adds an entry and waits until the balance shows it."""
    instance, held = Instance(), Held()
    instance.app.add_middleware(Gate, held=held)
    numbers = iter(range(1, 1_000))

    def append(kind: Kind = Kind.EARNED, *, reserved: int = 0) -> None:
        number, opened_time = next(numbers), BALANCE["OpenedTime"]
        own = {"kind": kind, "time": opened_time, "opened_time": opened_time, "total": number * 100}
        ledger.append((CARD, entry(number, 100, reserved=reserved, **own)))
        points = available_points(f"{number}.00")
        instance.write(LOYALTY_BALANCES, CARD, BALANCE | points | {"Sequence": number})
        if number > entries:
            browser.until_shown(f"{number}.00", "#balance .value")

    with opened(instance, browser), closing(LedgerQueries(Settings(ledger_url=ledger.url))) as queries:
        instance.app.state.dependencies.ledger = queries
        for _ in range(entries):
            append()
        browser.open(f"/console/helpdesk?card={CARD}")
        browser.until_shown("Live.", "#connection")
        browser.until_shown("earned", "#entries")
        browser.errors()
        yield held, append


def refresh(browser: Browser) -> None:
    browser.driver.execute_script("htmx.trigger('#entries', 'refresh')")


def newest_total(browser: Browser) -> str:
    return browser.text("#entries tbody tr:first-child td:nth-child(4)")


def statements(held: Held) -> int:
    return sum("/customer/entries" in each for each in held.asked)


def test_the_statement_shows_what_its_filter_says(chromium: Browser, ledger: Ledger) -> None:
    """An earlier refresh gets its response after the filter. The refreshes of a later event keep the filter. They also
    keep the focus on a button of a redemption.
    """
    with with_statement(chromium, ledger, 3) as (held, append):
        browser = chromium
        append(Kind.ADJUSTED, reserved=100)
        append(Kind.RESERVED, reserved=100)
        browser.until_shown("Void", "#entries")
        browser.element("#entries .buttons button:last-child").send_keys("")
        append(Kind.EXPIRED, reserved=100)
        browser.until_shown("expired", "#entries")
        assert browser.focus_is_on("Void")

        hold(browser, held, "/customer/entries", lambda: refresh(browser))
        browser.driver.execute_script("kind.value = 'adjusted'")
        browser.click("Filter")
        browser.until("the filter", lambda: "earned" not in browser.text("#entries"))
        held.waiting.clear()
        browser.until("the response of the refresh", lambda: not browser.all("#entries.htmx-request"))
        assert "earned" not in browser.text("#entries")
        append(Kind.ADJUSTED)
        browser.until("both entries", lambda: browser.text("#entries").count("adjusted") > 1)
        assert "earned" not in browser.text("#entries")
        assert [] == browser.errors()


def test_a_refresh_under_way_finishes_and_one_more_follows(chromium: Browser, ledger: Ledger) -> None:
    """Otherwise the statement would not change while events come faster than its responses."""
    with with_statement(chromium, ledger, 3) as (held, append):
        hold(chromium, held, "/customer/entries", append)
        before = statements(held)
        for _ in range(2):
            append()
        assert before == statements(held)
        held.waiting.clear()
        chromium.until("the last entry", lambda: newest_total(chromium) == "6.00")
        assert before + 1 == statements(held)
        assert [] == chromium.errors()


def test_a_refresh_leaves_the_choice_of_the_user_alone(chromium: Browser, ledger: Ledger) -> None:
    """Events come before and after the response to Older entries. If that fails, the statement is live again."""
    with with_statement(chromium, ledger, 45) as (held, append):
        browser = chromium
        hold(browser, held, "cursor=", lambda: browser.click("Older entries"))
        append()
        refresh(browser)
        assert [] == browser.all("#entries.htmx-request")
        held.waiting.clear()
        browser.until("the older entries", lambda: newest_total(browser) == "25.00")
        append()
        refresh(browser)
        assert [] == browser.all("#entries.htmx-request")
        browser.click("Filter")
        browser.until("the newest entries", lambda: newest_total(browser) == "47.00")

        hold(browser, held, "/customer/entries", append)
        append()
        held.lost = "cursor="
        browser.click("Older entries")
        browser.until_shown("Choose the button again.", "#beside-form")
        held.waiting.clear()
        browser.until("the newest entries", lambda: newest_total(browser) == "49.00")


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


def test_a_confirmation_stays_while_the_user_signs_in_again(chromium: Browser, tmp_path: Path) -> None:
    """The key ends between the form and its confirmation."""
    secured = SecuredGroup(tmp_path)
    instance = Instance("http://one:8080", secured.security("http://one:8080"))
    first, second = (secured.key(Scope.BALANCE_READ, Scope.POINTS_ADJUST) for _ in range(2))

    def sign_in(browser: Browser, key: str) -> None:
        browser.element("#credentials").send_keys(key)
        browser.click("Sign in")
        browser.until_shown("Helpdesk", "h1")

    with opened(instance, chromium) as browser:
        browser.open("/console/sign-in")
        sign_in(browser, first.text)
        confirm_an_adjustment(browser)
        secured.publish(first.key.revoked(1))
        browser.driver.execute_script("htmx.trigger('#balance', 'refresh')")
        browser.until_shown("Sign in in another tab", "#balance")
        browser.click("Confirm")
        browser.until_shown("Sign in in another tab", "#beside-form")
        page, *_ = browser.driver.window_handles
        browser.element("#beside-form a").click()
        browser.until("another tab", lambda: len(browser.driver.window_handles) > 1)
        browser.driver.switch_to.window(browser.driver.window_handles[1])
        sign_in(browser, second.text)
        browser.driver.switch_to.window(page)
        browser.click("Confirm")
        browser.until_shown("Adjust: done.")
    assert [f"key:{second.key.key_id}"] == [each["Actor"] for each in instance.command_log.commands]


def test_hidden_pages_leave_the_connections_of_the_browser_to_others(chromium: Browser) -> None:
    """A browser opens six connections to an instance, and each live page needs one. The next page would never load."""
    instance = Instance()
    with opened(instance, chromium) as browser:
        browser.driver.set_page_load_timeout(PATIENCE_SECONDS)
        for number in range(7):
            if number:
                browser.driver.switch_to.new_window("window")
            browser.open(f"/console/helpdesk?card={CARD}")
            browser.until_shown("Live.", "#connection")
            browser.driver.minimize_window()
        browser.driver.switch_to.window(browser.driver.window_handles[0])
        instance.write(LOYALTY_BALANCES, CARD, BALANCE | available_points("17.00") | {"Sequence": 4})
        assert "417.04" in browser.text("#balance")
        browser.driver.set_window_rect(0, 0, 1200, 1000)
        browser.until_shown("17.00", "#balance .value")


def test_a_hidden_page_shows_no_balance_of_an_erased_customer_afterwards(chromium: Browser) -> None:
    """The page has no stream while it is hidden, so it misses the erasure."""
    instance = Instance()
    with opened(instance, chromium) as browser:
        browser.open(f"/console/helpdesk?card={CARD}")
        browser.until_shown("Live.", "#connection")
        browser.driver.minimize_window()
        instance.write(LOYALTY_BALANCES, CARD, None)
        browser.driver.set_window_rect(0, 0, 1200, 1000)
        browser.until_shown("No such customer", "#balance")
        assert "417.04" not in browser.text("main")
