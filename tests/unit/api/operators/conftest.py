"""The routes for operators. The test plays Kafka behind ``api.operations``."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from api import operations
from api.operations import Operations
from services.settings import Settings
from tests.support.clusters import Instance
from tests.unit.api.operators.played_kafka import Kafka


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()
    monkeypatch.setattr(operations.dead_letters, "DeadLetters", kafka.read)
    monkeypatch.setattr(operations.replaying, "replay", kafka.replay)
    monkeypatch.setattr(operations, "status_of", kafka.status)
    return kafka


@pytest.fixture
def client(kafka: Kafka) -> Iterator[TestClient]:  # noqa: ARG001 - it must be there first
    instance = Instance()
    instance.own_everything()
    settings = Settings(ledger_url="postgresql://loyalty:secret@db/loyalty")
    instance.app.state.dependencies.operations = Operations(settings)
    with TestClient(instance.app) as client:
        yield client
