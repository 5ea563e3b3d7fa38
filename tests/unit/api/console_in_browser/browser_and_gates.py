"""A browser before a real instance, with memory stores and no Kafka, and what stands between the two."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from api.http.server import server_of
from infra.local.ports import free_port
from schemas.topics import LOYALTY_BALANCES
from services.settings import Settings
from tests.support.browser import CHROMIUM, DRIVER, Browser
from tests.support.clusters import Instance
from tests.unit.api.console.console_customer import BALANCE, CARD, decide
from tests.unit.api.servers import running

IN_BROWSER = [
    pytest.mark.program,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium and its driver are not installed"),
]
"""The markers of each module that uses the browser."""
REQUESTS = "form.htmx-request, button.htmx-request"
"""What the user has sent, and has no response yet."""


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
