"""The browser of the tests of the console."""

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for all tests of a module, because its start takes seconds."""
    with Browser("") as browser:
        yield browser
