"""Processes that continue to run after the command that started them has ended. They have pid files and log files."""

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_LOG_LINES = 20
_LOG_BYTES = 64 * 1024
_KILL_TIMEOUT = 10.0
_CLOCK_TOLERANCE = 2.0
"""Without an exact start: seconds by which a start time may change when the clock of the machine is set."""


class ProcessFailedError(RuntimeError):
    """A process ended, or was not ready in time. The message has the last lines of its log."""


class AlreadyRunsError(ProcessFailedError):
    """The program already runs. The caller has not started it, and must not stop it."""


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Wait for the lock, and hold it until the end of the block. Other commands then wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass
class ManagedProcess:
    """One program that runs at most once for each run folder.

    Attributes:
        name: the name of its pid file and its log file.
        run_dir: contains ``{name}.pid`` while it runs.
        log_dir: contains ``{name}.log`` with its output.
        stop_timeout: seconds from SIGTERM to SIGKILL.
        niceness: 0 to 19. Above 0, the program gets a lower priority as soon as it is ready. It starts with the normal
            priority, because on a busy machine a start with a low priority would exceed the timeout.
    """

    name: str
    run_dir: Path
    log_dir: Path
    stop_timeout: float = 30.0
    niceness: int = 0
    _process: psutil.Process | None = field(default=None, init=False, repr=False)
    _start_of_log: int = field(default=0, init=False, repr=False)

    @property
    def log_file(self) -> Path:
        return self.log_dir / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        return self.run_dir / f"{self.name}.pid"

    @property
    def pid(self) -> int | None:
        """The process id; None if it does not run."""
        process = self._running()
        return process.pid if process else None

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment with which it was started; empty if it does not run."""
        process = self._running()
        with contextlib.suppress(psutil.NoSuchProcess):  # it can end at this moment
            return process.environ() if process else {}
        return {}

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        working_dir: Path,
        ready: Callable[[], bool],
        timeout: float,
    ) -> None:
        """Start the program and wait until it is ready. After any failure the program does not run.

        Raises:
            AlreadyRunsError: the program already runs. This call has not changed it.
            ProcessFailedError: the program ended before it was ready, or was not ready after ``timeout`` seconds.
        """
        try:
            with locked(self._lock_file):
                self._launch(command, environment, working_dir)
            self._wait_until(ready, timeout)
            if self.niceness:
                self._lower_priority()
        except AlreadyRunsError:
            raise
        except BaseException:
            self.stop()
            raise

    @property
    def _lock_file(self) -> Path:
        """The lock of the pid file. Only one command at a time reads the file and acts on its content."""
        return self.run_dir / f"{self.name}.lock"

    def _launch(self, command: Sequence[str], environment: Mapping[str, str], working_dir: Path) -> None:
        if self.pid is not None:
            raise AlreadyRunsError(f"{self.name} already runs with pid {self.pid}: stop it first")
        self.log_dir.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._start_of_log = log.tell()
            self._process = psutil.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=working_dir,
                # In its own session the process does not receive Ctrl-C. The command that started it stops it.
                start_new_session=True,
            )
        pid = self._process.pid
        identity = {"pid": pid, "started": self._process.create_time(), "start": _exact_start(pid)}
        self.pid_file.write_text(json.dumps(identity), encoding="utf-8")

    def _lower_priority(self) -> None:
        if not (process := self._running()):
            return
        # With autogroups, Linux first divides the cores among sessions. Only this file sets the priority of a session.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text(str(self.niceness), encoding="ascii")
        # Without autogroups, each thread has its own niceness. Threads and processes that it starts later inherit it.
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + self.niceness
        lowered: set[int] = set()
        while groups := _groups_of(process) - lowered:
            for group in groups:
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PGRP, group, niceness)
            lowered |= groups

    def _wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not ready():
            if self.pid is None:
                raise ProcessFailedError(f"{self.name} ended before it was ready. {self.last_lines()}")
            if time.monotonic() > deadline:
                raise ProcessFailedError(
                    f"{self.name} was not ready after {timeout:.0f} s and was stopped. If the machine is busy, end "
                    "other programs and start again. If its log says `do not restart`, docs/how-to/change-a-schema.md "
                    f"says how it gets more time. {self.last_lines()}"
                )
            time.sleep(0.1)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the timeout. Does nothing if the program does not run."""
        if process := self._running():
            # Signal only the leader: a Spark driver must end its micro-batches before its JVM ends.
            process.terminate()
            deadline = time.monotonic() + self.stop_timeout
            while _is_alive(process) and time.monotonic() < deadline:
                time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the program and to all its children."""
        if process := self._process or self._running():
            members = _session_of(process)
            for member in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            deadline = time.monotonic() + _KILL_TIMEOUT
            while any(_is_alive(member) for member in members) and time.monotonic() < deadline:
                time.sleep(0.02)
            if isinstance(process, psutil.Popen):
                process.wait()
        self._process = None
        if self.pid_file.exists():
            with locked(self._lock_file):
                # Meanwhile another command can have started the program again.
                recorded = self._recorded()
                if recorded is None or not _is_alive(recorded):
                    self.pid_file.unlink(missing_ok=True)

    def last_lines(self) -> str:
        """The last lines of the log since the start, for an error message. It contains no lines of earlier runs."""
        lines = []
        with contextlib.suppress(FileNotFoundError), self.log_file.open("rb") as log:
            log.seek(max(self._start_of_log, self.log_file.stat().st_size - _LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n  ".join([f"The end of {self.log_file}:", *lines])

    def _running(self) -> psutil.Process | None:
        """The running process, which this object or another command has started; None if none runs."""
        if self._process and _is_alive(self._process):
            return self._process
        found = self._recorded()
        if found and _is_alive(found):
            self._process = found
            return found
        return None

    def _recorded(self) -> psutil.Process | None:
        """The process of the pid file; None if another program has the pid now."""
        try:
            identity = json.loads(self.pid_file.read_text(encoding="utf-8"))
            process = psutil.Process(identity["pid"])
            if start := identity.get("start"):
                is_same = start == _exact_start(process.pid)
            else:  # the file is of version 0.1, or the system has no exact start
                is_same = abs(process.create_time() - identity["started"]) <= _CLOCK_TOLERANCE
        except (FileNotFoundError, ValueError, LookupError, TypeError, psutil.Error):
            return None
        return process if is_same else None


def _exact_start(pid: int) -> str:
    """The id of the current boot, and the ticks from the boot to the start of the process. Clock changes do not matter.

    Empty if the system is not Linux.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    # Field 22 of proc(5). The name in field 2 can contain blanks and parentheses, so the fields are counted after it.
    return f"{boot} {int(status.rpartition(b')')[2].split()[19])}"


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _session_of(leader: psutil.Process) -> list[psutil.Process]:
    """The leader and all other processes of its session. Spark's Python workers leave its process group.

    The system does not reuse a pid while a session has this id. So a reused pid means that the session has ended.
    """
    if psutil.pid_exists(leader.pid) and not leader.is_running():
        return []
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader.pid:
                members.append(process)
    return members


def _groups_of(leader: psutil.Process) -> set[int]:
    """The process groups of the session."""
    groups = set()
    for member in _session_of(leader):
        with contextlib.suppress(OSError):
            groups.add(os.getpgid(member.pid))
    return groups
