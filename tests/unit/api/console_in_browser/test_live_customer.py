"""The balance and the statement of a customer in a browser, while events come."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from schemas.topics import LOYALTY_BALANCES
from services.domain.entries import Kind
from services.ledger.queries import LedgerQueries
from services.settings import Settings
from tests.support.browser import Browser
from tests.support.builders import available_points, entry
from tests.support.clusters import Instance
from tests.support.ledger import Ledger
from tests.unit.api.console.console_customer import BALANCE, CARD
from tests.unit.api.console_in_browser.browser_and_gates import IN_BROWSER, Gate, Gateway, Held, hold, opened
from tests.unit.api.servers import PATIENCE_SECONDS

pytestmark = IN_BROWSER


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
