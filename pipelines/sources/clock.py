"""A source without rows that starts a micro-batch once in an interval, so that due timers fire without traffic.

Without new data Spark either runs no batch, and timers wait for traffic, or it runs one batch after the other, because
processing-time timers always ask for another (``spark.sql.streaming.noDataMicroBatches.enabled``).
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    # Spark starts a Python process for this module at each start of a query and gives it ten seconds. This import would
    # double the time that the process needs.
    from services.settings import Settings

_INTERVAL = "intervalMilliseconds"


class Clock(DataSource):
    """A source whose offset is the number of whole intervals since the epoch."""

    @classmethod
    def name(cls) -> str:
        return "loyalty-clock"

    def streamReader(self, schema: T.StructType) -> "ClockReader":  # noqa: N802
        return ClockReader(int(self.options[_INTERVAL]))


class ClockReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives no rows. Only its offsets matter."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        now = self._now() if self._last is None else self._last
        # If the machine's clock was set back, this waits until it has caught up.
        return {"tick": max(start["tick"], now)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._now()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(())

    def _now(self) -> int:
        return int(time.time() * 1000) // self._interval


def ticks(spark: SparkSession, schema: T.StructType, settings: "Settings") -> DataFrame:
    """A stream without rows of the given type. It starts a micro-batch at least once in each ``timer_interval``."""
    spark.dataSource.register(Clock)
    interval = int(settings.timer_interval.total_seconds() * 1000)
    return spark.readStream.format(Clock.name()).option(_INTERVAL, interval).schema(schema).load()
