"""A source without rows that has something new once an interval: a micro-batch comes of it, and due timers fire.

Without data Spark runs either no batch, and timers wait for traffic, or one after the other, and the machine never
rests (``spark.sql.streaming.noDataMicroBatches.enabled``; processing-time timers always ask for another batch).
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    # Spark starts a Python process for this module at every start of a query, and gives it ten seconds. What this would
    # import took as long as all the rest.
    from services.settings import Settings

_INTERVAL = "intervalMilliseconds"


class Clock(DataSource):
    """Its offset is the number of whole intervals since the epoch."""

    @classmethod
    def name(cls) -> str:
        return "loyalty-clock"

    def streamReader(self, schema: T.StructType) -> "ClockReader":  # noqa: N802
        return ClockReader(int(self.options[_INTERVAL]))


class ClockReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives no rows; only its offsets matter."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        now = self._now() if self._last is None else self._last
        # A clock that is set back ticks again when it has caught up.
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
    """No rows of that type, and a micro-batch at least every ``timer_interval``."""
    spark.dataSource.register(Clock)
    interval = int(settings.timer_interval.total_seconds() * 1000)
    return spark.readStream.format(Clock.name()).option(_INTERVAL, interval).schema(schema).load()
