"""Error responses of a Schema Registry, or of a proxy before it. tests/integration has a real registry."""

import json
import socket
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

import schemas
from schemas import topics
from services.messaging import schema_registry
from services.messaging.avro import body_encoder, decoder, encoder, header
from services.messaging.schema_ids import SchemaRegistryUnavailableError, UnknownSchemaIdError
from services.messaging.schema_registry import LOADING_SECONDS, RegistrySchemaIds
from services.settings import Settings
from services.verdicts import judge_of_invoices
from tests.support.builders import IDS
from tests.support.http_server import QuietHandler, serving
from tests.support.unreadable import INVOICE

CURRENT = schemas.current("PosInvoice")
ANNOTATIONS: dict[str, Any] = {
    "CreatedTime": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
    "InvoiceNumber": ["null", {"type": "string", "logicalType": "uuid"}],
}
ANNOTATED = CURRENT | {
    "fields": [field | {"type": ANNOTATIONS.get(field["name"], field["type"])} for field in CURRENT["fields"]]
}
ANSWERS: dict[int, tuple[int, bytes]] = {
    1: (200, json.dumps({"schema": '"string"'}).encode()),
    2: (404, b'{"error_code": 40403, "message": "Schema 2 not found"}'),
    3: (500, b'{"error_code": 50001, "message": "Error in the backend"}'),
    4: (401, b'{"error_code": 401, "message": "Unauthorized"}'),
    5: (200, b"<html>log in first</html>"),
    6: (200, b"{}"),
    7: (503, b"<html>no upstream</html>"),
    8: (200, json.dumps({"schema": json.dumps(ANNOTATED)}).encode()),
    9: (404, b"<html>no such page</html>"),
    10: (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
    11: (200, json.dumps({"schema": json.dumps(schemas.current("Balance"))}).encode()),
}


class Registry(QuietHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[int(self.path.partition("?")[0].rpartition("/")[2])]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


DEEP: Any = "string"
for number in range(300):
    DEEP = {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": DEEP}]}
VERSION_2 = {"subject": "pos-invoices-value", "version": 2, "id": 7, "schema": json.dumps(DEEP)}


class Subject(QuietHandler):
    """The subject of pos-invoices. Its schemas have the ids 1 and 7."""

    answers: ClassVar[dict[str, Any]] = {
        "POST /subjects/pos-invoices-value/versions": {"id": 1},
        "GET /subjects/pos-invoices-value/versions?deleted=true": [2],
        "GET /subjects/pos-invoices-value/versions/2?deleted=true": VERSION_2,
        "POST /compatibility/subjects/pos-invoices-value/versions": {"is_compatible": False},
        "POST /compatibility/subjects/pos-invoices-value/versions/latest": {"is_compatible": True},
        "POST /subjects/shipment-value/versions": {},
    }

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        deleted = "?deleted=true" if "deleted=true" in query else ""
        found = self.answers.get(f"{self.command} {path}{deleted}")
        body = json.dumps({"error_code": 40401, "message": "none"} if found is None else found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with serving(Registry) as url:
        yield url


class Clock:
    """Replaces the module ``time``. Only a pause takes time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class LoadingRegistry(QuietHandler):
    """It has loaded all of its schemas after three questions. The id 1 exists. It fails at the id 3."""

    asked: ClassVar[list[int]] = []
    clock: ClassVar[Clock]
    answer_seconds: ClassVar[float]

    def do_GET(self) -> None:
        schema_id = int(self.path.partition("?")[0].rpartition("/")[2])
        self.asked.append(schema_id)
        self.clock.sleep(self.answer_seconds)
        status, body = ANSWERS[schema_id if schema_id == 3 or (len(self.asked) > 3 and schema_id == 1) else 2]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(schema_registry, "time", clock)
    return clock


@pytest.fixture
def loading(clock: Clock) -> Iterator[str]:
    LoadingRegistry.asked.clear()
    LoadingRegistry.clock, LoadingRegistry.answer_seconds = clock, 0.0
    with serving(LoadingRegistry) as url:
        yield url


def ids_at(url: str, *, waits: bool = True) -> RegistrySchemaIds:
    client = SchemaRegistryClient({"url": url, "max.retries": 0, "timeout": 5.0})
    return RegistrySchemaIds(client, Settings(), waits=waits)


def test_a_registered_id_gives_its_schema(registry: str) -> None:
    """The registry returns the schema text that was registered."""
    assert '"string"' == ids_at(registry).writer_schema(1)


def test_logical_types_of_a_till_change_no_value(registry: str) -> None:
    """The registry accepts them. Without the change, a time would be a datetime, and the query would stop. Points stay
    decimals.
    """
    invoice = decoder(topics.POS_INVOICES, IDS)(encoder(topics.POS_INVOICES, IDS)(INVOICE))
    value = header(8) + body_encoder("PosInvoice")(INVOICE)

    assert invoice == decoder(topics.POS_INVOICES, ids_at(registry))(value)
    assert schemas.current("Balance") == json.loads(ids_at(registry).writer_schema(11))


def test_a_registry_that_loads_does_not_know_an_id_yet(loading: str) -> None:
    """The reader asks again. If it believed the first response, it would skip the record for ever."""
    assert '"string"' == ids_at(loading).writer_schema(1)
    assert [1, 1, 1, 1] == LoadingRegistry.asked


def test_ids_that_the_registry_does_not_know(loading: str, clock: Clock) -> None:
    """Only the registry's own "not found" counts. The reader waits once for a series of such ids, and again after
    a long pause, in which the registry can have started again.
    """
    ids, waited = ids_at(loading), []
    for schema_id, pause in ((2, 0), (4, 1), (5, 60), (6, 3600)):
        clock.sleep(pause)
        before = clock.now
        with pytest.raises(UnknownSchemaIdError, match=str(schema_id)):
            ids.writer_schema(schema_id)
        waited.append(clock.now - before)
    assert [LOADING_SECONDS, 0, 0, LOADING_SECONDS] == waited


@pytest.mark.parametrize("seconds", [3.0, 9.0])
def test_a_slow_registry_does_not_stop_a_reader(loading: str, clock: Clock, seconds: float) -> None:
    LoadingRegistry.answer_seconds = seconds
    before = clock.now
    with pytest.raises(UnknownSchemaIdError):
        ids_at(loading).writer_schema(2)
    assert LOADING_SECONDS <= clock.now - before <= LOADING_SECONDS + 2 * seconds


@pytest.mark.parametrize("pause", [2, 8])
def test_a_reader_that_tries_again_by_itself_does_not_wait(loading: str, clock: Clock, pause: int) -> None:
    """It can stop, and shows the error, between two attempts."""
    ids, started = ids_at(loading, waits=False), clock.now
    while clock.now < started + LOADING_SECONDS:
        with pytest.raises(SchemaRegistryUnavailableError, match="does not know the schema of id 2"):
            ids.writer_schema(2)
        clock.sleep(pause)
    with pytest.raises(UnknownSchemaIdError):
        ids.writer_schema(2)


def test_a_failed_question_makes_not_found_doubtful_again(loading: str, clock: Clock) -> None:
    """The registry may have started again."""
    ids = ids_at(loading)
    with pytest.raises(UnknownSchemaIdError):
        ids.writer_schema(2)
    with pytest.raises(SchemaRegistryUnavailableError):
        ids.writer_schema(3)
    before = clock.now
    with pytest.raises(UnknownSchemaIdError):
        ids.writer_schema(2)
    assert LOADING_SECONDS == clock.now - before


@pytest.mark.parametrize("schema_id", [3, 4, 5, 6, 7, 9, 10])
def test_any_other_answer_means_that_the_registry_is_unavailable(registry: str, schema_id: int) -> None:
    """An error, a refusal, the page of a proxy, a wrong path and an answer without a schema raise an error with the id.
    A materialiser then waits. If the id counted as unknown, it would skip the value.
    """
    with pytest.raises(SchemaRegistryUnavailableError, match=f"id {schema_id}"):
        ids_at(registry).writer_schema(schema_id)


def test_all_ids_that_records_can_have_are_known() -> None:
    """The node lags behind: it does not list the schema 1, which it has just registered. Somebody has deleted the
    schema 7, but its records remain. It is too deep to be read, which affects only its records.

    A query that starts again gets the same ids, also while the registry does not answer.
    """
    with serving(Subject) as url:
        ids = ids_at(url)
        known = ids.known(topics.POS_INVOICES)

    assert {1: CURRENT, 7: DEEP} == {schema_id: json.loads(text) for schema_id, text in known.items()}
    assert known == ids.known(topics.POS_INVOICES)
    judge = judge_of_invoices(known)
    assert None is judge(header(1) + body_encoder("PosInvoice")(INVOICE), b"STR1").reason
    # Python 3.11 cannot read a schema of this depth. Newer versions can, and refuse the empty body.
    refusals = ("schema id 7 is no Avro schema, or refers to another one", "not an Avro PosInvoice of its schema id")
    assert judge(header(7), b"STR1").reason in refusals


def test_a_draft_is_compared_with_all_versions() -> None:
    """It can be compatible with the newest version only. The registry would refuse it at the next start."""
    with serving(Subject) as url:
        assert not ids_at(url).accepts(topics.POS_INVOICES, json.dumps(CURRENT))


def test_an_answer_without_an_id_is_an_error() -> None:
    with serving(Subject) as url, pytest.raises(SchemaRegistryUnavailableError, match="give an id for PosInvoice"):
        ids_at(url).writer_id(topics.SHIPMENT)


def test_a_registry_that_does_not_answer_accepts_nothing() -> None:
    """Without an answer every request raises the same error. The check does not return True."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound without listen: refuses connections, keeps the port
        ids = ids_at(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(SchemaRegistryUnavailableError, match="id 1"):
            ids.writer_schema(1)
        with pytest.raises(SchemaRegistryUnavailableError, match="whether it accepts"):
            ids.accepts(topics.STORE_SALES, "{}")
        for request in (ids.writer_id, ids.known):
            with pytest.raises(SchemaRegistryUnavailableError, match="give an id for StoreSales"):
                request(topics.STORE_SALES)
