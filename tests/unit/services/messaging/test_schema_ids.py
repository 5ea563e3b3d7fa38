"""Error responses of a Schema Registry, or of a proxy before it. tests/integration has a real registry."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from schemas import topics
from services.messaging.schema_ids import RegistrySchemaIds, SchemaRegistryUnavailableError, UnknownSchemaIdError
from services.settings import Settings

ANSWERS: dict[int, tuple[int, bytes]] = {
    1: (200, json.dumps({"schema": '"string"'}).encode()),
    2: (404, b'{"error_code": 40403, "message": "Schema 2 not found"}'),
    3: (500, b'{"error_code": 50001, "message": "Error in the backend"}'),
    4: (401, b'{"error_code": 401, "message": "Unauthorized"}'),
    5: (200, b"<html>log in first</html>"),
    6: (200, b"{}"),
    7: (503, b"<html>no upstream</html>"),
}


class Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[int(self.path.partition("?")[0].rpartition("/")[2])]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ids_at(url: str) -> RegistrySchemaIds:
    return RegistrySchemaIds(SchemaRegistryClient({"url": url, "max.retries": 0, "timeout": 5.0}), Settings())


def test_a_registered_id_gives_its_schema(registry: str) -> None:
    """The registry returns the schema text that was registered."""
    assert '"string"' == ids_at(registry).writer_schema(1)


def test_an_id_that_the_registry_does_not_know(registry: str) -> None:
    """Only the registry's own "not found" means that the id is not registered."""
    with pytest.raises(UnknownSchemaIdError, match="2"):
        ids_at(registry).writer_schema(2)


@pytest.mark.parametrize("schema_id", [3, 4, 5, 6, 7])
def test_other_answers_mean_unavailable(registry: str, schema_id: int) -> None:
    """An error, a refusal, the page of a proxy and an answer without a schema raise an error with the id."""
    with pytest.raises(SchemaRegistryUnavailableError, match=f"id {schema_id}"):
        ids_at(registry).writer_schema(schema_id)


def test_no_registry_at_all() -> None:
    """A port without a server raises the same error."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound without listen: refuses connections, keeps the port
        with pytest.raises(SchemaRegistryUnavailableError, match="id 1"):
            ids_at(f"http://127.0.0.1:{taken.getsockname()[1]}").writer_schema(1)


def test_a_registry_that_does_not_answer_accepts_nothing() -> None:
    """Without an answer every request raises the same error. The check does not return True."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ids = ids_at(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(SchemaRegistryUnavailableError, match="whether it accepts"):
            ids.accepts(topics.STORE_SALES, "{}")
        with pytest.raises(SchemaRegistryUnavailableError, match="give an id for StoreSales"):
            ids.writer_id(topics.STORE_SALES)
        with pytest.raises(SchemaRegistryUnavailableError, match="give an id for StoreSales"):
            ids.known(topics.STORE_SALES)
