"""Omits rows that the folder of an export had before its checkpoint began."""

import json
import time
from collections.abc import Callable, Collection
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import read_json
from pipelines.checkpoints.reader import CheckpointReader

_ADOPTED = "adopted-table.json"
_CLOCKS_DIFFER = 3600
"""Seconds between two clocks: the broker's clock times records, and this machine's clock times the checkpoint."""


class OlderRows:
    """Finds rows that a new checkpoint reads again from its topic, although the folder has them.

    A new checkpoint reads its topic from the beginning. It omits rows with known keys until it reads records that are
    newer than the checkpoint. A file in the checkpoint remembers this after a restart.

    Attributes:
        next_batch: the first number that no older micro-batch has; 0 if there are no older rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        key: Collection[str],
        find_next_batch: Callable[[], int],
        repeated_within: timedelta,
    ) -> None:
        """
        Args:
            key: the columns that identify a row.
            find_next_batch: returns the value of ``next_batch``. It is called if the checkpoint has no commit yet.
            repeated_within: the longest time from the append of a record to that of its copy, if both can have the date
                of their append time (``DateSource``). 0: rows have no such column, and copies have the same date.

        Raises CheckpointMismatchError if the file in the checkpoint is damaged.
        """
        self._key = list(key)
        self._earlier_days = -(-repeated_within // timedelta(days=1))
        if not CheckpointReader(spark, checkpoint).batches() and (next_batch := find_next_batch()):
            Files(spark, checkpoint).write(_ADOPTED, json.dumps({"time": time.time(), "next_batch": next_batch}))
        adopted = read_json(spark, checkpoint, _ADOPTED)
        self._adopted_time: float = adopted["time"] if adopted else 0
        self.next_batch: int = adopted["next_batch"] if adopted else 0

    def leave_out(self, rows: DataFrame, read_known: Callable[[], DataFrame]) -> DataFrame:
        """The rows that the folder lacks. ``read_known`` reads the date and the key of all rows that it has."""
        if not self._adopted_time:
            return rows
        oldest = rows.agg(F.min("timestamp").cast("double")).first()
        if oldest is None or oldest[0] is None or oldest[0] > self._adopted_time + _CLOCKS_DIFFER:
            return rows
        dates = _dates(rows)
        if self._earlier_days:
            copied = _dates(rows.where(F.col("DateSource") == "broker"))
            dates |= {each - timedelta(days) for each in copied for days in range(1, self._earlier_days + 1)}
        known = read_known().where(F.col("date").isin(dates)).select(*self._key)
        return rows.join(known, self._key, "left_anti")


def _dates(rows: DataFrame) -> set[date]:
    return {row["date"] for row in rows.select("date").distinct().collect()}
