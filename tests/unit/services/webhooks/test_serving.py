"""The process with several endpoints, and with dispatchers that need no Kafka."""

import asyncio
import signal
import threading
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from services.messaging.publishing import PublishError
from services.settings import Settings
from services.webhooks import __main__ as process
from services.webhooks.dispatcher import EndpointDispatcher
from services.webhooks.endpoints import Endpoint
from services.webhooks.metrics import Metrics


def test_a_dispatcher_that_fails_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends with the error, so that its supervisor starts it again with all endpoints."""
    stopped: list[bool] = []

    class Dispatcher:
        def __init__(self, endpoint: Endpoint, *_: object) -> None:
            self.name = endpoint.name

        async def run(self, stopping: threading.Event) -> None:
            if self.name == "fails":
                raise PublishError("no broker answers")
            stopped.append(await asyncio.to_thread(stopping.wait, 5))

    monkeypatch.setattr(process, "EndpointDispatcher", Dispatcher)
    monkeypatch.setattr(process, "connected_producer", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    endpoints = [Endpoint(name, "http://crm.example", (b"x" * 24,)) for name in ("runs", "fails")]
    running: list[EndpointDispatcher] = []
    with pytest.raises(PublishError, match="no broker answers"):
        process.serve(endpoints, Settings(), Metrics(CollectorRegistry()), running)
    assert [True] == stopped
    assert {"runs", "fails"} == {cast(Dispatcher, each).name for each in running}
