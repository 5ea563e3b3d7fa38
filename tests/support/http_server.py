"""An HTTP server in a thread, for a test that answers requests itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from infra.local.ports import HOST

_STOP_SECONDS = 0.02
"""The poll interval of the server, and so the longest time of its stop. The default is 0.5 s."""


class QuietHandler(BaseHTTPRequestHandler):
    """Does not log requests to stderr."""

    def log_message(self, *_: object) -> None:
        """Ignore the message."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve requests while the block runs. Yields the URL."""
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(_STOP_SECONDS,))
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
