"""The console in a browser, with its own stack: Kafka, the pipeline, two API instances and the ledger."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from infra.local.stack import LocalStack, private_settings
from schemas.topics import LOYALTY_BALANCES, POS_INVOICES
from services.messaging.avro import Record
from services.settings import Settings
from tests.conftest import SHUFFLE_PARTITIONS
from tests.faults.load import Tills
from tests.support.browser import CHROMIUM, DRIVER, Browser
from tests.support.builders import CARD, invoice
from tests.support.events import Subscriber
from tests.support.kafka import publish, publish_invoices, read_all, records_of, set_aside
from tests.support.processes import SMALL_JVM

VALUE = "#balance .value"
RULES = "loyalty-factor: 0.05", "valid-for: P365D"
WITH_PICTURES = "SCREENSHOTS" in os.environ
"""`make screenshots` runs the test with more queries and time."""

MISSING = "Chromium and its driver are not installed: `make test-tools` installs them on Debian"
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    """A stack whose pipeline does not run yet."""
    settings = private_settings(
        tmp_path,
        spark_master="local[2]",
        spark_driver_memory="700m",
        spark_java_options=SMALL_JVM,
        shuffle_partitions=SHUFFLE_PARTITIONS,
        sales_interval=timedelta(seconds=1),
        export_interval=timedelta(seconds=1),
        stop_timeout=timedelta(seconds=1),
    )
    found = LocalStack(tmp_path, settings, api_instances=2)
    if not WITH_PICTURES:
        found.pipeline = replace(found.pipeline, arguments=["--query", "fan-out", "--query", "loyalty"])
    with ExitStack() as resources:
        resources.callback(found.stop)
        found.start(services=[*found.apis, *found.readers])
        yield found


def buy(settings: Settings, *numbers: str, amount: float = 100.0) -> None:
    """The customer buys. Each purchase of 100.00 earns 5.00 points by RULES."""
    publish_invoices(settings, *(invoice(number, CARD, amount) for number in numbers))


def test_people_work_with_the_console_of_a_running_stack(stack: LocalStack) -> None:
    """They publish a programme, redeem points by keyboard on a phone, replay a dead letter that then counts, and watch
    a failover.
    """
    with Browser(stack.api_url, 360, 800) as browser:
        publish_programme(browser)
        stack.start()
        buy(stack.settings, "first", amount=500)
        publish(stack.settings, POS_INVOICES, [(b"STR1", b'{"StoreID": "STR1"}')])
        with httpx.Client(base_url=stack.api_url, trust_env=False) as http:
            browser.until("a balance", lambda: http.get(f"/v1/customers/{CARD}/balance").is_success)
        redeem_by_keyboard(browser)
        buy(stack.settings, "second", amount=150)
        browser.until_shown("22.50", VALUE)
        browser.until_shown("second", "#entries")
        browser.picture("helpdesk-phone")
        browser.resize(1200, 1100)
        browser.picture("helpdesk")
        replay(browser, stack.settings)
        watch_a_failover(browser, stack)
        assert [] == browser.errors()


def publish_programme(browser: Browser) -> None:
    """Check a programme and publish it. There are no events yet, so it can be in effect since a time in the past."""
    browser.open("/console/operations")
    browser.until_shown("Programme file", "#programmes")
    browser.until_shown("No dead letters", "#letters")
    assert [] == browser.violations()
    assert not browser.is_wider_than_the_screen()
    browser.element("#programme").send_keys("loyalty-factor: x")
    browser.click("Check")
    browser.until_shown("The programme is not valid.")
    browser.element("#programme").clear()
    browser.element("#programme").send_keys("\n".join(RULES))
    browser.element("#effective").send_keys("2026-01-01T00:00:00Z")
    browser.click("Publish …")
    browser.click("Confirm")
    browser.until_shown("Version 1 is in effect")
    browser.until_shown("P365D", "#versions")
    assert "1" == browser.element("#edited").get_attribute("value")
    browser.element("#amount").send_keys("500")
    browser.click("Compute")
    browser.until_shown("25.00 points, tier none, programme version 1", "#simulation")


def redeem_by_keyboard(browser: Browser) -> None:
    """Find the customer, reserve 10 points and spend them, with the keyboard only."""
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


def replay(browser: Browser, settings: Settings) -> None:
    """Replay an invoice that an earlier release could not read. It counts once, and the broken record stays."""
    value = json.dumps(invoice("third", CARD, 250.0)).encode()
    set_aside(settings, b"STR1", value, "a release before could not read it", "7")
    browser.open("/console/operations")
    browser.until_shown("InvoiceNumber", "#letters")
    browser.until_shown("P365D", "#versions")
    row = "//tr[td[contains(., 'a release before')]]//"
    browser.driver.find_element("xpath", row + "summary").click()
    browser.driver.find_element("xpath", row + "input[@name='position']").click()
    browser.click("Replay the selection …")
    browser.until_shown("The replay publishes 1 to pos-invoices")
    assert [] == browser.violations()
    assert 3 == len(read_all(settings, POS_INVOICES))
    browser.picture("operations")
    browser.click("Confirm")
    browser.until_shown("1 published again.")
    browser.open(f"/console/helpdesk?card={CARD}")
    browser.until_shown("35.00", VALUE)
    assert 4 == len(read_all(settings, POS_INVOICES))


def watch_a_failover(browser: Browser, stack: LocalStack) -> None:
    """Kill the owner with SIGKILL while tills sell. The other instance takes over, and its open pages show that.

    A program that follows the card gets each revision of the changelog once, first from the owner, then from the other.
    """
    with httpx.Client(base_url=stack.api_url, trust_env=False) as http:
        owner = http.get(f"/v1/stores/customer-balances/metadata/{CARD}").json()["active"]
    victim, survivor = sorted(stack.apis, key=lambda each: each.url != owner)
    browser.url = survivor.url
    browser.open(f"/console/helpdesk?card={CARD}")
    browser.until_shown("35.00", VALUE)
    helpdesk = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.resize(1200, 1300, "dark")
    browser.open("/console/")
    browser.until_shown(victim.url, "#instances")
    assert partitions_of_this_instance(browser) not in ("", "-", "0 1 2")
    with (
        Tills(stack, seed=1, rate=5),
        Subscriber([victim.url, survivor.url], CARD) as subscriber,
    ):
        browser.until("the first event", lambda: subscriber.sequences)
        buy(stack.settings, *(f"before-{number}" for number in range(5)))
        has_lines = f"return charts.get('rate')?.data[0].length > {30 if WITH_PICTURES else 3}"
        browser.until("lines in a chart", lambda: browser.driver.execute_script(has_lines))
        browser.until_shown("StoreID", "main")
        assert [] == browser.violations()
        assert not browser.is_wider_than_the_screen()
        browser.picture("overview")
        victim.kill()
        buy(stack.settings, *(f"after-{number}" for number in range(5)))
        browser.until("all partitions", lambda: partitions_of_this_instance(browser) == "0 1 2")
        buy(stack.settings, "last")
        browser.driver.switch_to.window(helpdesk)
        browser.until_shown("90.00", VALUE)  # 35 points, and 5 for each of 11 purchases
        revisions = [each["Sequence"] for each in records_of(stack.settings, LOYALTY_BALANCES) if is_of_card(each)]
        browser.until("the last event", lambda: subscriber.sequences[-1] == revisions[-1])
        assert subscriber.connections > 1
    assert revisions[revisions.index(subscriber.sequences[0]) :] == subscriber.sequences


def partitions_of_this_instance(browser: Browser) -> str:
    """The active partitions of the instance that shows the page, as its overview lists them.

    One script finds and reads them, because the page may replace the row between two calls of the driver.
    """
    path = "//tr[th[contains(., '(this one)')]]/td[2]"
    script = "return document.evaluate(arguments[0], document, null, XPathResult.STRING_TYPE).stringValue.trim()"
    return str(browser.driver.execute_script(script, path))


def is_of_card(record: Record) -> bool:
    return bool(record["CustomerCardNo"] == CARD)
