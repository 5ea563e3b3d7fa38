"""The console in a browser: one real app with memory stores. The real account decides, and the test plays Kafka."""

import threading
import time
from decimal import Decimal

import pytest
import uvicorn
from selenium.webdriver.common.keys import Keys

from api import operations
from api.operations import Operations
from schemas.topics import LOYALTY_COMMANDS, LOYALTY_DECISIONS
from services.codecs.events import decode_event
from services.domain.events import Event, Purchase
from services.messaging.avro import Record, encoder
from services.messaging.dead_letters import DeadLetter, RecordPosition
from services.programmes.file import parse_programme
from services.programmes.topic import Version
from services.settings import Settings
from services.status import Lag, Part, QueryWork, Status
from tests.support.browser import CHROMIUM, DRIVER, Browser
from tests.support.builders import IDS
from tests.support.clusters import Instance
from tests.support.loyalty_query import Accounts

CARD = "9265846829"
VALUE = "#balance .value"
LETTER = DeadLetter(
    RecordPosition(0, 1), 1_000, "pos-invoices", RecordPosition(2, 7), "no-total-amount", b"STR1", b'{"InvoiceNumber"'
)
MISSING = "Chromium and its driver are not installed: `make browser` installs them on Debian"
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)


class Shop:
    """An instance behind a socket, and the loyalty query behind it."""

    def __init__(self) -> None:
        self.instance = Instance("http://one:8080")
        self.instance.own_everything()
        self.instance.app.state.dependencies.operations = Operations(Settings())
        self.accounts = Accounts()
        log = self.instance.command_log
        log.on_mark = lambda mark: self.instance.write(LOYALTY_DECISIONS, mark["CommandID"], mark)
        log.on_send = self._decide
        self._server = uvicorn.Server(uvicorn.Config(self.instance.app, port=0, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        host, port = self._server.servers[0].sockets[0].getsockname()
        return f"http://{host}:{port}"

    def __exit__(self, *_: object) -> None:
        self.instance.app.state.dependencies.streams.close()
        self._server.should_exit = True
        self._thread.join(60)

    def earn(self, points: str) -> None:
        now = time.time_ns() // 1_000_000
        self._process(CARD, Purchase(now, f"I-{now}", Decimal(points) * 50))

    def _decide(self, command: Record) -> None:
        event = decode_event(time.time_ns() // 1_000_000, encoder(LOYALTY_COMMANDS, IDS)(command))
        self._process(command["CustomerCardNo"], event)

    def _process(self, card: str, event: Event) -> None:
        for change in self.accounts.process(card, event)[1]:
            self.instance.write(*change)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[DeadLetter]:
    """Plays Kafka: one dead letter, any publication of a programme, and a system that works."""
    found: list[DeadLetter] = []
    looks = 0

    def replay(_: Settings, letters: list[DeadLetter]) -> int:
        found.extend(letters)
        return len(letters)

    def status(_: Settings, __: object, api: operations.ApiState) -> Status:
        nonlocal looks
        looks += 1
        counts = {"pos-invoices": 100 * looks, "loyalty": 90 * looks}
        work = {"loyalty": QueryWork(90 * looks, looks, 1.5 * looks)}
        buckets = dict.fromkeys((0.5, float("inf")), looks)
        parts, lags = [Part("kafka", "127.0.0.1:9092", None)], [Lag("query loyalty", "pos-invoices", 20)]
        return Status(time.time(), parts, counts, work, buckets, counts, lags, api.instances)

    def publish(text: str, *_: object) -> Version:
        return Version(1, 0, 0, text, parse_programme(text))

    monkeypatch.setattr(operations.dead_letters, "read", lambda *_: iter([LETTER]))
    monkeypatch.setattr(operations.dead_letters, "replay", replay)
    monkeypatch.setattr(operations, "publish_programme", publish)
    monkeypatch.setattr(operations, "status_of", status)
    return found


def test_the_console_works_by_keyboard_on_a_phone_and_without_errors(replayed: list[DeadLetter]) -> None:
    """A redemption, a balance that changes by itself, the overview, a programme and a replay."""
    shop = Shop()
    shop.earn("25.00")
    with shop as url, Browser(url, 360, 800) as browser:
        redeem_by_keyboard(browser)
        shop.earn("7.50")
        browser.until_shown("22.50", VALUE)
        browser.resize(1200, 900)
        browser.picture("helpdesk")

        browser.resize(1200, 1300, "dark")
        browser.open("/console/")
        browser.until_shown("http://one:8080 (this one)", "#state")
        has_lines = "return charts.get('rate')?.data[0].length > 2"
        browser.until("lines in a chart", lambda: browser.driver.execute_script(has_lines))
        assert [] == browser.violations()
        browser.picture("overview")

        repair(browser, replayed)
        assert [] == browser.errors()


def redeem_by_keyboard(browser: Browser) -> None:
    """Find the customer, reserve 10 points and spend them. The hands stay on the keyboard."""
    browser.open("/")
    browser.tab_to("Helpdesk")
    browser.press(Keys.ENTER)
    browser.until("the field of the card", lambda: browser.focus_is_on("card"))
    browser.press(CARD, Keys.ENTER)
    browser.until_shown("25.00", VALUE)
    assert [] == browser.violations()
    assert not browser.is_wider_than_the_screen()
    browser.tab_to("Redeem")
    browser.press(Keys.ENTER)
    browser.until("the field of the points", lambda: browser.focus_is_on("points"))
    browser.press("10.00", Keys.ENTER)
    browser.until("a confirmation", lambda: browser.focus_is_on("Confirm"))
    assert [] == browser.violations()
    browser.press(Keys.ENTER)
    browser.until("the redemption", lambda: browser.focus_is_on("Capture"))
    browser.until_shown("15.00", VALUE)
    browser.press(Keys.ENTER)
    browser.until("the field of the redemption", lambda: browser.focus_is_on("redemption"))
    browser.press(Keys.ENTER)
    browser.until("a confirmation", lambda: browser.focus_is_on("Confirm"))
    browser.press(Keys.ENTER)
    browser.until_shown("Capture: done.")
    browser.until_shown("The points changed by -10.00.")


def repair(browser: Browser, replayed: list[DeadLetter]) -> None:
    """Check and publish a programme, and replay a dead letter."""
    browser.open("/console/operations")
    browser.until_shown("no-total-amount", "#letters")
    browser.until_shown("Programme file", "#programmes")
    assert [] == browser.violations()
    assert not browser.is_wider_than_the_screen()

    browser.element("#programme").send_keys("loyalty-factor: x")
    browser.click("Check")
    browser.until_shown("The programme is not valid.")
    browser.element("#programme").clear()
    browser.element("#programme").send_keys("loyalty-factor: 0.05")
    browser.click("Publish …")
    browser.click("Confirm")
    browser.until_shown("Version 1 is in effect")

    browser.element("input[name=position]").click()
    browser.click("Replay the selection …")
    browser.until_shown("The replay publishes 1 to pos-invoices")
    assert [] == replayed
    browser.picture("operations")
    browser.click("Confirm")
    browser.until_shown("1 published again.")
    assert [LETTER] == replayed
