"""A client of the event streams of one instance, and the time between their heartbeats."""

from collections.abc import AsyncIterator, Callable

import pytest

from api.events.streams import EventStreams
from tests.unit.api.events.stream_client import Changelog, Client, connected


@pytest.fixture
def step_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets after which time streams send heartbeats, and give up reads of the changelog. At first it is a minute.

    At a heartbeat a stream sees everything. So without a heartbeat a test proves what wakes the stream.
    """

    def change(seconds: float) -> None:
        monkeypatch.setattr(EventStreams.step, "__defaults__", (seconds,))

    change(60)
    return change


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with connected() as client:
        yield client


@pytest.fixture
def changelog(client: Client) -> Changelog:
    return client.changelog
