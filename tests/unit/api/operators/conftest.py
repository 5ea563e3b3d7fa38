"""The routes for operators. The test plays Kafka behind ``api.operations``."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from api import operations
from api.operations import Operations
from services.messaging.dead_letters import DeadLetter, DeadLetterFilter, RecordPosition
from services.settings import Settings
from services.status_figures import Lag, Part, QueryWork, Status
from tests.support.clusters import Instance

LETTERS = [
    DeadLetter(
        RecordPosition(0, number), 1_000 + number, "pos-invoices", RecordPosition(2, number), reason, b"K", value
    )
    for number, (reason, value) in enumerate([("not-json", b"\xff{"), ("no-total-amount", b"{}"), ("not-json", b"x")])
]


class Selected(NamedTuple):
    """Dead letters that can be read several times."""

    letters: Iterable[DeadLetter]
    letter_filter: DeadLetterFilter

    def __iter__(self) -> Iterator[Any]:
        return (letter for letter in self.letters if letter in self.letter_filter)


class Kafka:
    """Plays the dead letters, and two moments of the system."""

    def __init__(self) -> None:
        self.letters: Iterable[DeadLetter] = LETTERS
        self.replayed: list[RecordPosition] = []
        self.looks = self.reads = 0

    def read(self, _: Settings, letter_filter: DeadLetterFilter) -> Iterable[DeadLetter]:
        self.reads += 1
        return Selected(self.letters, letter_filter)

    def replay(self, _: Settings, letters: Iterable[DeadLetter], __: object, since: int) -> int:
        self.replayed += (letter.position for letter in letters if letter.first_time >= since)
        return len(self.replayed)

    def status(self, _: Settings, __: Any, api: Any) -> Status:
        self.looks += 1
        appended = {"pos-invoices": 100 * self.looks}
        buckets = dict.fromkeys((0.5, float("inf")), 10 * self.looks)
        work = {"loyalty": QueryWork(80 * self.looks, self.looks, 1.5 * self.looks)}
        lags = [Lag("query loyalty", "pos-invoices", 20)]
        parts = [Part("kafka", "127.0.0.1:9092", None)]
        return Status(10.0 * self.looks, parts, appended, work, buckets, appended, lags, api.instances)


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
