"""/readyz of the webhooks, with the broker that librdkafka contains for tests."""

import asyncio
import threading
from contextlib import ExitStack
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from schemas import topics
from services.messaging.schema_ids import FolderSchemaIds
from services.webhooks.__main__ import problem
from services.webhooks.dispatcher import EndpointDispatcher
from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Kind
from services.webhooks.metrics import Metrics
from tests.support.mock_kafka import mock_broker
from tests.support.waiting import wait_for

ENDPOINT = Endpoint("crm", "http://crm.example", (b"x" * 24,), frozenset(Kind))


def test_the_process_is_ready_while_kafka_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says "not connected" until all dispatchers run, and then why it cannot read."""
    monkeypatch.setattr("services.messaging.log_reader._PROBE_SECONDS", 0.2)
    stopping = threading.Event()
    assert "not connected" == problem([ENDPOINT], [])
    with ExitStack() as broker:
        settings, producer = broker.enter_context(mock_broker())
        producer.produce(settings.name_of(topics.LOYALTY), b"")
        producer.flush(10)
        arguments: tuple[Any, Any] = cast(Any, None), cast(Any, None)
        metrics = Metrics(CollectorRegistry())
        dispatcher = EndpointDispatcher(ENDPOINT, settings, FolderSchemaIds(), *arguments, metrics)
        running = threading.Thread(target=lambda: asyncio.run(dispatcher.run(stopping)))
        running.start()
        try:
            assert problem([ENDPOINT], [dispatcher]) is None
            broker.close()
            wait_for("the problem", lambda: problem([ENDPOINT], [dispatcher]), 60)
            assert "Kafka does not answer" in str(problem([ENDPOINT], [dispatcher]))
        finally:
            stopping.set()
            running.join()
