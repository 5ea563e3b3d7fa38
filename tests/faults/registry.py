"""A Schema Registry in memory, with the part of Confluent's HTTP API that this project uses."""

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from infra.local.ports import HOST
from schemas.compatibility import obstacles


class Registry:
    """Subjects with their versions. Refuses a change that is not compatible in both directions, unless forced."""

    def __init__(self) -> None:
        self._schemas: list[str] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()

        class Handler(_Handler):
            registry = self

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def schema(self, schema_id: int) -> str | None:
        return self._schemas[schema_id - 1] if 0 < schema_id <= len(self._schemas) else None

    def versions(self, subject: str) -> list[int]:
        """The ids of a subject's schemas, in the order of their versions."""
        return self._subjects.get(subject, [])

    def accepts(self, subject: str, schema: str) -> bool:
        draft = json.loads(schema)
        known = [json.loads(self._schemas[schema_id - 1]) for schema_id in self.versions(subject)]
        return not any(obstacles(draft, each) or obstacles(each, draft) for each in known)

    def register(self, subject: str, schema: str, *, forced: bool = False) -> int | None:
        """Register a schema. Returns its id, or None if it is refused."""
        with self._lock:
            same = (
                each for each in self.versions(subject) if json.loads(self._schemas[each - 1]) == json.loads(schema)
            )
            if (known := next(same, None)) is not None:
                return known
            if not forced and not self.accepts(subject, schema):
                return None
            self._schemas.append(schema)
            self._subjects.setdefault(subject, []).append(len(self._schemas))
            return len(self._schemas)


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:  # http.server calls it
        match self._parts():
            case ["schemas", "ids", schema_id] if schema := self.registry.schema(int(schema_id)):
                self._answer({"schema": schema})
            case ["subjects", subject, "versions"] if known := self.registry.versions(subject):
                self._answer([*range(1, len(known) + 1)])
            case ["subjects", subject, "versions", version] if int(version) <= len(self.registry.versions(subject)):
                number = self.registry.versions(subject)[int(version) - 1]
                schema = self.registry.schema(number)
                self._answer({"subject": subject, "version": int(version), "id": number, "schema": schema})
            case _:
                self._answer({"error_code": 40401, "message": "not found"}, HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        match self._parts():
            case ["subjects", subject, "versions"]:
                schema_id = self.registry.register(subject, schema)
                if schema_id is None:
                    refusal = {"error_code": 409, "message": "the schema is not compatible with an earlier one"}
                    self._answer(refusal, HTTPStatus.CONFLICT)
                else:
                    self._answer({"id": schema_id})
            case ["compatibility", "subjects", subject, "versions", _]:
                self._answer({"is_compatible": self.registry.accepts(subject, schema)})
            case _:
                self._answer({"error_code": 40401, "message": "not found"}, HTTPStatus.NOT_FOUND)

    def _parts(self) -> list[str]:
        return self.path.partition("?")[0].strip("/").split("/")

    def _answer(self, body: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write no log."""
