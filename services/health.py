"""Serves /metrics, /livez and /readyz of a process without an API, on its own port."""

import hmac
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from services.secret_files import lines_of
from services.settings import Settings

_MOST_CONNECTIONS = 50


@contextmanager
def serve_health(
    settings: Settings, port: int, registry: CollectorRegistry, find_problem: Callable[[], str | None]
) -> Iterator[int]:
    """Serve on ``metrics_host`` while the block runs. Yields the port.

    Args:
        find_problem: returns why the process cannot work now, or None if it can. /readyz shows the problem. /livez does
            not, because a restart would not solve it.
    """
    with _Server(settings, port, registry, find_problem) as server:
        thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    """Has at most ``_MOST_CONNECTIONS`` connections, so that clients cannot take all files and threads of the process.

    A new connection ends the oldest one. So slow clients do not keep probes and Prometheus out.
    """

    daemon_threads = True
    request_queue_size = 128  # With the default of 5, probes wait for seconds while others connect.

    def __init__(
        self, settings: Settings, port: int, registry: CollectorRegistry, find_problem: Callable[[], str | None]
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in settings.metrics_host else socket.AF_INET
        self.key_file, self.find_problem = settings.metrics_key_file, find_problem
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        super().__init__((settings.metrics_host, port), _Handler.factory(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.append(request)
            if len(self._connections) > _MOST_CONNECTIONS:
                with suppress(OSError):  # the client has reset it
                    self._connections.pop(0).shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, suppress(ValueError):  # a new connection has ended this one
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A caller can leave before the response, for example a probe on a slow machine. This process has no error then.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(MetricsHandler):
    server: _Server
    # Seconds. It frees the thread of a client that sends nothing.
    timeout = 10

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            if self._is_permitted():
                super().do_GET()
        elif path == "/livez":
            self._respond(HTTPStatus.OK, {"alive": True})
        elif path == "/readyz":
            problem = self.server.find_problem()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            self._respond(status, {"ready": problem is None, "trouble": problem})
        else:
            self._respond(HTTPStatus.NOT_FOUND, {"paths": ["/metrics", "/livez", "/readyz"]})

    def _is_permitted(self) -> bool:
        """Whether the request has a key of the file. Sends the response if it has none. Reads the file each time."""
        file = self.server.key_file
        if file is None:
            return True
        given = self.headers.get("Authorization", "").encode("latin-1")
        try:
            is_known = any(hmac.compare_digest(given, b"Bearer " + key) for key in lines_of(file))
        except OSError as error:
            self._respond(HTTPStatus.SERVICE_UNAVAILABLE, {"trouble": f"cannot read {file}: {error.strerror}"})
            return False
        if not is_known:
            needed = "the header Authorization: Bearer with a key of LOYALTY_METRICS_KEY_FILE"
            self._respond(HTTPStatus.UNAUTHORIZED, {"needed": needed})
        return is_known

    def _respond(self, status: HTTPStatus, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(content)
