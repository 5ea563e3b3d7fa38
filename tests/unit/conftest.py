"""How pytest collects and distributes the tests of this folder, so that a run needs little processor time."""

import gc
from collections.abc import Generator
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection: nearly all new objects are modules and tests, which stay.

    Tests free nearly all their objects without it too, so it runs less often than by default, every 700 objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(20_000)
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all tests of a file in one process of pytest-xdist, if the test names no group of its own.

    So only this process imports and builds what they share.
    """
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(_FOLDER).with_suffix(""))))
