"""The clock of the loyalty query: a source of the time up to which all events have been read.

Each micro-batch has one row with this time, or no row if the time has not changed. Timers run up to this time and not
up to the machine's time. Otherwise, after an outage, they would run before earlier events that are still unread. A new
time also starts a micro-batch, so timers also run without traffic. With only the timers of Spark, which use processing
time, Spark would run one batch after the other, or no batch without new data.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from multiprocessing.connection import Client
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    # Spark starts a Python process for this module at each start of a query and gives it ten seconds. This import would
    # double the time that the process needs.
    from services.settings import Settings

TIMER_DELAY = 2_000
"""Milliseconds by which the clocks of brokers and driver may differ. This delays all timers."""

_INTERVAL = "intervalMilliseconds"
_ADDRESS = "address"
READ_UNTIL = "readUntil"


class Clock(DataSource):
    """A source whose offset is a time in milliseconds since the epoch, a multiple of the interval."""

    @classmethod
    def name(cls) -> str:
        return "loyalty-clock"

    def streamReader(self, schema: T.StructType) -> "ClockReader":  # noqa: N802
        return ClockReader(int(self.options[_INTERVAL]), self.options[_ADDRESS])


class ClockReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks the driver for the time. Offsets of release 0.1 counted intervals; this reader ignores them."""

    def __init__(self, interval: int, address: str) -> None:
        self._interval = interval
        self._address = address
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {READ_UNTIL: 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        before, last = start.get(READ_UNTIL, 0), self._last or self._now()
        if last <= before:
            return start
        with Client(self._address) as driver:
            read_until = self._whole_intervals(min(last, driver.recv()))
        return {READ_UNTIL: read_until} if read_until > before else start

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._now()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end[READ_UNTIL])] if end.get(READ_UNTIL, 0) > start.get(READ_UNTIL, 0) else []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield None, partition.value, None, None, None, None

    def _now(self) -> int:
        return self._whole_intervals(int(time.time() * 1000) - TIMER_DELAY)

    def _whole_intervals(self, milliseconds: int) -> int:
        return milliseconds // self._interval * self._interval


def clock_rows(spark: SparkSession, schema: T.StructType, address: str, settings: "Settings") -> DataFrame:
    """Rows of EVENT_TYPE with a time only, at most one in each ``timer_interval``.

    ``address`` is that of ``runtime.read_progress``, which knows the time.
    """
    spark.dataSource.register(Clock)
    interval = settings.timer_interval // timedelta(milliseconds=1)
    options = {_INTERVAL: str(interval), _ADDRESS: address}
    return spark.readStream.format(Clock.name()).options(**options).schema(schema).load()
