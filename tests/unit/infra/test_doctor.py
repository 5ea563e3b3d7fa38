"""`loyalty doctor`: its findings on this machine and on others, and its advice."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infra import doctor
from infra.doctor import State
from infra.local.java import JavaNotFoundError
from infra.local.ports import HOST
from infra.local.stack import environment_of, private_settings
from services.settings import Settings
from tests.support.http_server import QuietHandler, serving

GIB = 2**30


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return private_settings(tmp_path)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which something answers that is no part of the system."""
    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=refuse, args=[server], daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def refuse(server: socket.socket) -> None:
    """Close each connection at once."""
    try:
        while True:
            server.accept()[0].close()
    except OSError:
        return


def run(settings: Settings) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status of the command, and its checks by name."""
    command = [str(Path(sys.executable).with_name("loyalty")), "doctor", "--json"]
    done = subprocess.run(command, env=environment_of(settings), capture_output=True, text=True, check=False)
    assert "" == done.stderr
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.program
def test_a_machine_that_runs_the_tests_has_no_problem(settings: Settings) -> None:
    """All checks are made, and nothing keeps the system from running. No folder appears."""
    status, checks = run(settings)

    assert (0, set()) == (status, {name for name, check in checks.items() if check["state"] == "problem"})
    kinds = {name.partition(" ")[0] for name in checks}
    assert {"java", "memory", "port", "disk", "clock"} == kinds
    assert all(check["advice"] for check in checks.values() if check["state"] != "good")
    assert not Path(settings.checkpoint_dir).exists()


@pytest.mark.program
def test_a_taken_port_and_a_lost_folder_are_problems(settings: Settings, tmp_path: Path, taken_port: int) -> None:
    """The exit status is 1. Each problem names its subject and the variable to set."""
    (tmp_path / "file").write_text("")
    broken = {"api_port": taken_port, "checkpoint_dir": str(tmp_path / "file" / "checkpoints")}
    status, checks = run(settings.model_copy(update=broken))

    assert 1 == status
    problems = {name: check for name, check in checks.items() if check["state"] == "problem"}
    assert {"port of api", "disk of LOYALTY_CHECKPOINT_DIR"} == problems.keys()
    assert f"{HOST}:{taken_port}" in problems["port of api"]["found"]
    assert "LOYALTY_API_PORT" in problems["port of api"]["advice"]
    assert "LOYALTY_CHECKPOINT_DIR" in problems["disk of LOYALTY_CHECKPOINT_DIR"]["advice"]


def test_a_running_part_may_have_its_port(settings: Settings) -> None:
    """A part that answers is no problem."""

    class Alive(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/livez" else 404)
            self.end_headers()

    with serving(Alive) as url:
        found = doctor.ports(settings.model_copy(update={"ledger_metrics_port": httpx.URL(url).port}))
        checks = {check.name: check for check in found}

    assert (State.GOOD, True) == (
        checks["port of ledger"].state,
        "ledger runs already" in checks["port of ledger"].found,
    )
    assert "is free" in checks["port of api"].found


@pytest.mark.parametrize(
    ("total", "available", "limit", "state"),
    [
        (8, 6, None, State.GOOD),
        (8, 6, "max", State.GOOD),
        (8, 1, "max", State.WARNING),
        (2, 2, "max", State.PROBLEM),
        (8, 6, str(2 * GIB), State.PROBLEM),
        (8, 6, str(2**63), State.GOOD),
    ],
)
def test_the_memory_is_limited_by_that_of_a_container(
    tmp_path: Path, total: int, available: int, limit: str | None, state: State
) -> None:
    facts, group = tmp_path / "meminfo", tmp_path / "memory.max"
    facts.write_text(
        f"MemTotal:  {total * GIB // 1024} kB\nMemAvailable:   {available * GIB // 1024} kB\nHugePages: 0\n"
    )
    if limit:
        group.write_text(f"{limit}\n")

    check = doctor.memory(1, facts, group)
    assert state is check.state
    assert bool(check.advice) == (state is not State.GOOD)
    assert State.WARNING is doctor.memory(1, tmp_path / "missing", group).state


@pytest.mark.parametrize(("total", "is_enough_for_one"), [(3, False), (4, True)])
def test_one_driver_is_the_advice_only_if_the_memory_is_enough_for_one(
    tmp_path: Path, *, total: int, is_enough_for_one: bool
) -> None:
    facts = tmp_path / "meminfo"
    facts.write_text(f"MemTotal:  {total * GIB // 1024} kB\n")
    assert is_enough_for_one == ("LOYALTY_PIPELINE_DRIVERS=1" in doctor.memory(2, facts, tmp_path / "missing").advice)


def test_without_java_the_advice_names_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise JavaNotFoundError

    monkeypatch.setattr(doctor, "find_java_home", fail)
    assert (State.PROBLEM, True) == (doctor.java().state, "openjdk-17-jre-headless" in doctor.java().advice)


def test_a_full_disk_is_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders with a URI are not checked, because they are not on this machine."""
    monkeypatch.setattr(doctor, "DISK", 1e9)
    assert [State.PROBLEM] * 4 == [check.state for check in doctor.disks(settings)]
    folders = {"checkpoint_dir": "s3a://bucket/checkpoints", "export_dir": "hdfs://a/b", "archive_dir": "hdfs://a/c"}
    remote = settings.model_copy(update=folders)
    assert ["disk of LOYALTY_STATE_DIR"] == [check.name for check in doctor.disks(remote)]


def test_the_clock_is_the_answer_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 is TIME_ERROR: nobody sets the clock. A system without the call does not know."""

    class Kernel:
        def __init__(self, answer: int) -> None:
            self.adjtimex = lambda _: answer

    for answer, state, text in ((0, State.GOOD, "synchronised"), (5, State.WARNING, "not synchronised")):
        monkeypatch.setattr(doctor.ctypes, "CDLL", lambda _, answer=answer: Kernel(answer))
        assert (state, text) == (doctor.clock().state, doctor.clock().found)
    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda _: object())
    assert (State.WARNING, "not known") == (doctor.clock().state, doctor.clock().found)


def test_kafka_elsewhere_needs_no_port_here(settings: Settings) -> None:
    remote = settings.model_copy(update={"kafka_bootstrap_servers": "kafka-1:9092,kafka-2:9092"})
    assert "port of kafka" not in {check.name for check in doctor.ports(remote)}


@pytest.mark.parametrize("port", ["", "abc", "0", "70000"])
def test_an_address_of_kafka_without_a_port_is_a_problem(settings: Settings, port: str) -> None:
    wrong = settings.model_copy(update={"kafka_bootstrap_servers": f"localhost:{port}"})
    (check,) = (check for check in doctor.ports(wrong) if check.name == "port of kafka")
    assert (State.PROBLEM, f"localhost:{port} has no port from 1 to 65535") == (check.state, check.found)
    assert "LOYALTY_KAFKA_BOOTSTRAP_SERVERS" in check.advice
