"""Reads the progress of a query from its checkpoint, which may be in use."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from pipelines.checkpoints.manifest import MANIFEST

Positions = Mapping[str, Mapping[int, int]]
"""By topic, as named on the broker, and by partition: the first offset that the query has not processed."""


class CheckpointReader:
    """The checkpoint of a query, at a Hadoop URI."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._path: Any = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]  # noqa: SLF001
        self._folder = self._path(checkpoint)
        self._files = self._folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    @property
    def exists(self) -> bool:
        return bool(self._files.exists(self._folder))

    def batches(self, log: str = "commits") -> list[int]:
        """The committed micro-batches in order, or with ``offsets`` the planned ones."""
        folder = self._path(self._folder, log)
        if not self._files.exists(folder):
            return []
        names = (status.getPath().getName() for status in self._files.listStatus(folder))
        return sorted(int(name) for name in names if name.isdigit())

    def positions(self) -> Positions:
        """The positions after the last committed micro-batch. Empty if there is none."""
        committed = self.batches()
        return self._offsets(f"offsets/{committed[-1]}") if committed else {}

    def batch_time(self) -> int:
        """The time of the last committed micro-batch in milliseconds since the epoch. 0 if there is none."""
        committed = self.batches()
        lines = self._lines(f"offsets/{committed[-1]}") if committed else []
        return max((line.get("batchTimestampMs", 0) for line in lines), default=0)

    def first_positions(self) -> Positions:
        """The positions at which the query began."""
        found: dict[str, Mapping[int, int]] = {}
        sources = self._path(self._folder, "sources")
        if self._files.exists(sources):
            for source in self._files.listStatus(sources):
                found |= self._offsets(f"sources/{source.getPath().getName()}/0")
        return found

    def rename(self, to: str) -> None:
        """Rename the folder. Raises OSError."""
        if not self._files.rename(self._folder, self._path(to)):
            raise OSError(f"the file system refused to rename {self._folder.toString()} to {to}")

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Prevent the start of a query on this checkpoint inside the block, and afterwards if the block fails."""
        manifest, hidden = self._manifests()
        self._files.rename(manifest, hidden)
        yield
        self._files.rename(hidden, manifest)

    def discard_unfinished(self) -> None:
        """Delete the checkpoint if a block of ``unfinished`` has failed."""
        manifest, hidden = self._manifests()
        if self._files.exists(hidden) and not self._files.exists(manifest):
            self._files.delete(self._folder, True)  # noqa: FBT003  # recursive; Java has no named arguments

    def _manifests(self) -> tuple[Any, Any]:
        manifest = self._path(self._folder, MANIFEST)
        return manifest, manifest.suffix(".unfinished")

    def _offsets(self, file: str) -> Positions:
        return {
            topic: {int(partition): offset for partition, offset in offsets.items()}
            for line in self._lines(file)
            for topic, offsets in line.items()
            if isinstance(offsets, dict) and all(partition.isdigit() for partition in offsets)
        }

    def _lines(self, file: str) -> list[dict[str, Any]]:
        """The JSON lines of an offset file: the metadata of a micro-batch, and the offsets of each source."""
        path = self._path(self._folder, file)
        if not self._files.exists(path):
            return []
        stream = self._files.open(path)
        try:
            text = bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()
        return [json.loads(line[line.index("{") :]) for line in text.splitlines() if "{" in line]
