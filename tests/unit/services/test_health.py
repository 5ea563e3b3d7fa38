"""The port with metrics and health of a process: who may read what."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from socketserver import BaseServer, ThreadingMixIn
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter

from services import health
from services.errors import SettingsError
from services.health import serve_health
from services.settings import Settings
from tests.support.waiting import wait_for

HOST = "127.0.0.1"
Ask = Callable[..., tuple[int, http.client.HTTPMessage, bytes]]


@pytest.fixture(autouse=True)
def _ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a server looks twice a second whether it must end."""
    monkeypatch.setattr(BaseServer.serve_forever, "__defaults__", (0.01,))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("first-key\n\n  second-key  \n")
    return file


@pytest.fixture
def serve() -> Iterator[Callable[..., Ask]]:
    """Starts a server with these settings. The server ends with the test."""
    with ExitStack() as stack:
        registry = CollectorRegistry()
        Counter("things", "Things.", registry=registry).inc()

        def start(settings: Settings, problem: str | None = None) -> Ask:
            port = stack.enter_context(serve_health(settings, 0, registry, lambda: problem))

            def ask(path: str, authorization: str | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
                connection = http.client.HTTPConnection(settings.metrics_host, port, timeout=10)
                connection.request("GET", path, headers={"Authorization": authorization} if authorization else {})
                answer = connection.getresponse()
                answer.length = None  # a client can read more than the length that the response names
                found = answer.status, answer.headers, answer.read()
                connection.close()
                return found

            return ask

        yield start


def test_metrics_need_a_key_if_the_setting_names_a_file(serve: Callable[..., Ask], key_file: Path) -> None:
    """Each key of the file is good. Anything else gets 401 and no metric."""
    ask = serve(Settings(metrics_key_file=key_file))

    for good in ("Bearer first-key", "Bearer second-key"):
        status, _, body = ask("/metrics", good)
        assert (200, True) == (status, b"things_total 1.0" in body)
    for wrong in (
        None,
        "Bearer",
        "Bearer ",
        "Bearer first",
        "Bearer first-key2",
        "Bearer ö",
        "Basic Zmlyc3Qta2V5",
        "first-key",
    ):
        status, headers, body = ask("/metrics?name[]=things_total", wrong)
        assert (401, "Bearer", False) == (status, headers["WWW-Authenticate"], b"things_total" in body)


def test_a_changed_file_counts_at_once(serve: Callable[..., Ask], key_file: Path) -> None:
    """A removed key is refused. Without a readable file nobody gets in, and the answer says why."""
    ask = serve(Settings(metrics_key_file=key_file))
    key_file.write_text("third-key\n")

    assert (401, 200) == (ask("/metrics", "Bearer first-key")[0], ask("/metrics", "Bearer third-key")[0])
    key_file.unlink()
    status, _, body = ask("/metrics", "Bearer third-key")
    assert (503, True) == (status, str(key_file) in json.loads(body)["trouble"])


def test_probes_need_no_key(serve: Callable[..., Ask], key_file: Path) -> None:
    """An orchestrator has no key. It learns only whether the process lives and is ready."""
    works, does_not = serve(Settings(metrics_key_file=key_file)), serve(Settings(metrics_key_file=key_file), "no disk")

    assert (200, {"alive": True}) == (works("/livez")[0], json.loads(works("/livez")[2]))
    assert (200, {"ready": True, "trouble": None}) == (works("/readyz")[0], json.loads(works("/readyz")[2]))
    assert (503, "no disk") == (does_not("/readyz")[0], json.loads(does_not("/readyz")[2])["trouble"])
    assert 200 == does_not("/livez")[0]
    assert 404 == works("/nowhere")[0]


def test_without_a_file_the_own_machine_needs_no_key(serve: Callable[..., Ask]) -> None:
    assert 200 == serve(Settings())("/metrics")[0]


def test_an_ipv6_address_can_serve(serve: Callable[..., Ask]) -> None:
    assert 200 == serve(Settings(metrics_host="::1"))("/readyz")[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_addresses_need_no_key(host: str, serve: Callable[..., Ask]) -> None:
    """Only programs of this machine can reach them. The process accepts the setting, and serves the metrics."""
    settings = Settings(metrics_host=host)
    settings.require_safe_metrics()
    assert 200 == serve(settings)("/metrics")[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "metrics.example"])  # noqa: S104
def test_other_machines_need_a_key(host: str, key_file: Path) -> None:
    """Without a key a process refuses any address that other machines can reach, and says what to do."""
    Settings(metrics_host=host, metrics_key_file=key_file).require_safe_metrics()
    with pytest.raises(SettingsError, match=rf"LOYALTY_METRICS_HOST: other machines can reach {host}.*_KEY_FILE"):
        Settings(metrics_host=host).require_safe_metrics()


def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    """Nobody could read the metrics, and the operator would not know why."""
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SettingsError, match=r"LOYALTY_METRICS_KEY_FILE: .*empty has no key"):
        Settings(metrics_key_file=tmp_path / "empty").require_safe_metrics()


def test_a_caller_that_leaves_before_the_response_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A probe on a slow machine gives up. Then stderr, which is the log, gets no traceback. Other errors are there."""
    left, workers = threading.Event(), SimpleQueue[threading.Thread]()

    def find_problem() -> None:
        workers.put(threading.current_thread())
        if left.is_set():
            raise ValueError("a mistake")
        assert left.wait(10)

    with serve_health(Settings(), 0, CollectorRegistry(), find_problem) as port:
        caller = socket.create_connection((HOST, port), timeout=10)
        caller.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        # The end of the connection is a reset at once.
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        worker = workers.get(timeout=10)
        caller.close()
        left.set()
        worker.join(10)
        assert not worker.is_alive()
        assert "Traceback" not in capsys.readouterr().err
        with pytest.raises(OSError, match="end closed"):
            urlopen(f"http://{HOST}:{port}/readyz", timeout=10)
        workers.get().join(10)
        assert "ValueError: a mistake" in capsys.readouterr().err


def test_a_silent_client_frees_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends nothing gets an end of its connection after some seconds, also if no other one connects."""
    assert health._Handler.timeout in range(1, 31)
    monkeypatch.setattr(health._Handler, "timeout", 0.05)
    before = threading.active_count()
    with (
        serve_health(Settings(), 0, CollectorRegistry(), lambda: None) as port,
        socket.create_connection((HOST, port), timeout=10) as silent,
    ):
        assert b"" == silent.recv(1)
        wait_for("the end of the thread", lambda: threading.active_count() <= before + 1)


def test_slow_clients_take_a_limited_number_of_threads_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such clients need no key. Without the limit they would take all files of the process, also those for Kafka."""
    monkeypatch.setattr("services.health._Handler.timeout", None)
    before = threading.active_count()
    with ExitStack() as stack:
        port = stack.enter_context(serve_health(Settings(), 0, CollectorRegistry(), lambda: None))
        early = stack.enter_context(socket.create_connection((HOST, port), timeout=10))
        early.sendall(b"GET /livez HTTP/1.0\r\nX: ")
        for _ in range(60):  # they end, so they do not count
            urlopen(f"http://{HOST}:{port}/livez", timeout=10).close()
        early.sendall(b"\r\n\r\n")
        assert early.recv(100).startswith(b"HTTP/1.0 200 OK")
        for number in range(300):
            slow = stack.enter_context(socket.create_connection((HOST, port), timeout=10))
            slow.sendall(b"GET /livez HTTP/1.0\r\nX: ")
            if number % 100 == 99:
                with urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
                    assert 200 == answer.status
        wait_for("the end of the oldest connections", lambda: threading.active_count() <= before + 51)
        slow.sendall(b"\r\n\r\n")
        assert slow.recv(100).startswith(b"HTTP/1.0 200 OK")
    wait_for("the end of all connections", lambda: threading.active_count() <= before)


def test_a_connection_that_its_client_has_reset_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the oldest one, and cannot be ended again."""
    served: list[object] = []
    monkeypatch.setattr(ThreadingMixIn, "process_request", lambda _, request, __: served.append(request))
    reset = socket.socket()
    reset.close()
    with health._Server(Settings(), 0, CollectorRegistry(), lambda: None) as server:
        for request in [reset] * health._MOST_CONNECTIONS + ["new"]:
            server.process_request(request, None)
    assert "new" == served[-1]
