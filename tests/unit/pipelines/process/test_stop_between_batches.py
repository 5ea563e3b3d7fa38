"""A stop lets each query end its micro-batch, within the stop timeout."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipelines.driver.stop import stop_between_batches
from tests.unit.pipelines.process.pipeline_process import Clock, Running


def test_a_query_stops_after_its_micro_batch(clock: Clock) -> None:
    """An interrupted batch runs again after the restart, and all its records with it."""
    queries: list[Any] = [Running(clock, batch_ends=end) for end in (0.0, 3.0, 1.0)]
    stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches"] * 3 == [each.stopped for each in queries]
    assert 3.0 <= clock.now < 3.1


def test_a_micro_batch_that_spark_plans_runs_before_the_stop(clock: Clock) -> None:
    """Its offsets are in the checkpoint already. After the stop timeout it is interrupted, as any other batch."""
    queries: list[Any] = [Running(clock, 4.0, planned=2.0), Running(clock, 100.0, planned=50.0)]
    stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches", "while Spark plans"] == [each.stopped for each in queries]
    assert 10.0 <= clock.now < 10.1


def test_a_micro_batch_that_does_not_end_in_time_is_interrupted(clock: Clock) -> None:
    """All queries together have one deadline. The stop does not wait for a query that has ended."""
    queries: list[Any] = [Running(clock, 0.0, is_active=False), Running(clock, 5.0), Running(clock, 100.0)]
    stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches", "between batches", "in a batch"] == [each.stopped for each in queries]
    assert 10.0 <= clock.now < 10.1


def test_a_query_that_stops_slowly_delays_no_other(clock: Clock) -> None:
    """While a broker hangs, each query needs many seconds. One after the other, they would exceed the stop timeout."""
    all_stop = threading.Barrier(2)

    class Slow(Running):
        def stop(self) -> None:
            all_stop.wait(10)
            super().stop()

    queries: list[Any] = [Slow(clock, batch_ends=0.0), Slow(clock, batch_ends=0.0)]
    stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches"] * 2 == [each.stopped for each in queries]


def test_an_error_of_a_stop_is_raised(clock: Clock) -> None:
    """The process learns that its JVM has ended, although a thread stops the query."""

    class Lost(Running):
        def stop(self) -> None:
            raise ConnectionRefusedError

    queries: list[Any] = [Lost(clock, batch_ends=0.0)]
    with pytest.raises(ConnectionRefusedError):
        stop_between_batches(queries, timedelta(seconds=10))


def test_the_log_has_the_error_of_a_last_micro_batch(clock: Clock) -> None:
    """Nothing watches the query any more. An earlier error is in the log already."""

    class Failing(Running):
        def exception(self) -> str | None:
            return super().exception() if self.stopped else None

    queries: list[Any] = [
        Running(clock, 0.0, error="an earlier error", is_active=False),
        Failing(clock, 1.0, error="the disk is full\n=== Streaming Query ==="),
        Running(clock, 1.0),
    ]
    with capture_logs() as logs:
        stop_between_batches(queries, timedelta(seconds=10))
    assert ["the disk is full"] == [line["reason"] for line in logs]
