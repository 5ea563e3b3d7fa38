"""How a query with a backlog stops, with Spark's own states."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.__main__ import _stop_between_batches
from pipelines.runtime.query import begin_no_batch, stop
from tests.support.waiting import wait_for

_LONG = timedelta(minutes=5)


@pytest.fixture
def backlog(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of many micro-batches: one for each file."""
    folder = tmp_path / "backlog"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number}.txt").write_text("row\n", encoding="utf-8")
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))


def started(writer: DataStreamWriter, folder: Path) -> StreamingQuery:
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def test_a_query_with_a_backlog_stops_after_its_micro_batch(backlog: DataFrame, tmp_path: Path) -> None:
    """The running batch is committed, and no other one begins. The backlog would last for minutes."""
    batches: list[int] = []
    running, may_end = threading.Event(), threading.Event()

    def write(_: DataFrame, number: int) -> None:
        batches.append(number)
        if number == 1:
            running.set()
            may_end.wait()

    query = started(backlog.writeStream.foreachBatch(write), tmp_path)
    running.wait()
    stopping = threading.Thread(target=_stop_between_batches, args=([query], _LONG))
    stopping.start()
    wait_for("the decision to begin no batch", lambda: not query.isActive)
    assert query.status["isTriggerActive"]
    may_end.set()
    stopping.join()
    assert [0, 1] == batches
    assert (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert query.exception() is None


def test_a_query_that_ends_by_its_interruption_leaves_no_job(
    spark: SparkSession, backlog: DataFrame, tmp_path: Path
) -> None:
    """Spark interrupts a query that has planned its batch. Tasks that continue could write after the tasks of its
    successor.
    """
    has_begun = tmp_path / "begun"

    @F.udf("string", useArrow=False)
    def wait(_: str) -> str:
        has_begun.touch()
        threading.Event().wait()
        return ""

    query = started(backlog.select(wait("value")).writeStream.format("noop"), tmp_path)
    wait_for("the task", has_begun.exists)
    begin_no_batch(query)
    query._jsq.streamingQuery().queryExecutionThread().interrupt()
    wait_for("the end of the query", lambda: not query.status["isTriggerActive"])
    tracker = spark.sparkContext.statusTracker()
    assert len(tracker.getActiveJobsIds()) == 1
    stop(query)
    wait_for("the end of the job", lambda: not tracker.getActiveJobsIds())
