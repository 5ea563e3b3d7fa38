"""The folder for the temporary files of this process's Spark session.

Spark deletes its temporary files at its end. Copies of libraries stay (see ``socket_files``). If the JVM is killed, all
files stay, also copies of all jars and of the state stores. The next session of the same user deletes them.
"""

import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from services.start_up import StartUpError

_LONGEST_PATH = 60
"""Characters. Spark puts Unix sockets into the folder. Their names have 43 characters, and a path may have 103."""


@dataclass(frozen=True, slots=True)
class TemporaryFolder:
    """A folder that belongs to the process that holds its lock.

    Attributes:
        lock: file descriptor of the folder. The JVM inherits it, so the lock ends with the JVM.
    """

    path: Path
    lock: int

    @property
    def java_option(self) -> str:
        """The option for Java, empty if the path is too long. Then nobody deletes the temporary files."""
        # Spark splits the options as a shell does.
        return "" if len(str(self.path)) > _LONGEST_PATH else shlex.quote(f"-Djava.io.tmpdir={self.path}")


@cache
def temporary_folder() -> TemporaryFolder:
    """The folder of this process. The first call deletes the folders of JVMs that have ended.

    Raises StartUpError if another user owns the parent folder, or if Spark cannot load libraries from it.
    """
    parent = Path(gettempdir(), f"loyalty-{os.getuid()}")
    parent.mkdir(mode=0o700, exist_ok=True)
    if os.statvfs(parent).f_flag & getattr(os, "ST_NOEXEC", 0):  # macOS does not say it
        raise StartUpError(
            f"{parent} is on a file system with the option noexec, so Spark cannot load its libraries from it: set "
            "TMPDIR to a folder on another file system. Its path can have at most 30 characters"
        )
    with _opened(parent) as lock_of_all:
        if os.fstat(lock_of_all).st_uid != os.getuid():
            raise StartUpError(
                f"{parent} belongs to another user, so temporary files in it are not safe: delete it, or set TMPDIR to "
                "another folder"
            )
        # A new folder has no lock for a moment.
        fcntl.flock(lock_of_all, fcntl.LOCK_EX)
        for folder in parent.iterdir():
            with suppress(OSError), _opened(folder) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        path = Path(mkdtemp(prefix="", dir=parent))
        lock = _open(path)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return TemporaryFolder(path, lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = _open(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
