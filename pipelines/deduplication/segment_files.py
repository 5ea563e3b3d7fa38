"""Copies of segments in files, which all Python workers of a machine map into memory.

Spark runs a bucket in another worker in each micro-batch. If each worker had its own copy of all segments, memory would
grow with the cores. The workers share the pages of a mapped file, and the kernel may drop them. A segment is named by
the digest of its contents. So an existing copy is always valid, also after a replay or with an older state.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from pipelines.deduplication.segments import Hashes, Segment, pack_contents, unpack_contents

SMALLEST_FILE = 1024
"""Segments with at least this number of identities (16 KiB) have files. Each worker has its own copies of smaller ones.
"""

_IN_USE: dict[Path, dict[str, Hashes]] = {}
"""By folder and name: the contents that this worker needed in its last micro-batch of the bucket."""


class SegmentFiles:
    """The segments of one bucket on this machine.

    Args:
        folder: for the files of this bucket only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._in_use = _IN_USE.setdefault(folder, {})

    def load(self, segments: Sequence[Segment], fetch: Callable[[Sequence[str]], Sequence[bytes]]) -> list[Hashes]:
        """The contents of segments in their order. It also deletes all other segments of the bucket from this machine.

        If a segment has no copy, ``fetch`` reads it from the state by its name.
        """
        names = [each.name for each in segments]
        files = set(os.listdir(self._folder))  # noqa: PTH208  # faster than Path.iterdir
        # The task of a bucket can change its machine, so segments may have been merged on another one.
        # If a name has a dot, another task has not finished the file.
        for name in files.difference(names):
            if "." not in name:
                self._file(name).unlink(missing_ok=True)
        found = {name: self._in_use[name] for name in names if name in self._in_use}
        found |= {name: _map(self._file(name)) for name in names if name not in found and name in files}
        missing = [name for name in names if name not in found]
        if missing:
            contents = map(unpack_contents, fetch(missing))
            found |= {name: self._keep(name, content) for name, content in zip(missing, contents, strict=True)}
        self._in_use.clear()
        self._in_use.update(found)
        return [found[name] for name in names]

    def keep(self, added: Mapping[str, Hashes]) -> None:
        """Keep copies of new segments."""
        self._in_use |= {name: self._keep(name, content) for name, content in added.items()}

    def _keep(self, name: str, content: Hashes) -> Hashes:
        if content.shape[1] < SMALLEST_FILE:
            return content
        # Another worker must never see a part of a file.
        unfinished = self._file(f"{name}.{os.getpid()}")
        unfinished.write_bytes(pack_contents(content))
        return _map(unfinished.replace(self._file(name)))

    def _file(self, name: str) -> Path:
        return self._folder / name


def _map(file: Path) -> Hashes:
    # Unlike numpy and mmap, Arrow keeps no file open for a mapping. A worker may have a thousand of them.
    with pa.memory_map(str(file)) as mapped:
        return unpack_contents(memoryview(mapped.read_buffer()))
