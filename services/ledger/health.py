"""Metrics and health of a process without an API: /metrics, /livez and /readyz on a port of its own."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, MetricsHandler


@contextmanager
def serving(host: str, port: int, registry: CollectorRegistry, trouble: Callable[[], str | None]) -> Iterator[int]:
    """Serve while the block runs; gives the port. ``trouble`` says what keeps the process from its work, or None.

    Alive it is as long as it answers: what it waits for does not come back because it is started again.
    """

    class Handler(MetricsHandler):
        def do_GET(self) -> None:  # noqa: N802 - the library's name
            path = self.path.partition("?")[0]
            if path == "/metrics":
                super().do_GET()
            elif path == "/livez":
                self._answer(HTTPStatus.OK, {"alive": True})
            elif path == "/readyz":
                found = trouble()
                status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
                self._answer(status, {"ready": found is None, "trouble": found})
            else:
                self._answer(HTTPStatus.NOT_FOUND, {"paths": ["/metrics", "/livez", "/readyz"]})

        def _answer(self, status: HTTPStatus, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    Handler.registry = registry
    with ThreadingHTTPServer((host, port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
