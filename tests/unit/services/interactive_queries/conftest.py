"""A membership without a coordinator, and the clock of its lease."""

import pytest

from services.interactive_queries import membership as module
from services.interactive_queries.membership import GroupMembership
from services.settings import Settings
from tests.support.clusters import URL
from tests.unit.services.interactive_queries.coordinator_answers import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "boot_seconds", found)
    return found


@pytest.fixture
def membership(clock: Clock) -> GroupMembership:  # noqa: ARG001  # in its place
    return GroupMembership(Settings(), URL)
