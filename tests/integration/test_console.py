"""The console in a browser, with real API processes and a real broker. A stand-in decides with the real account."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from schemas import topics
from services.domain.events import Purchase
from services.messaging import headers
from services.messaging.clients import producer
from services.settings import Settings
from tests.support.browser import CHROMIUM, DRIVER, Browser
from tests.support.kafka import read_all
from tests.support.loyalty_query import Accounts, KafkaLoyaltyQuery
from tests.support.processes import DEADLINE_SECONDS, POLL_SECONDS, ApiProcess

CARD = "9265846829"
VALUE = "#balance .value"

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="Chromium and its driver are not installed: `make browser` installs them on Debian",
)


@pytest.fixture
def decider(settings: Settings, topics_created: list[str]) -> KafkaLoyaltyQuery:  # noqa: ARG001
    return KafkaLoyaltyQuery(settings, Accounts())


@pytest.fixture
def instances(settings: Settings, tmp_path: Path, topics_created: list[str]) -> Iterator[list[ApiProcess]]:  # noqa: ARG001
    """Two instances, each with partitions of its own."""
    with ExitStack() as stack:
        found = []
        for name in "ab":
            own = settings.model_copy(update={"state_dir": tmp_path / name, "standby_replicas": 1})
            found.append(stack.enter_context(ApiProcess(own, tmp_path / f"{name}.log")))
        for each in found:
            each.wait_until_ready()
        wait_for(lambda: all(each.owned("customer-balances") for each in found))
        yield found


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def earn(decider: KafkaLoyaltyQuery, points: str) -> None:
    now = time.time_ns() // 1_000_000
    decider.process(CARD, Purchase(now, f"I-{now}", Decimal(points) * 50))


def write_dead_letter(settings: Settings) -> None:
    origin = {
        headers.DEAD_LETTER_TOPIC: settings.name_of(topics.POS_INVOICES),
        headers.DEAD_LETTER_PARTITION: "0",
        headers.DEAD_LETTER_OFFSET: "7",
        headers.DEAD_LETTER_REASON: "no-total-amount",
    }
    client = producer(settings, "test")
    client.produce(
        settings.name_of(topics.DEAD_LETTERS),
        b'{"InvoiceNumber": "of the till"}',
        b"STR1",
        headers=[(name, value.encode()) for name, value in origin.items()],
    )
    assert 0 == client.flush(30)


def test_the_console_helps_a_customer_and_repairs_a_dead_letter(
    instances: list[ApiProcess], decider: KafkaLoyaltyQuery, settings: Settings
) -> None:
    """A redemption by keyboard at 360 pixels, a failover on the page, a programme and a replay, without any error."""
    earn(decider, "25.00")
    owner_url = instances[0].http.get(f"/v1/stores/customer-balances/metadata/{CARD}").json()["active"]
    (owner,) = [each for each in instances if each.url == owner_url]
    (other,) = [each for each in instances if each.url != owner_url]
    with decider, Browser(other.url, 360, 800) as browser:
        redeem_by_keyboard(browser)

        browser.resize(1200, 1000, "dark")
        browser.open("/console/")
        browser.until_shown(owner.url, "#state")
        browser.until("two points of a chart", lambda: len(browser.driver.execute_script("return [...charts]")) > 0)
        assert [] == browser.violations()
        browser.picture("overview")

        browser.open(f"/console/helpdesk?card={CARD}")
        browser.until_shown("15.00", VALUE)
        owner.kill()
        earn(decider, "7.50")
        browser.until_shown("22.50", VALUE)
        browser.resize(1200, 800)
        browser.picture("helpdesk")
        browser.open("/console/")
        browser.until(
            "the owner is gone",
            lambda: "this one" in browser.text("#state") and owner.url not in browser.text("#state"),
        )

        repair(browser, settings)
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
    browser.picture("helpdesk-phone")


def repair(browser: Browser, settings: Settings) -> None:
    """Publish a programme and replay a dead letter."""
    write_dead_letter(settings)
    browser.open("/console/operations")
    browser.until_shown("no-total-amount", "#letters")
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
    browser.until_shown(f"The replay publishes 1 to {settings.name_of(topics.POS_INVOICES)}")
    browser.picture("operations")
    assert [] == read_all(settings, topics.POS_INVOICES)
    browser.click("Confirm")
    browser.until_shown("1 published again.")
    (record,) = read_all(settings, topics.POS_INVOICES)
    assert (b"STR1", b'{"InvoiceNumber": "of the till"}') == (record.key(), record.value())
