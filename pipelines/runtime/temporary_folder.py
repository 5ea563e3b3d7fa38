"""The folder for the temporary files of this process's Spark session.

Spark and the libraries of its JVM delete their temporary files at their end. If the process is killed, the files stay:
copies of all jars, of libraries and of the state stores. The next session on the machine deletes them.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import IO


@cache
def temporary_folder() -> Path:
    """The folder of this process, for its whole life. The first call deletes the folders of processes that have ended.

    The kernel releases the lock of a folder when its process ends for any reason.
    """
    root, prefix = Path(gettempdir()), f"retail-loyalty-spark-{os.getuid()}-"
    # The lock of all folders: a new folder is not locked yet.
    with (root / f"{prefix}lock").open("a") as all_folders:
        fcntl.flock(all_folders, fcntl.LOCK_EX)
        for folder in root.glob(f"{prefix}*/"):
            _delete_unless_in_use(folder)
        new = Path(mkdtemp(prefix=prefix))
        _locks.append(_lock(new))
    return new


_locks: list[IO[str]] = []
"""Open files, because closing a file releases its lock."""


def _lock(folder: Path) -> IO[str]:
    """Raises BlockingIOError if another process has the lock."""
    file = (folder / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file


def _delete_unless_in_use(folder: Path) -> None:
    with suppress(BlockingIOError), _lock(folder):
        shutil.rmtree(folder, ignore_errors=True)
