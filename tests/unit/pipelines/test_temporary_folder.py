"""The folder of a killed process is deleted, and that of a running one stays."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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


@contextmanager
def holder(root: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a folder below the root, and the folder. With an argument, the process has a child."""
    command, environment = [sys.executable, "-c", HOLDER, *arguments], os.environ | {"TMPDIR": str(root)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    assert process.stdout
    try:
        yield process, Path(process.stdout.readline().strip())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.program
def test_only_folders_that_nobody_uses_are_deleted(tmp_path: Path) -> None:
    """A JVM that has outlived its parent still uses the folder."""
    with ExitStack() as holders:
        first, killed = holders.enter_context(holder(tmp_path))
        _, running = holders.enter_context(holder(tmp_path))
        parent, inherited = holders.enter_context(holder(tmp_path, "with a child"))
        (killed / "state-store").mkdir()
        for process in (first, parent):
            process.kill()
            process.wait()
        _, newest = holders.enter_context(holder(tmp_path))

        assert not killed.exists()
        assert {running, inherited, newest} == set(running.parent.iterdir())


def test_a_folder_is_private_and_only_a_folder_without_a_process_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users of the machine cannot read copies of the state."""
    monkeypatch.setattr(module, "gettempdir", lambda: str(tmp_path))
    first = temporary_folder.__wrapped__()
    (first.path.parent / "ended" / "state").mkdir(parents=True)
    second = temporary_folder.__wrapped__()
    for each in (first, second):
        os.close(each.lock)
    assert {first.path, second.path} == set(first.path.parent.iterdir())
    assert 0o700 == stat.S_IMODE(first.path.parent.stat().st_mode)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(StartUpError, match="belongs to another user"):
        temporary_folder.__wrapped__()


def test_a_file_system_without_execution_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would start, and each stateful query would end with an UnsatisfiedLinkError."""
    monkeypatch.setattr(module, "gettempdir", lambda: str(tmp_path))
    flags = list(os.statvfs(tmp_path))
    flags[8] |= os.ST_NOEXEC
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(flags))
    with pytest.raises(StartUpError, match=r"noexec.* at most 30 characters"):
        temporary_folder.__wrapped__()


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("/tmp/loyalty-0/a", "-Djava.io.tmpdir=/tmp/loyalty-0/a"),  # noqa: S108
        ("/tmp/my files/loyalty-0/a", "'-Djava.io.tmpdir=/tmp/my files/loyalty-0/a'"),  # noqa: S108
        # A folder of 30 characters and the largest number of a user.
        (f"/{'a' * 29}/loyalty-4294967294/abcdefgh", f"-Djava.io.tmpdir=/{'a' * 29}/loyalty-4294967294/abcdefgh"),
        (f"/{'a' * 59}", f"-Djava.io.tmpdir=/{'a' * 59}"),
        (f"/{'a' * 60}", ""),
    ],
)
def test_java_gets_a_path_that_suits(path: str, option: str) -> None:
    assert option == TemporaryFolder(Path(path), 0).java_option
