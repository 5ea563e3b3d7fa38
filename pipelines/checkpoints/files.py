"""Small files in a folder of any Hadoop file system."""

from contextlib import closing
from typing import Any

from pyspark.sql import SparkSession

UNFINISHED = ".new"
"""The ending of a file that ``write`` has not finished."""

_COMPLETE = ".next"
"""The ending of a finished file, until it replaces the old one."""


class Files:
    """The files of a folder at a Hadoop URI. File names are relative to the folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001  # PySpark has no public access to Hadoop's file systems
        # The complete name in one step. Otherwise Java also searches all jars for a class of the name of each package.
        self._new_path = getattr(jvm, "org.apache.hadoop.fs.Path")
        self._folder = self._new_path(folder)
        self._system = self._folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    def _path(self, name: str) -> Any:
        return self._new_path(self._folder, name) if name else self._folder

    def exists(self, name: str = "") -> bool:
        """Whether the file exists. Without a name: whether the folder exists."""
        return bool(self._system.exists(self._path(name))) or bool(name and self._system.exists(self._next(name)))

    def names(self, subfolder: str = "") -> list[str]:
        """The names of the files in a folder, empty if it does not exist."""
        if not self.exists(subfolder):
            return []
        return [str(status.getPath().getName()) for status in self._system.listStatus(self._path(subfolder))]

    def read(self, name: str, *, verify: bool = True) -> str:
        """``verify=False`` ignores the hidden checksum file that Hadoop writes beside a file on a local disk.

        An operator who edits a file does not change its checksum.
        """
        path, system = self._path(name), self._system
        if not verify and system.getUri().getScheme() == "file":
            system = system.getRawFileSystem()
        with closing(system.open(path if system.exists(path) else self._next(name))) as stream:
            return bytes(stream.readAllBytes()).decode()

    def write(self, name: str, text: str) -> None:
        """Write a file. After a crash, ``read`` returns the old or the new content. Raises OSError."""
        self._system.mkdirs(self._folder)
        stream = self._system.create(self._path(f"{name}{UNFINISHED}"))
        stream.write(bytearray(text.encode()))
        stream.close()
        # Hadoop does not rename to a file that exists. So it must be deleted first, while another one is complete.
        if not self._system.exists(self._path(name)) and self._system.exists(self._next(name)):
            self._rename(self._next(name), self._path(name))
        self._system.delete(self._next(name), False)  # noqa: FBT003  # not recursive; Java has no named arguments
        self._rename(self._path(f"{name}{UNFINISHED}"), self._next(name))
        self.delete(name)
        self._rename(self._next(name), self._path(name))

    def _next(self, name: str) -> Any:
        return self._path(f"{name}{_COMPLETE}")

    def rename(self, name: str, to: str) -> None:
        """Rename a file. The folder of the new name can be missing. Raises OSError."""
        self._system.mkdirs(self._path(to).getParent())
        self._rename(self._path(name), self._path(to))

    def rename_folder(self, to: str) -> None:
        """Rename the folder to a Hadoop URI. Raises OSError."""
        self._rename(self._folder, self._new_path(to))

    def _rename(self, path: Any, to: Any) -> None:
        if not self._system.rename(path, to):
            raise OSError(f"the file system refused to rename {path.toString()} to {to.toString()}")

    def delete(self, name: str = "") -> None:
        """Delete a file or folder with all its contents, if it exists. Without a name: delete the folder itself."""
        self._system.delete(self._path(name), True)  # noqa: FBT003  # recursive; Java has no named arguments
