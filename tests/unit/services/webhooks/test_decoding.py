"""Notifications with a schema id that the Schema Registry does not know yet."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

import httpx
import pytest

from infra.local.ports import free_port
from schemas import topics
from services.messaging.avro import HEADER_BYTES, UndecodableError, encoder, header
from services.messaging.schema_ids import SchemaIds, SchemaRegistryUnavailableError, UnknownSchemaIdError
from services.messaging.schema_registry import LOADING_SECONDS
from services.webhooks import dispatcher
from services.webhooks.decoding import WaitingDecoder
from tests.support.builders import IDS, entry, notification
from tests.support.http_server import QuietHandler, serving
from tests.support.mock_kafka import mock_broker
from tests.support.waiting import wait_for
from tests.support.webhooks import Deployment, receiving
from tests.unit.services.webhooks.dispatchers import TOPIC, Reader, Record, dispatching, until

pytestmark = pytest.mark.anyio

MANY = 50
"""More than the threads of the executor that asyncio uses by default."""
USUAL = IDS.writer_id(topics.LOYALTY)


def value_of(card: str, schema_id: int = USUAL) -> bytes:
    return header(schema_id) + encoder(topics.LOYALTY, IDS)(notification(card, entry(1)))[HEADER_BYTES:]


class Registry:
    """Knows the usual id. It gives no usable answer about the others before ``answers`` is true."""

    def __init__(self) -> None:
        self.answers = False
        self.questions: list[int] = []

    def writer_schema(self, schema_id: int) -> str:
        self.questions.append(schema_id)
        if schema_id != USUAL and not self.answers:
            raise SchemaRegistryUnavailableError("the Schema Registry did not answer")
        return IDS.writer_schema(USUAL)


async def test_a_notification_that_waits_for_the_registry_stops_no_other_customer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is delivered when the registry answers. Until then, the process runs, and the log has one line about it."""
    registry, reader = Registry(), Reader({0: [f"card {number}" for number in range(MANY)], 1: ["b", "b"]})
    usual = Record.value
    monkeypatch.setattr(
        Record,
        "value",
        lambda each: usual(each) if each.partition() else value_of(each.card, USUAL + 1_000 + each.offset()),
    )
    decoder = WaitingDecoder("crm", cast(SchemaIds, registry))
    monkeypatch.setattr(dispatcher, "WaitingDecoder", lambda *_: decoder)
    async with dispatching(reader, monkeypatch) as (_, delivered):
        await until(lambda: reader.committed[1] == 2)
        assert 2 == len(delivered)
        registry.answers = True
        await until(lambda: reader.committed[0] == MANY)
    assert MANY + 2 == len(set(delivered))
    assert 1 == capsys.readouterr().out.count("cannot decode now")


async def test_notifications_of_one_id_wait_for_one_question() -> None:
    """A registry that comes back would get a question for each of hundreds of notifications."""
    registry = Registry()
    decoder = WaitingDecoder("crm", cast(SchemaIds, registry))
    waiting = [asyncio.create_task(decoder.decode(value_of(f"card {number}", USUAL + 1))) for number in range(MANY)]
    await until(lambda: len(registry.questions) == 2)
    problem = decoder.problem
    registry.answers = True
    assert {f"card {number}" for number in range(MANY)} == {
        record["CustomerCardNo"] for record in await asyncio.gather(*waiting)
    }
    assert ("the Schema Registry did not answer", None) == (problem, decoder.problem)
    assert 3 == len(registry.questions)
    decoder.close()


async def test_an_id_that_does_not_exist_is_undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder asks for such an id each time, because somebody can register it. It remembers nothing of it."""
    registry = Registry()

    def unknown(schema_id: int) -> str:
        registry.questions.append(schema_id)
        raise UnknownSchemaIdError(schema_id)

    monkeypatch.setattr(registry, "writer_schema", unknown)
    decoder = WaitingDecoder("crm", cast(SchemaIds, registry))
    for _ in range(2):
        with pytest.raises(UndecodableError, match="unknown schema id 7"):
            await decoder.decode(value_of("a", 7))
    assert [7, 7] == registry.questions
    assert not decoder._turns
    decoder.close()


class LoadingRegistry(QuietHandler):
    """Answers as a Schema Registry that has loaded one schema only."""

    questions: ClassVar[list[tuple[float, int]]] = []

    def do_GET(self) -> None:
        schema_id = int(self.path.partition("?")[0].rpartition("/")[2])
        self.questions.append((time.monotonic(), schema_id))
        is_known = schema_id == USUAL
        answer = {"schema": IDS.writer_schema(USUAL)} if is_known else {"error_code": 40403, "message": "not found"}
        body = json.dumps(answer).encode()
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def registry() -> Iterator[str]:
    LoadingRegistry.questions.clear()
    with serving(LoadingRegistry) as url:
        yield url


@pytest.mark.program
def test_the_process_delivers_and_stops_while_the_registry_loads(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many customers wait for the registry. The process skips none of them, and SIGTERM ends it before the registry is
    believed.
    """
    monkeypatch.setenv("LOYALTY_SCHEMA_REGISTRY_URL", registry)
    with mock_broker() as (settings, broker), receiving() as receiver:
        for topic in (TOPIC, settings.name_of(topics.DEAD_LETTERS)):
            broker.produce(topic, b"", partition=0)
        broker.flush(10)
        deployment = Deployment(settings, receiver, tmp_path, free_port(), tmp_path / "log")
        deployment.configure("crm")
        with deployment.running() as process:
            for number in range(MANY):
                broker.produce(TOPIC, value_of(f"card {number}", USUAL + 1_000 + number), f"card {number}", partition=0)
            broker.produce(TOPIC, value_of("usual"), "usual", partition=0)
            broker.flush(10)
            receiver.wait(1)
            assert 'loyalty_webhook_messages_total{endpoint="crm",outcome="dead"} 0.0' in deployment.metrics()
            ready = f"http://127.0.0.1:{deployment.metrics_port}/readyz"
            wait_for("the problem", lambda: "does not know the schema of id" in httpx.get(ready).text)
        seconds = time.monotonic() - min(
            moment for moment, schema_id in LoadingRegistry.questions if schema_id != USUAL
        )
    assert 0 == process.returncode
    assert seconds < LOADING_SECONDS
