"""Starts ``python -m services.webhooks``, and receives its notifications with an HTTP server that can fail."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from services.settings import Settings
from tests.support.http_server import QuietHandler, serving
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS
from tests.support.outputs import OUTPUTS

TRACES = "/v1/traces"
SECRET = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


@dataclass
class Received:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes
    time: float

    @property
    def identity(self) -> str:
        return self.headers.get("webhook-id", "")

    @property
    def invoice(self) -> str:
        invoice: str = json.loads(self.body)["data"]["InvoiceNumber"]
        return invoice


@dataclass
class Receiver:
    """An HTTP server that records requests.

    Attributes:
        answers: by path: a function that returns status and headers. It gets the request, and the number of earlier
            requests with the same id. Without a function the answer is 204.
        changed: a condition that is notified after each request.
    """

    port: int = 0
    requests: list[Received] = field(default_factory=list)
    answers: dict[str, Callable[[Received, int], tuple[int, dict[str, str]]]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def of(self, path: str) -> list[Received]:
        return [request for request in self.requests if request.path == path]

    def wait(self, number: int, path: str = "/hook", seconds: float = KAFKA_TIMEOUT_SECONDS) -> list[Received]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(path)) >= number, seconds), self.of(path)
            return self.of(path)

    def receive(self, request: Received) -> tuple[int, dict[str, str]]:
        with self.changed:
            before = len([each for each in self.of(request.path) if each.identity == request.identity])
            self.requests.append(request)
            if request.path == TRACES:
                OUTPUTS.add_text("spans", request.body)
            self.changed.notify_all()
        answer = self.answers.get(request.path)
        return answer(request, before) if answer else (HTTPStatus.NO_CONTENT, {})


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    found = Receiver()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            body = self.rfile.read(length)
            if len(body) < length:  # the sender was killed
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more = found.receive(Received(self.path, headers, body, time.time()))
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

    with serving(Handler) as url:
        found.port = httpx.URL(url).port or 0
        yield found


@dataclass
class Deployment:
    """``python -m services.webhooks`` with the endpoints of a test."""

    settings: Settings
    receiver: Receiver
    folder: Path
    metrics_port: int
    log: Path

    def configure(self, *endpoints: str) -> None:
        """Write the file of the endpoints.

        Each argument is the name of an endpoint, followed by a comma and more keys if needed. The URL of a single
        endpoint has the path /hook. The URLs of several endpoints have the paths /NAME.
        """
        (self.folder / "secret").write_text(f"whsec_{SECRET}\n", encoding="utf-8")
        items = []
        for endpoint in endpoints:
            name, _, more = endpoint.partition(",")
            path = "hook" if len(endpoints) == 1 else name
            url = f"http://127.0.0.1:{self.receiver.port}/{path}"
            more = more if "first-wait" in more else f"{more}, first-wait: PT0.1S".removeprefix(", ")
            items.append(f"  - {{name: {name}, url: '{url}', secret-file: secret, {more}}}")
        (self.folder / "webhooks.yaml").write_text("\n".join(["endpoints:", *items]), encoding="utf-8")

    def command(self, *arguments: str) -> dict[str, Any]:
        environment = {
            **os.environ,
            "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": self.settings.kafka_bootstrap_servers,
            "LOYALTY_TOPIC_PREFIX": self.settings.topic_prefix,
            "LOYALTY_WEBHOOKS_FILE": str(self.folder / "webhooks.yaml"),
            "LOYALTY_WEBHOOKS_METRICS_PORT": str(self.metrics_port),
            "LOYALTY_SESSION_TIMEOUT": "PT6S",
        }
        return {"args": [sys.executable, "-m", "services.webhooks", *arguments], "env": environment}

    @contextmanager
    def running(self) -> "Iterator[subprocess.Popen[bytes]]":
        start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as stderr:
            process = subprocess.Popen(**self.command(), stderr=stderr)
            try:
                names = (self.folder / "webhooks.yaml").read_text(encoding="utf-8").count("name:")
                while self.log.read_bytes()[start:].count(b"following") < names:
                    with suppress(subprocess.TimeoutExpired):
                        raise AssertionError(f"status {process.wait(0.1)}: {self.log.read_text(encoding='utf-8')}")
                yield process
            finally:
                process.kill() if process.poll() is None and sys.exc_info()[0] else process.send_signal(signal.SIGTERM)
                process.wait(KAFKA_TIMEOUT_SECONDS)

    def metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text

    def await_metric(self, line: str) -> None:
        deadline = time.monotonic() + KAFKA_TIMEOUT_SECONDS
        while line not in self.metrics():
            assert time.monotonic() < deadline, self.metrics()
            with self.receiver.changed:
                self.receiver.changed.wait(0.1)
