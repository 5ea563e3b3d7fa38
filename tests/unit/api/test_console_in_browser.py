"""The script of the console, in a browser. The instance is real, with memory stores and no Kafka."""

from collections.abc import Iterator

import pytest

from api.http.server import server_of
from infra.local.ports import free_port
from schemas.topics import LOYALTY_BALANCES
from services.settings import Settings
from tests.support.browser import CHROMIUM, DRIVER, Browser
from tests.support.clusters import Instance
from tests.unit.api.servers import running
from tests.unit.api.test_console import BALANCE, CARD, decide

pytestmark = [
    pytest.mark.program,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium and its driver are not installed"),
]


@pytest.fixture
def instance() -> Instance:
    instance = Instance()
    instance.own_everything()
    instance.write(LOYALTY_BALANCES, CARD, BALANCE)
    decide(instance)
    return instance


@pytest.fixture
def browser(instance: Instance) -> Iterator[Browser]:
    settings = Settings(api_port=free_port())
    with running(server_of(instance.app, settings, None, 1)), Browser(settings.advertised_url) as browser:
        yield browser


def test_a_lost_response_is_shown_and_a_repetition_takes_effect_once(instance: Instance, browser: Browser) -> None:
    """Without the message somebody would begin again, with a new key. Then the points could change twice."""
    browser.open(f"/console/helpdesk?card={CARD}")
    browser.click("Adjust")
    browser.until("the form", lambda: browser.focus_is_on("points"))
    for name, text in {"points": "5.00", "reason": "goodwill", "actor": "Ann"}.items():
        browser.element(f"#field-{name}").send_keys(text)
    browser.click("Continue")
    browser.until("the confirmation", lambda: browser.focus_is_on("Confirm"))
    browser.go_offline()
    browser.click("Confirm")
    browser.until_shown("Choose the button again: a repetition takes effect once.", "#no-response")
    browser.click("Back")
    browser.until_shown("Load the page again before you repeat it.", "#no-response")
    browser.go_offline(offline=False)
    browser.click("Confirm")
    browser.until_shown("Adjust: done.")
    assert [] == browser.all("#no-response")
    assert 1 == len(instance.command_log.commands)
