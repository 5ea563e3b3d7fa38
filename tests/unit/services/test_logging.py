"""The log lines of processes: services.logging and services.messaging.clients."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.local.ports import free_port
from services.logging import WarningLimit

_LONGEST_SECONDS = 60
_QUIET_SECONDS = 3.0
AWAY = "cannot read now, and tries again"


@pytest.mark.program
def test_a_crash_in_a_native_library_leaves_a_traceback() -> None:
    crash = "configure_logging(Settings()); import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    program = f"from services.logging import *; {crash}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.returncode < 0
    assert "Fatal Python error: Segmentation fault" in process.stderr
    assert 'File "<string>", line 1' in process.stderr


@pytest.mark.program
def test_the_lines_of_the_audit_trail_are_in_the_log_at_each_level() -> None:
    """While Kafka is not available, only the log has them."""
    program = """if True:
        from api.security.audit import log
        from services.logging import *
        configure_logging(Settings(log_level="ERROR"))
        log.info("audit", actor="key:1")
        logging.getLogger("api").warning("something else")
    """
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "actor=key:1" in process.stderr
    assert "something else" not in process.stderr


@pytest.mark.program
def test_no_line_shows_the_password_of_the_schema_registry() -> None:
    """The client of the registry logs each request with its URL at INFO, if nobody stops it."""
    program = """if True:
        from schemas.topics import LOYALTY
        from services.logging import *
        from services.messaging.schema_ids import SchemaRegistryUnavailableError, schema_ids
        from threading import Thread
        from http.server import BaseHTTPRequestHandler, HTTPServer
        server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers each request with 501
        Thread(target=server.serve_forever, daemon=True).start()
        settings = Settings(schema_registry_url=f"http://user:secret@127.0.0.1:{server.server_port}")
        configure_logging(settings)
        try:
            schema_ids(settings).writer_id(LOYALTY)
        except SchemaRegistryUnavailableError as error:
            logging.getLogger("test").info(str(error))
    """
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "status code 501" in process.stderr
    assert "secret" not in process.stderr


@contextmanager
def logging_to(log: Path, module: str) -> Iterator[None]:
    """A process without Kafka, with its data beside the log."""
    log.parent.mkdir()
    port = str(free_port())
    variables = {
        "LOYALTY_LOG_FORMAT": "json",
        "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "LOYALTY_LEDGER_URL": f"sqlite:///{log.parent}/ledger.sqlite",
        "LOYALTY_PSEUDONYM_KEY_FILE": str(log.parent / "key"),
        "LOYALTY_STATE_DIR": str(log.parent / "state"),
        "LOYALTY_API_PORT": port,
        "LOYALTY_LEDGER_METRICS_PORT": port,
    }
    with log.open("wb") as output:
        command = [sys.executable, "-m", module]
        process = subprocess.Popen(command, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait(_LONGEST_SECONDS)


@pytest.mark.program
def test_while_kafka_is_away_a_process_logs_one_line_and_only_json(tmp_path: Path) -> None:
    """Librdkafka tries to connect twenty times a second. Its lines are not JSON, and they would fill the log."""
    logs = [tmp_path / name / "log" for name in ("ledger", "api")]
    with logging_to(logs[0], "services.ledger"), logging_to(logs[1], "api"):
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not all(AWAY in log.read_text(encoding="utf-8") for log in logs) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(_QUIET_SECONDS)

    for log in logs:
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        (away,) = [line for line in lines if line["level"] not in ("info", "debug")]
        assert (AWAY, "127.0.0.1:1", "warning") == (away["event"], away["brokers"], away["level"])


@pytest.fixture
def minute_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock by a minute."""
    times = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: times[-1])
    return lambda: times.append(times[-1] + 60)


@pytest.fixture
def limited() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.limit")
    logger.addFilter(limit := WarningLimit())
    yield logger
    logger.removeFilter(limit)


def test_a_warning_that_clients_cause_is_seldom(
    caplog: pytest.LogCaptureFixture, limited: logging.Logger, minute_later: Callable[[], None]
) -> None:
    """Each text is logged once a minute, with the number of omitted lines. Errors always pass."""
    for _ in range(1_000):
        limited.warning("Invalid request.")
    limited.warning("Another.")
    limited.error("A failure.")
    limited.error("A failure.")
    minute_later()
    for _ in range(2):
        limited.warning("Invalid request.")

    last = "Invalid request. Since the last such line, 999 more were left out."
    assert ["Invalid request.", "Another.", "A failure.", "A failure.", last] == caplog.messages


def test_warnings_of_structlog_are_limited_by_their_texts(
    caplog: pytest.LogCaptureFixture, limited: logging.Logger, minute_later: Callable[[], None]
) -> None:
    """Their messages are dictionaries, which differ in the time."""
    for number in range(3):
        limited.warning({"event": "refused", "timestamp": number})
    minute_later()
    limited.warning({"event": "refused", "timestamp": 4})

    last = {"event": "refused. Since the last such line, 2 more were left out.", "timestamp": 4}
    assert [{"event": "refused", "timestamp": 0}, last] == [record.msg for record in caplog.records]
