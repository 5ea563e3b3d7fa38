"""A batch that failed: its error in Java, how Spark treats it, and what stays in memory."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.columns.decoding import judge, read_bodies
from pipelines.queries.export import _write
from pipelines.runtime.query import QueryContext
from pipelines.sinks.foreach_batch import BatchFailedError, shorten_java_errors, summarize_java_error
from pipelines.sinks.parquet import ParquetSink
from schemas.topics import HADOOP
from services.settings import Settings
from tests.spark.test_parity import as_records
from tests.support.builders import IDS

INTERRUPTED = f"""An error occurred while calling o79.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: {"Driver stacktrace: " * 20}
{chr(10).join(f"	at org.apache.spark.Some.method(Some.scala:{line})" for line in range(400))}
Caused by: java.lang.InterruptedException
	... 50 more
"""


def is_interruption(spark: SparkSession, text: str) -> bool:
    """Whether Spark takes the error for the interruption of a stopped query."""
    expression = spark._jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution.PROXY_ERROR()
    return bool(expression.findFirstIn(text).isDefined())


def test_spark_recognises_an_interruption(spark: SparkSession) -> None:
    """Spark recognises the short form of the error, and no other error. The full trace would overflow its stack."""
    with pytest.raises(Py4JJavaError, match="StackOverflowError"):
        is_interruption(spark, f"py4j.protocol.Py4JJavaError: {INTERRUPTED}")
    assert is_interruption(spark, summarize_java_error(INTERRUPTED))
    assert not is_interruption(spark, summarize_java_error(INTERRUPTED.replace("Interrupted", "AnyOther") * 9))


def test_an_error_of_java_keeps_its_causes(spark: SparkSession) -> None:
    """The error has its causes in one line. Other errors do not change."""

    def failing(batch: DataFrame, number: int) -> None:
        if not number:
            raise ValueError("not of Java")
        batch._jdf.sparkSession().sparkContext().addFile("/nowhere/there")

    with pytest.raises(BatchFailedError, match=r"FileNotFoundException: File .*/nowhere/there.* does not exist") as e:
        shorten_java_errors(failing)(spark.range(1), 1)
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match="not of Java"):
        shorten_java_errors(failing)(spark.range(1), 0)


def test_a_repeated_task_observes_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """The first attempt fills a block of the persisted micro-batch, and then fails. What it observed does not count."""
    spark.range(0, 100, 1, 2).write.json(str(tmp_path / "rows"))

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        task = TaskContext.get()
        if task is not None and (task.attemptNumber(), task.partitionId()) == (0, 0):
            raise RuntimeError("planted")

    def write(batch: DataFrame, _: int) -> None:
        batch.persist()
        try:
            assert batch.mapInArrow(fail_once, batch.schema).count() == 100
        finally:
            batch.unpersist()

    rows = spark.readStream.schema("id long").json(str(tmp_path / "rows")).repartition(2, "id")
    observed = rows.observe("seen", F.count("*").alias("rows")).writeStream.foreachBatch(write)
    query = observed.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert [100] == [progress.observedMetrics["seen"].rows for progress in query.recentProgress]


def test_a_failed_export_frees_its_micro_batch(spark: SparkSession) -> None:
    """The query can start again in the same process. It would keep one more copy of the rows after each failure."""

    def append(rows: DataFrame, *_: object) -> None:
        rows.count()
        raise OSError("no space left")

    lines = read_bodies(judge(as_records(spark, []), HADOOP, IDS), HADOOP, IDS, into="record")
    batch = lines.withColumn("LineID", F.lit(""))
    sink = create_autospec(ParquetSink, instance=True)
    sink.append.side_effect = append
    with pytest.raises(OSError, match="no space left"):
        _write(QueryContext("export", spark, IDS, Settings(), timedelta(0), {}), sink, batch, 0)
    assert StorageLevel.NONE == batch.storageLevel
