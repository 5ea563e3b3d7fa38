"""Debian's Chromium, which can connect only to this machine."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_AXE = Path(__file__).parents[1] / "data" / "axe" / "axe.min.js"
_SECONDS = 240
_MOST_TABS = 40
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # root cannot use the sandbox
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-first-run",
    "--disable-background-networking",
)


class Browser:
    """One browser window. ``url`` is the address of the API instance that it uses."""

    def __init__(self, url: str, width: int = 1200, height: int = 1000) -> None:
        options = webdriver.ChromeOptions()
        for each in _OPTIONS:
            options.add_argument(each)
        options.binary_location = CHROMIUM or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(DRIVER))
        self.url = url
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def go_offline(self, *, offline: bool = True) -> None:
        """Cut the connection to the instance, or restore it."""
        self.driver.set_network_conditions(offline=offline, latency=0, throughput=-1)

    def resize(self, width: int, height: int, scheme: str = "light") -> None:
        """Show the page in a window of this size, with this colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def until(self, what: str, is_so: Callable[[], Any]) -> None:
        """Wait until the condition is true. Ignores errors about elements that disappear while they are read."""
        wait = WebDriverWait(self.driver, _SECONDS, 0.1, [StaleElementReferenceException, WebDriverException])
        try:
            wait.until(lambda _: is_so())
        except TimeoutException:
            raise AssertionError(f"not in time: {what}; the page shows: {self.text()}") from None

    def until_shown(self, text: str, within: str = "main") -> None:
        self.until(text, lambda: text in self.text(within))

    def text(self, within: str = "body") -> str:
        return " ".join(each.text for each in self.all(within))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def element(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, label: str) -> None:
        """Click the button with this label."""
        path = f"//button[normalize-space()='{label}']"
        self.until(f"button {label}", lambda: self.driver.find_elements(By.XPATH, path))
        self.driver.find_element(By.XPATH, path).click()

    def press(self, *keys: str) -> None:
        """Send keys to the element with the focus."""
        for each in keys:
            self.driver.switch_to.active_element.send_keys(each)

    def tab_to(self, label: str) -> None:
        """Press Tab until the element with this text or name has the focus."""
        for _ in range(_MOST_TABS):
            focused = self.driver.switch_to.active_element
            if label in (focused.text, focused.get_attribute("name")):
                return
            focused.send_keys(Keys.TAB)
        raise AssertionError(f"no Tab leads to {label}")

    def focus_is_on(self, label: str) -> bool:
        focused = self.driver.switch_to.active_element
        return label in (focused.text, focused.get_attribute("name"))

    def violations(self) -> list[str]:
        """What axe-core finds in the page, by rule and element."""
        self.driver.execute_script(_AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")
        return [f"{each['id']}: {node['html']}" for each in found["violations"] for node in each["nodes"]]

    def picture(self, name: str) -> None:
        """Save a picture of the window, if `make screenshots` runs the test."""
        if folder := os.environ.get("SCREENSHOTS"):
            self.driver.execute_script("window.scrollTo(0, 0)")
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))

    def is_wider_than_the_screen(self) -> bool:
        return bool(self.driver.execute_script("return document.documentElement.scrollWidth > window.innerWidth"))

    def errors(self) -> list[str]:
        """The errors in the browser's console since the last call."""
        lines = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each["message"] for each in lines if each["level"] == "SEVERE"]
