"""How a query stops after its micro-batch."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.runtime.query import without_plan

log = structlog.get_logger()


def stop_between_batches(queries: Sequence[StreamingQuery], timeout: timedelta) -> None:
    """Stop each query after its running micro-batch, also if another one would begin at once.

    Spark would interrupt a batch that it still plans, so wait until the batch runs. A batch that does not end in time
    is interrupted, and a restart replays it. While a broker hangs, Spark needs up to 20 seconds for the interruption.
    So the queries stop at the same time.
    """
    deadline = time.monotonic() + timeout.total_seconds()

    def wait_while(is_true: Callable[[], bool]) -> None:
        while is_true() and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop_after_batch(query: StreamingQuery) -> None:
        has_failed = bool(query.exception())
        wait_while(lambda: plans_batch(query))
        begin_no_batch(query)
        wait_while(lambda: query.status["isTriggerActive"])
        stop(query)
        if not has_failed and (error := query.exception()):
            log.warning(
                "a query failed while it stopped; the next start repeats its batch", reason=without_plan(str(error))
            )

    if queries:
        with ThreadPoolExecutor(len(queries)) as threads:
            stops = [threads.submit(stop_after_batch, query) for query in queries]
        for each in stops:
            each.result()  # raises the error of the thread, after all queries have stopped


def begin_no_batch(query: StreamingQuery) -> None:
    """Let the query end after the micro-batch that runs now.

    The only public call, ``stop``, also interrupts this batch. With a backlog the next batch begins at once, so nobody
    can call ``stop`` between two batches. This call sets the state that Spark itself sets after the last record of a
    trigger AvailableNow (``MicroBatchExecution.executeOneBatch``). If Spark plans a batch at this moment, it writes the
    offsets of the batch and then interrupts it. So call this while ``plans_batch`` is false.
    """
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    terminated = getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "TERMINATED$")
    _execution(query).state().set(getattr(terminated, "MODULE$"))


def plans_batch(query: StreamingQuery) -> bool:
    """Whether a trigger of the query is active and runs no job: Spark plans a batch, or commits one."""
    tracker = _execution(query).sparkSession().sparkContext().statusTracker()
    jobs = {*tracker.getActiveJobIds()}.intersection(tracker.getJobIdsForGroup(str(query.runId)))
    return bool(query.status["isTriggerActive"]) and not jobs


def stop(query: StreamingQuery) -> None:
    """Stop the query and its jobs.

    If Spark plans a batch during ``begin_no_batch``, the query ends by itself when the first job of this batch may
    already run. Then ``query.stop`` does not cancel this job. So this function also cancels the jobs of the query.

    A query that does not stop in time (``spark.sql.streaming.stopTimeout``) stays active, and the log says so.
    """
    try:
        query.stop()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() != "java.util.concurrent.TimeoutException":
            raise
        log.warning("a query does not stop; the next start repeats its micro-batch", query=query.name)
    _execution(query).sparkSession().sparkContext().cancelJobGroup(str(query.runId))


def _execution(query: StreamingQuery) -> Any:
    return query._jsq.streamingQuery()  # noqa: SLF001  # Spark's MicroBatchExecution
