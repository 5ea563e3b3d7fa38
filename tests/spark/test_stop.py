"""How a query with a backlog stops, with Spark's own states."""

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.driver.stop import begin_no_batch, plans_batch, stop, stop_between_batches
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


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A folder for ``pass_gate``."""
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


def pass_gate(gate: Path) -> Column:
    """A column whose tasks wait, from the second one on, until the file ``open`` exists."""

    @F.udf("string", useArrow=False)
    def wait(_: str) -> str:
        number = len([*gate.iterdir()])
        (gate / f"task-{number}").touch()
        while number and not (gate / "open").exists():
            time.sleep(0.05)
        return ""

    return wait("value")


def test_a_query_with_a_backlog_stops_after_its_micro_batch(backlog: DataFrame, gate: Path, tmp_path: Path) -> None:
    """The running batch is committed, and no other one begins. The backlog would last for minutes."""
    query = started(backlog.select(pass_gate(gate)).writeStream.format("noop"), tmp_path)
    wait_for("the second batch", (gate / "task-1").exists)
    assert not plans_batch(query)
    stopping = threading.Thread(target=stop_between_batches, args=([query], _LONG))
    stopping.start()
    wait_for("the decision to begin no batch", lambda: not query.isActive)
    assert query.status["isTriggerActive"]
    (gate / "open").touch()
    stopping.join()
    assert {"0", "1"} == batches(tmp_path, "offsets") == batches(tmp_path, "commits")
    assert query.exception() is None


def batches(folder: Path, log: str) -> set[str]:
    """The batches of a log of the checkpoint."""
    return {path.name for path in (folder / "checkpoint" / log).iterdir() if path.name.isdigit()}


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
