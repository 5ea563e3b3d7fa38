"""The status of the system, as one response and as a stream."""

from threading import Event, Semaphore
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest
from fastapi.testclient import TestClient

from api import operations
from api.operations import Operations
from services.settings import Settings
from services.status_figures import Status
from tests.unit.api.operators.played_kafka import Kafka

pytestmark = pytest.mark.anyio


def test_the_second_status_has_rates(client: TestClient, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent requests share one status. Unknown figures are null."""
    first = client.get("/v1/status").json()
    assert first == client.get("/v1/status").json()
    assert 1 == kafka.looks
    assert (None, {"query loyalty": 20}) == (first["topics"][0]["rate"], first["topics"][0]["lag"])
    monkeypatch.setattr(operations, "_FRESH_SECONDS", 0)
    second = client.get("/v1/status").json()
    assert (200, 10.0) == (second["topics"][0]["records"], second["topics"][0]["rate"])
    assert [{"name": "loyalty", "rate": 8.0, "batchSeconds": 1.5}] == second["queries"]
    assert {"0.5": 0.5, "0.99": 0.5} == second["freshnessSeconds"]
    assert [True] == [each["self"] for each in second["instances"]]


async def test_a_stream_that_leaves_starts_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a part hangs, many clients connect again and again. They must not take all threads."""
    found, looks, end = Operations(Settings()), Semaphore(0), Event()
    api: Any = None

    def look(*_: object) -> Any:
        looks.release()
        assert end.wait(20)

    monkeypatch.setattr(operations, "status_of", look)

    async def connect_and_leave() -> None:
        with anyio.move_on_after(0.1):
            await found.status(api)

    async with anyio.create_task_group() as clients:
        for _ in range(3):
            clients.start_soon(connect_and_leave)
            await anyio.sleep(0.05)  # the next client comes before this one leaves
        await anyio.sleep(0.5)
        try:
            assert (True, False) == (looks.acquire(blocking=False), looks.acquire(blocking=False))
        finally:
            end.set()


async def test_the_status_does_not_wait_for_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its database hangs, the routes of the ledger fill the threads of FastAPI."""
    found, answered = Operations(Settings()), Event()
    api: Any = None
    monkeypatch.setattr(operations, "status_of", lambda *_: None)
    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with anyio.create_task_group() as reads:
        reads.start_soon(anyio.to_thread.run_sync, answered.wait, 20)
        await anyio.lowlevel.checkpoint()
        try:
            with anyio.fail_after(5):
                await found.status(api)
        finally:
            answered.set()


def test_the_status_is_a_stream(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event has the status. The stream ends when the instance stops."""
    streams = client.app.state.dependencies.streams  # type: ignore[attr-defined]
    monkeypatch.setattr(operations, "_FRESH_SECONDS", 0)
    monkeypatch.setattr("api.routers.status._STATUS_SECONDS", 0.01)
    looks = 0
    whole = Kafka.status

    def status(kafka: Kafka, *arguments: Any) -> Status:
        nonlocal looks
        looks += 1
        if looks == 3:
            streams.close()
        return whole(kafka, *arguments)

    monkeypatch.setattr(operations, "status_of", lambda *arguments: status(Kafka(), *arguments))
    events = client.get("/v1/status/events").text.split("\n\n")
    bodies = [orjson.loads(each.partition("data: ")[2]) for each in events if each.startswith("event: status")]
    assert 2 < len(bodies) < 6
    assert {"kafka"} == {part["name"] for body in bodies for part in body["parts"]}
