"""Serves metrics and health of a process without an API: /metrics, /livez and /readyz on a port of its own."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, MetricsHandler


@contextmanager
def serve_health(
    host: str, port: int, registry: CollectorRegistry, find_problem: Callable[[], str | None]
) -> Iterator[int]:
    """Serve while the block runs. Yields the port.

    Args:
        find_problem: returns why the process cannot work now; None if it can. It decides about /readyz. A problem does
            not change /livez, because a restart would not solve it.
    """

    class Handler(MetricsHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name in the library
            path = self.path.partition("?")[0]
            if path == "/metrics":
                super().do_GET()
            elif path == "/livez":
                self._respond(HTTPStatus.OK, {"alive": True})
            elif path == "/readyz":
                problem = find_problem()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                self._respond(status, {"ready": problem is None, "trouble": problem})
            else:
                self._respond(HTTPStatus.NOT_FOUND, {"paths": ["/metrics", "/livez", "/readyz"]})

        def _respond(self, status: HTTPStatus, body: object) -> None:
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
