"""A signal ends a command with the exit status of the command, at any point of the program."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.program

_COMMAND = """
import os, sys
from infra.local.interruption import InterruptedBySignalError, interrupt_on_signals
interrupt_on_signals()
try:
    exec("os.kill(os.getpid(), int(sys.argv[1]))")
except InterruptedBySignalError:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_exit_status_is_the_command_s_own(number: signal.Signals, tmp_path: Path) -> None:
    """Inside ``exec``, as during the import of a dataclass, KeyboardInterrupt would end it by SIGINT (-2)."""
    (tmp_path / "command.py").write_text(_COMMAND, encoding="utf-8")
    path = {"PYTHONPATH": f"{tmp_path}:."}
    assert subprocess.run([sys.executable, "-m", "command", str(int(number))], env=path, check=False).returncode == 130


_COMMAND_WITH_DESTRUCTOR = """
import os, sys, time
from infra.local.interruption import InterruptedBySignalError, interrupt_on_signals

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))

interrupt_on_signals()
try:
    Interrupted()
    time.sleep(60)
except InterruptedBySignalError:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_destructor_is_not_lost(number: signal.Signals, tmp_path: Path) -> None:
    """Python ignores exceptions of destructors and of the garbage collector.

    Because of that, the demo once continued after SIGTERM.
    """
    (tmp_path / "command.py").write_text(_COMMAND_WITH_DESTRUCTOR, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "command", str(int(number))],
        env={"PYTHONPATH": f"{tmp_path}:."},
        capture_output=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (130, b"")
