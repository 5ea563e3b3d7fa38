"""Starting, finding and ending processes: infra.local.processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psutil
import pytest

from infra.local.processes import AlreadyRunsError, ManagedProcess, ProcessFailedError
from tests.support.waiting import wait_for

pytestmark = pytest.mark.program

# Prints that it is ready, then waits until its standard input ends.
WAITS = "import signal, pathlib; pathlib.Path('ready').touch(); signal.pause()"
WAITS_FOR_EVER = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + WAITS
LEAVES_A_CHILD = (
    "import subprocess, sys, pathlib;"
    "child = subprocess.Popen([sys.executable, '-c', 'import os, signal; os.setpgid(0, 0); signal.pause()']);"
    "pathlib.Path('child').write_text(str(child.pid));" + WAITS
)

HAS_A_THREAD = "import signal, threading; threading.Thread(target=signal.pause, daemon=True).start();"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ManagedProcess]:
    managed = ManagedProcess("part", tmp_path / "run", tmp_path / "log", stop_timeout=20)
    yield managed
    managed.kill()


def start(process: ManagedProcess, tmp_path: Path, program: str, timeout: float = 60) -> None:
    ready = tmp_path / "ready"
    process.start([sys.executable, "-c", program], os.environ, tmp_path, ready.exists, timeout)


def test_another_command_finds_and_stops_a_process(process: ManagedProcess, tmp_path: Path) -> None:
    """It reads the pid file."""
    start(process, tmp_path, WAITS)
    other_command = ManagedProcess("part", tmp_path / "run", tmp_path / "log")
    assert process.pid == other_command.pid
    other_command.stop()
    assert (None, None) == (process.pid, other_command.pid)


def test_stopping_twice_is_no_error(process: ManagedProcess, tmp_path: Path) -> None:
    """The pid file is gone after the first stop."""
    start(process, tmp_path, WAITS)
    process.stop()
    process.stop()
    assert not process.pid_file.exists()


def test_a_killed_process_can_be_started_again(process: ManagedProcess, tmp_path: Path) -> None:
    """The new one has the same name."""
    start(process, tmp_path, WAITS)
    first = process.pid
    process.kill()
    start(process, tmp_path, WAITS)
    assert process.pid not in (None, first)


def test_a_process_runs_at_most_once(process: ManagedProcess, tmp_path: Path) -> None:
    """A second start is refused, and the process continues."""
    start(process, tmp_path, WAITS)
    pid = process.pid
    with pytest.raises(ProcessFailedError, match=f"already runs with pid {pid}"):
        start(process, tmp_path, WAITS)
    assert pid == process.pid


def test_two_starts_at_once_start_one_process(process: ManagedProcess, tmp_path: Path) -> None:
    """The slower command gets an error and stops nothing. Both see the process of the faster one."""
    commands = [process, *(ManagedProcess("part", tmp_path / "run", tmp_path / "log") for _ in range(7))]
    together, refused = Barrier(len(commands)), []

    def start_one(command: ManagedProcess) -> None:
        together.wait()
        try:
            start(command, tmp_path, WAITS)
        except AlreadyRunsError as error:
            refused.append(error)

    try:
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(start_one, commands))
        (pid,) = {command.pid for command in commands}
        assert (7, True) == (len(refused), pid is not None)
    finally:
        for command in commands:
            command.kill()


def test_the_end_of_a_process_keeps_the_file_of_the_next_one(process: ManagedProcess, tmp_path: Path) -> None:
    """A command that has lost its process does not remove the pid file of another command's process."""
    start(process, tmp_path, WAITS)
    assert process.pid is not None
    psutil.Process(process.pid).kill()
    other_command = ManagedProcess("part", tmp_path / "run", tmp_path / "log")
    wait_for("the end of the process", lambda: process.pid is None)
    try:
        start(other_command, tmp_path, WAITS)
        process.kill()
        assert other_command.pid == ManagedProcess("part", tmp_path / "run", tmp_path / "log").pid is not None
    finally:
        other_command.kill()


@pytest.mark.parametrize("change", [3.0, -3600.0])
def test_a_process_is_found_after_the_clock_is_set(
    process: ManagedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    """The start time of psutil moves with the clock of the machine."""
    start(process, tmp_path, WAITS)
    before = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: before(self) + change)
    other_command = ManagedProcess("part", tmp_path / "run", tmp_path / "log")
    assert process.pid == other_command.pid
    other_command.stop()
    assert process.pid is None


def test_a_process_of_an_earlier_version_is_found(process: ManagedProcess, tmp_path: Path) -> None:
    """Version 0.1 recorded only the time of psutil. Its stack can run during an upgrade of the checkout."""
    start(process, tmp_path, WAITS)
    recorded = json.loads(process.pid_file.read_text(encoding="utf-8"))
    process.pid_file.write_text(json.dumps({name: recorded[name] for name in ("pid", "started")}), encoding="utf-8")
    assert process.pid == ManagedProcess("part", tmp_path / "run", tmp_path / "log").pid


@pytest.mark.parametrize("recorded", [{}, {"start": "another-boot 17"}], ids=["version 0.1", "now"])
def test_a_stale_pid_file_kills_no_other_process(process: ManagedProcess, recorded: dict[str, str]) -> None:
    """Another process that reuses the recorded id is neither reported as running nor stopped."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True) as stranger:
        started = psutil.Process(stranger.pid).create_time()
        process.run_dir.mkdir()
        identity = {"pid": stranger.pid, "started": started - 60 * (not recorded), **recorded}
        process.pid_file.write_text(json.dumps(identity), encoding="utf-8")
        seen = process.pid
        process.stop()
        alive = stranger.poll() is None
        stranger.kill()
    assert (None, True) == (seen, alive)
    assert not process.pid_file.exists()


@pytest.mark.parametrize("content", ["", "no json", "[]", "{}", '{"pid": "x", "started": 1}', "17"])
def test_a_broken_pid_file_counts_as_none(process: ManagedProcess, content: str) -> None:
    """A damaged pid file counts as a process that does not run."""
    process.run_dir.mkdir()
    process.pid_file.write_text(content, encoding="utf-8")
    assert process.pid is None


def test_an_early_end_shows_the_log(process: ManagedProcess, tmp_path: Path) -> None:
    """A process that ends before it is ready fails the start at once. The error has its last lines."""
    with pytest.raises(ProcessFailedError, match=r"(?s)part ended before it was ready.*the reason why"):
        start(process, tmp_path, "raise SystemExit('the reason why')")


def test_a_failed_start_shows_no_lines_of_earlier_runs(process: ManagedProcess, tmp_path: Path) -> None:
    """A reader must not confuse the failure with an earlier run. The file keeps the lines of both."""
    process.log_dir.mkdir()
    process.log_file.write_text("yesterday\n")
    with pytest.raises(ProcessFailedError, match="today") as error:
        start(process, tmp_path, "print('today'); raise SystemExit(1)")
    assert "yesterday" not in str(error.value)
    assert "yesterday\ntoday\n" == process.log_file.read_text()


def test_a_part_that_is_not_ready_in_time_is_stopped(process: ManagedProcess, tmp_path: Path) -> None:
    """The start fails and leaves no process."""
    message = r"was not ready after 0 s and was stopped.* `do not restart`, docs/how-to/change-a-schema\.md "
    with pytest.raises(ProcessFailedError, match=message):
        start(process, tmp_path, "import signal; signal.pause()", timeout=0.3)
    assert process.pid is None


def test_a_process_that_ignores_sigterm_is_killed(process: ManagedProcess, tmp_path: Path) -> None:
    process.stop_timeout = 0.3
    start(process, tmp_path, WAITS_FOR_EVER)
    process.stop()
    assert process.pid is None


def test_children_end_with_their_process(process: ManagedProcess, tmp_path: Path) -> None:
    """A kill also ends children in their own process group, such as Spark's Python workers."""
    start(process, tmp_path, LEAVES_A_CHILD)
    child = psutil.Process(int((tmp_path / "child").read_text(encoding="utf-8")))
    process.kill()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_part_that_is_ready_can_have_a_lower_priority(tmp_path: Path) -> None:
    """Its start has the normal priority: behind a busy machine it would not be ready in time, and `make up` would fail.

    Linux compares sessions first, so the session (the autogroup) needs the niceness too, where Linux has those. Without
    them each thread and each child counts.
    """
    background = ManagedProcess("part", tmp_path / "run", tmp_path / "log", niceness=10)
    normal = psutil.Process().nice()

    def threads() -> list[int]:
        child = int((tmp_path / "child").read_text(encoding="utf-8"))
        found = [each.id for pid in (background.pid, child) for each in psutil.Process(pid).threads()]
        return [os.getpriority(os.PRIO_PROCESS, thread) for thread in found]

    def group() -> str:
        file = Path(f"/proc/{background.pid}/autogroup")
        return file.read_text(encoding="ascii").rpartition(" nice ")[2] if file.exists() else ""

    def ready() -> bool:
        if not (tmp_path / "ready").exists():
            return False
        at_start.append((threads(), group()))
        return True

    at_start: list[tuple[list[int], str]] = []
    command = [sys.executable, "-c", HAS_A_THREAD + LEAVES_A_CHILD]
    try:
        background.start(command, os.environ, tmp_path, ready, 60)
        ((before, group_before),) = at_start
        assert ([normal] * 3, [min(19, normal + 10)] * 3) == (before, threads())
        assert (group_before, group()) in {("0\n", "10\n"), ("", "")}
    finally:
        background.kill()
