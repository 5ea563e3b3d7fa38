"""A membership without a coordinator, and the clock of its lease."""

from concurrent.futures import Future
from typing import Any

import pytest

from services.interactive_queries import membership as module
from services.interactive_queries.membership import GroupMembership
from services.settings import Settings
from tests.support.clusters import URL

PLACE = ("loyalty-balances", 1)
OTHER = "http://10.0.0.2:8080"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def answer(result: Any) -> "Future[Any]":
    """The future of a result, an error, or None for no response yet."""
    future: Future[Any] = Future()
    if result is None:
        return future
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "boot_seconds", found)
    return found


@pytest.fixture
def membership(clock: Clock) -> GroupMembership:  # noqa: ARG001  # in its place
    return GroupMembership(Settings(), URL)
