"""One process a checkpoint: a second pipeline, or a rebuild beside one, refuses instead of both failing in turns."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_SUFFIX = ".lock"


class CheckpointInUseError(RuntimeError):
    """Another process runs a query on the checkpoint."""


@contextmanager
def held(checkpoint: str) -> Iterator[None]:
    """Hold a checkpoint for the length of the block; raises CheckpointInUseError at once if somebody else does.

    The kernel releases the lock of a process that dies, however it dies, so no restart has to wait. It holds among
    the processes, and containers, of one machine; on a remote file system Spark notices a second writer when it
    commits, and fails one of the two.
    """
    folder = local_folder(checkpoint)
    if folder is None:
        yield
        return
    # Beside the folder, not in it: a rebuild moves the folder aside and still holds its name.
    file = folder.with_name(f"{folder.name}{_SUFFIX}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointInUseError(f"another process runs on {checkpoint}") from None
        yield


def local_folder(uri: str) -> Path | None:
    """The folder of this machine behind a Hadoop URI; None where it is elsewhere."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return None
    return Path(url2pathname(parts.path)) if parts.scheme else Path(uri)
