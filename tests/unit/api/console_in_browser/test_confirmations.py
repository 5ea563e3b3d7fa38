"""Commands in a browser: nobody confirms one by accident, and no error loses its key."""

from pathlib import Path

from services.api_keys.keys import Scope
from tests.support.browser import Browser
from tests.support.clusters import Instance
from tests.support.secured import SecuredGroup
from tests.unit.api.console.console_customer import CARD
from tests.unit.api.console_in_browser.browser_and_gates import (
    IN_BROWSER,
    REQUESTS,
    Gate,
    Gateway,
    Held,
    confirm_an_adjustment,
    hold,
    opened,
)

pytestmark = IN_BROWSER


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
