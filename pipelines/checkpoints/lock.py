"""A lock for each checkpoint, so that a second pipeline or a rebuild refuses to start beside a running pipeline."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import UserError
from services.start_up import local_folder

_SUFFIX = ".lock"


class CheckpointInUseError(UserError):
    """Another process runs a query on the checkpoint."""


@contextmanager
def hold(checkpoint: str, remedy: str = "stop it first") -> Iterator[None]:
    """Hold the lock of a checkpoint inside the block. Raises CheckpointInUseError if another process holds it.

    The kernel releases the lock when the process ends for any reason, so a restart need not wait. The lock works
    between processes and containers of one machine. On a remote file system there is no lock, but Spark detects a
    second writer at its commit, and stops one of the two.

    Args:
        remedy: what to do if another process holds the lock, for the error.
    """
    folder = local_folder(checkpoint)
    if folder is None:
        yield
        return
    # The file is beside the folder. A rebuild renames the folder and must keep the lock.
    file = folder.with_name(f"{folder.name}{_SUFFIX}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointInUseError(
                f"another process, usually the pipeline, uses the checkpoint {checkpoint}: {remedy}"
            ) from None
        yield
