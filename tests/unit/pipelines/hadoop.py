"""A file system of Hadoop in memory, for code that calls it through PySpark. tests/spark has the real one."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any


class KilledError(BaseException):
    """The process ends before a change of the file system."""


class HadoopPath:
    def __init__(self, disk: "Disk", *parts: Any) -> None:
        self._disk = disk
        self.path: PurePosixPath = PurePosixPath(
            *(each.path if isinstance(each, HadoopPath) else each for each in parts)
        )

    def getFileSystem(self, _: object) -> "Disk":  # noqa: N802
        return self._disk

    def getParent(self) -> "HadoopPath":  # noqa: N802
        return HadoopPath(self._disk, self.path.parent)

    def getName(self) -> str:  # noqa: N802
        return self.path.name

    def toString(self) -> str:  # noqa: N802
        return str(self.path)


class Stream:
    """A file that is read or written. A new file is empty until the stream is closed."""

    def __init__(self, disk: "Disk", path: PurePosixPath) -> None:
        self._disk, self._path = disk, path
        self._written = b""

    def readAllBytes(self) -> bytes:  # noqa: N802
        content = self._disk.entries[self._path]
        assert content is not None
        return content

    def write(self, content: bytes) -> None:
        self._written += content

    def close(self) -> None:
        if self._written:
            self._disk.change()
            self._disk.entries[self._path] = self._written


class Disk:
    """A local file system of Hadoop.

    Attributes:
        entries: the files with their contents, and the folders with None.
        edited: the files whose checksums are wrong.
        changes_left: the number of changes until the process is killed.
    """

    def __init__(self, files: dict[str, str] | None = None) -> None:
        self.entries: dict[PurePosixPath, bytes | None] = {}
        self.edited: set[PurePosixPath] = set()
        self.changes_left = 10**9
        self._verifies = True
        for name, text in (files or {}).items():
            self.entries |= dict.fromkeys(PurePosixPath(name).parents)
            self.entries[PurePosixPath(name)] = text.encode()

    @property
    def spark(self) -> Any:
        """A session with this file system."""
        jvm = SimpleNamespace(**{"org.apache.hadoop.fs.Path": lambda *parts: HadoopPath(self, *parts)})
        return SimpleNamespace(
            _jvm=jvm, sparkContext=SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
        )

    def change(self) -> None:
        if not self.changes_left:
            raise KilledError
        self.changes_left -= 1

    def exists(self, path: HadoopPath) -> bool:
        return path.path in self.entries

    def listStatus(self, path: HadoopPath) -> list[Any]:  # noqa: N802
        assert path.path in self.entries, "Hadoop raises FileNotFoundException"
        found = [HadoopPath(self, each) for each in self.entries if each.parent == path.path != each]
        return [SimpleNamespace(getPath=lambda each=each: each) for each in found]

    def open(self, path: HadoopPath) -> Stream:
        if self._verifies and path.path in self.edited:
            raise OSError("ChecksumException")
        return Stream(self, path.path)

    def getUri(self) -> Any:  # noqa: N802
        return SimpleNamespace(getScheme=lambda: "file")

    def getRawFileSystem(self) -> "Disk":  # noqa: N802
        raw = Disk()
        raw.entries, raw._verifies = self.entries, False
        return raw

    def mkdirs(self, path: HadoopPath) -> None:
        self.entries |= dict.fromkeys((path.path, *path.path.parents))

    def create(self, path: HadoopPath) -> Stream:
        self.change()
        self.entries[path.path] = b""
        return Stream(self, path.path)

    def rename(self, path: HadoopPath, to: HadoopPath) -> bool:
        """Hadoop refuses to replace a file, and needs the folder of the new name."""
        self.change()
        if path.path not in self.entries or to.path in self.entries or to.path.parent not in self.entries:
            return False
        for each in list(self._below(path.path)):
            self.entries[to.path / each.relative_to(path.path)] = self.entries.pop(each)
        return True

    def delete(self, path: HadoopPath, recursive: bool) -> None:  # noqa: FBT001  # as in Java
        self.change()
        found = list(self._below(path.path))
        assert recursive or len(found) < 2, "Hadoop refuses to delete a folder with files"
        for each in found:
            del self.entries[each]

    def _below(self, folder: PurePosixPath) -> Iterator[PurePosixPath]:
        return (each for each in self.entries if each.is_relative_to(folder))
