"""Reads the progress of a query from its checkpoint, which may be in use."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from pipelines.checkpoints.files import Files
from pipelines.sources.clock import READ_UNTIL

Positions = Mapping[str, Mapping[int, int]]
"""By topic (its name on the broker) and partition: the first offset that the query has not processed."""

_MARKER = "unfinished"


class CheckpointReader:
    """The checkpoint of a query, at a Hadoop URI."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._files = Files(spark, checkpoint)
        # The marker is beside the checkpoint, because it exists before the rebuild renames the old checkpoint.
        self._beside = Files(spark, f"{checkpoint}-rebuild")

    @property
    def exists(self) -> bool:
        return self._files.exists()

    def query_id(self) -> str:
        """The id that Spark gave the query of this checkpoint at its first start."""
        return str(json.loads(self._files.read("metadata"))["id"])

    def batches(self, log: str = "commits") -> list[int]:
        """The numbers of the committed micro-batches in order. With ``log="offsets"``: of the planned ones."""
        return sorted(int(name) for name in self._files.names(log) if name.isdigit())

    @property
    def has_unfinished_batch(self) -> bool:
        """Whether Spark has planned a micro-batch, and has not committed it."""
        return self.batches("offsets")[-1:] != self.batches()[-1:]

    def positions(self, log: str = "commits") -> Positions:
        """The positions after the last committed micro-batch. Empty if there is none. For ``log`` see ``batches``."""
        return _offsets(self._last(log))

    def clock_time(self) -> int:
        """The time of the clock in the last committed micro-batch, milliseconds since the epoch. 0 if there is none."""
        return max((line.get(READ_UNTIL, 0) for line in self._last("commits")), default=0)

    def planned_time(self) -> int:
        """When Spark planned the newest micro-batch, milliseconds since the epoch.

        0 if there is none, or if the file is empty. Spark refuses an empty file.
        """
        return max((line.get("batchTimestampMs", 0) for line in self._last("offsets")), default=0)

    def first_positions(self) -> Positions:
        """The positions at which the query began."""
        sources = (self._lines(f"sources/{name}/0") for name in self._files.names("sources"))
        return {topic: offsets for lines in sources for topic, offsets in _offsets(lines).items()}

    def rename(self, to: str) -> None:
        """Rename the folder. Raises OSError."""
        self._files.rename_folder(to)

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Mark the checkpoint as unfinished inside the block. The mark stays if the block fails or the process ends."""
        self._beside.write(_MARKER, "")
        yield
        self._beside.delete()

    @property
    def is_unfinished(self) -> bool:
        return self._beside.exists(_MARKER)

    def discard(self) -> None:
        """Delete the checkpoint."""
        self._files.delete()

    def _last(self, log: str) -> list[dict[str, Any]]:
        batches = self.batches(log)
        return self._lines(f"offsets/{batches[-1]}") if batches else []

    def _lines(self, file: str) -> list[dict[str, Any]]:
        """The JSON lines of an offset file: the metadata of a micro-batch, and the offsets of each source."""
        text = self._files.read(file) if self._files.exists(file) else ""
        return [json.loads(line[line.index("{") :]) for line in text.splitlines() if "{" in line]


def _offsets(lines: list[dict[str, Any]]) -> Positions:
    return {
        topic: {int(partition): offset for partition, offset in offsets.items()}
        for line in lines
        for topic, offsets in line.items()
        if isinstance(offsets, dict) and all(partition.isdigit() for partition in offsets)
    }
