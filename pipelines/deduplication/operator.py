"""The stateful operator that drops repeats: moves segments between Spark's state and ``segments.remember``.

A micro-batch costs a bucket three or four state calls, however many rows it has and however many identities the bucket
remembers. Spark's own deduplication reads all that it remembers in every micro-batch
(docs/explanation/decisions/0021-repeats-at-a-constant-cost.md).
"""

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from pipelines.columns.python_workers import freeze_at_second_task
from pipelines.columns.types import struct
from pipelines.deduplication import segments as memory
from pipelines.deduplication.segment_files import SegmentFiles
from pipelines.runtime.state_calls import MapCalls

if TYPE_CHECKING:
    import pandas as pd

FIRST_HASH, SECOND_HASH, TIME = "first_hash", "second_hash", "time"
ORDER = (TIME, "partition", "offset")
"""Columns of the input. The first row of an identity is the one that the broker appended first."""

_REASON = "reason"
"""A column of the queries that write dead letters: why the record is not valid, or null."""

_NAME = struct(name="string")
_CONTENTS = struct(contents="binary")
_DIRECTORY = ("",)
"""The key of the list of all segments of the bucket. The list is in the same state variable, because one variable costs
less to set up than two.
"""


def _folder() -> Path:
    """A folder on this machine that Spark deletes at its end.

    Spark gives the names of its folders to its Python workers.
    """
    return Path(os.environ.get("SPARK_LOCAL_DIRS", gettempdir()).split(",")[0], "segments")


class RepeatFilter(StatefulProcessor):
    """Passes the first row of each identity in a bucket, and each row of an invalid record."""

    def __init__(self, query: str, keep: timedelta, columns: Sequence[str]) -> None:
        """
        Args:
            query: its name. Queries share no files.
            keep: the shortest time to remember an identity.
            columns: the columns of the output.
        """
        self._query = query
        self._keep = keep // timedelta(milliseconds=1)
        self._columns = list(columns)

    def init(self, handle: StatefulProcessorHandle) -> None:
        freeze_at_second_task()
        self._client: Any = handle._statefulProcessorApiClient  # noqa: SLF001  # see _now
        self._state = MapCalls(handle.getMapState("segments", _NAME, _CONTENTS))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> "Iterator[pd.DataFrame]":  # noqa: N802, N803
        import pandas as pd  # noqa: PLC0415 - it takes 0.4 s, and each start of a query loads this module

        frames = []
        for frame in rows:
            valid = frame
            # An invalid record repeats no other record. It leaves at once, because memory may not hold all values.
            if _REASON in frame and (is_invalid := frame[_REASON].notna()).any():
                yield frame.loc[is_invalid, self._columns]
                valid = frame[~is_invalid]
            frames.append(valid)
        frame = pd.concat(frames, ignore_index=True)
        fresh = self._remember(key, frame)
        yield frame.loc[fresh, self._columns]

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        self._remember(key, initialState)

    def close(self) -> None:
        """Nothing is open."""

    def _remember(self, key: Any, frame: "pd.DataFrame") -> Any:
        files = SegmentFiles(_folder() / self._query / str(key[0]))
        (directory,) = self._state.get([_DIRECTORY])
        hashes = np.stack([frame[FIRST_HASH].to_numpy(), frame[SECOND_HASH].to_numpy()])
        change = memory.remember(
            hashes,
            [frame[column].to_numpy() for column in ORDER],
            self._now(),
            self._keep,
            memory.unpack(bytes(directory[0])) if directory else [],
            lambda segments: files.load(segments, self._fetch),
        )
        if change.differs:
            added = [((name,), (memory.pack_contents(content),)) for name, content in change.added.items()]
            self._state.update([(_DIRECTORY, (memory.pack(change.segments),)), *added])
            self._state.remove((name,) for name in change.removed)
            # Spark may discard this micro-batch. The copies stay valid, because other contents get other names.
            files.keep(change.added)
        return change.fresh

    def _now(self) -> int:
        """The time of the micro-batch. Spark records it, so a replay has the same time.

        A column with this time would be a constant in Spark's generated code. Then Spark would compile the code of the
        whole stage in every micro-batch. Spark's public API gives the time only to an operator with timers, for which
        it sets up more state.
        """
        time, _ = self._client.get_timestamps("ProcessingTime")
        return int(time)

    def _fetch(self, names: Sequence[str]) -> list[bytes]:
        return [bytes(value[0]) for value in self._state.get([(name,) for name in names]) if value]
