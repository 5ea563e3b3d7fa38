"""Only one process uses a checkpoint."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from infra.local.folders import ROOT
from pipelines.checkpoints.lock import CheckpointInUseError, hold
from services.start_up import local_folder


def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    """The refusal comes at once and names the checkpoint. Afterwards the checkpoint is free. A new checkpoint has no
    folder yet.
    """
    checkpoint = str(tmp_path / "checkpoints" / "loyalty")
    with hold(checkpoint), pytest.raises(CheckpointInUseError, match=checkpoint), hold(checkpoint):
        pass
    with hold(checkpoint):
        pass


def test_a_rebuild_that_renames_the_checkpoint_keeps_the_lock(tmp_path: Path) -> None:
    checkpoint = tmp_path / "loyalty"
    checkpoint.mkdir()
    with hold(str(checkpoint)):
        checkpoint.rename(tmp_path / "loyalty-before")
        with pytest.raises(CheckpointInUseError), hold(str(checkpoint)):
            pass


@pytest.mark.program
def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    """After SIGKILL the file exists but the lock does not, so a restart need not wait."""
    program = f"from pipelines.checkpoints.lock import hold\nwith hold({str(tmp_path)!r}): print(flush=True); input()"
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(CheckpointInUseError), hold(str(tmp_path)):
            pass
        holder.kill()
        holder.wait()
    with hold(str(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("uri", "folder"),
    [("var/checkpoints", Path("var/checkpoints")), ("file:///a%20b", Path("/a b")), ("hdfs:///checkpoints", None)],
)
def test_only_folders_of_this_machine_are_locked(uri: str, folder: Path | None) -> None:
    """On other file systems Spark's commit log notices two writers."""
    assert folder == local_folder(uri)
    with nullcontext() if folder else hold(uri), nullcontext() if folder else hold(uri):
        pass
