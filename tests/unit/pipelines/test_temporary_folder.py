"""The folder of a killed process is deleted, and that of a running one stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.runtime import temporary_folder as module
from pipelines.runtime.temporary_folder import TemporaryFolder, temporary_folder
from services.start_up import StartUpError

HOLDER = """
import subprocess
import sys
from pipelines.runtime.temporary_folder import temporary_folder
folder = temporary_folder()
if len(sys.argv) > 1:
    subprocess.Popen(["sleep", "600"], pass_fds=[folder.lock])
print(folder.path, flush=True)
input()
"""


@pytest.mark.program
def test_only_folders_that_nobody_uses_are_deleted(tmp_path: Path) -> None:
    """A JVM that has outlived its parent still uses the folder."""

    def holder(*arguments: str) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", HOLDER, *arguments]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        assert process.stdout
        return process, Path(process.stdout.readline().strip())

    holders = [holder(), holder(), holder("with a child")]
    killed, running, inherited = (folder for _, folder in holders)
    (killed / "state-store").mkdir()
    for process in (holders[0][0], holders[2][0]):
        process.kill()
        process.wait()
    holders.append(holder())

    assert not killed.exists()
    assert {running, inherited, holders[3][1]} == set(running.parent.iterdir())
    for process, _ in holders:
        os.killpg(process.pid, 9) if process is not holders[0][0] else None
        process.communicate()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(StartUpError, match="belongs to another user"):
        temporary_folder.__wrapped__()


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("/tmp/loyalty-0/a", "-Djava.io.tmpdir=/tmp/loyalty-0/a"),  # noqa: S108
        ("/tmp/my files/loyalty-0/a", ""),  # noqa: S108
        (f"/tmp/{'a' * 60}", ""),  # noqa: S108
    ],
)
def test_java_gets_a_path_that_suits(path: str, option: str) -> None:
    assert option == TemporaryFolder(Path(path), 0).java_option
