"""The folder of a killed process is deleted, and that of a running one stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOLDER = """
from pipelines.runtime.temporary_folder import temporary_folder
print(temporary_folder(), flush=True)
input()
"""


@pytest.mark.program
def test_only_folders_of_processes_that_have_ended_are_deleted(tmp_path: Path) -> None:
    def holder() -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", HOLDER]
        process = subprocess.Popen(
            command,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        return process, Path(process.stdout.readline().strip())

    holders = [holder(), holder()]
    killed, running = (folder for _, folder in holders)
    (killed / "state-store").mkdir()
    holders[0][0].kill()
    holders[0][0].wait()
    holders.append(holder())

    assert not killed.exists()
    assert {running, holders[2][1]} == {each.parent for each in tmp_path.glob("*/lock")}
    for process, _ in holders:
        process.kill()
        process.communicate()
