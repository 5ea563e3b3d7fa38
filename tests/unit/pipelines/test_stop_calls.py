"""The calls of Spark's JVM that stop a query. tests/spark/test_stop.py has a running query."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from pipelines.driver import stop as module
from pipelines.driver.stop import begin_no_batch, plans_batch, stop, stop_between_batches


def query(active: list[int], own: list[int], *, is_active: bool) -> Any:
    tracker = SimpleNamespace(
        getActiveJobIds=lambda: active, getJobIdsForGroup=lambda group: own if group == "run" else []
    )
    found = MagicMock(runId="run", status={"isTriggerActive": is_active})
    context = found._jsq.streamingQuery.return_value.sparkSession.return_value.sparkContext.return_value
    context.statusTracker.return_value = tracker
    return found


@pytest.mark.parametrize(
    ("active", "own", "is_active", "plans"),
    [
        ([], [], True, True),
        ([1], [2], True, True),
        ([3], [1, 2], True, True),
        ([1, 2], [2], True, False),
        ([], [], False, False),
    ],
    ids=["no job", "of another query", "has ended", "runs", "no trigger"],
)
def test_a_trigger_without_a_job_plans_a_batch(
    active: list[int], own: list[int], *, is_active: bool, plans: bool
) -> None:
    """A stop at this moment would interrupt the batch. The jobs of the other queries do not count."""
    assert plans is plans_batch(query(active, own, is_active=is_active))


def test_a_stop_also_cancels_the_jobs_of_the_query() -> None:
    """A task that continues could write after the tasks of the next run."""
    calls = query([], [], is_active=True)
    stop(calls)
    names = [name for name, *_ in calls.mock_calls]
    cancel = "_jsq.streamingQuery().sparkSession().sparkContext().cancelJobGroup"
    assert names.index("stop") < names.index(cancel)
    context = calls._jsq.streamingQuery.return_value.sparkSession.return_value.sparkContext.return_value
    context.cancelJobGroup.assert_called_once_with("run")


def test_a_query_that_does_not_stop_is_logged_and_loses_its_jobs() -> None:
    """Its error would otherwise end the stop of the other queries. Another error is raised."""
    calls, java_error = query([], [], is_active=True), MagicMock()
    java_error.getClass().getName.return_value = "java.util.concurrent.TimeoutException"
    calls.stop.side_effect = Py4JJavaError("An error occurred", java_error)
    with capture_logs() as logs:
        stop(calls)
    assert [("a query does not stop; the next start repeats its micro-batch", "warning")] == [
        (each["event"], each["log_level"]) for each in logs
    ]
    context = calls._jsq.streamingQuery.return_value.sparkSession.return_value.sparkContext.return_value
    context.cancelJobGroup.assert_called_once_with("run")
    java_error.getClass().getName.return_value = "java.lang.IllegalStateException"
    with pytest.raises(Py4JJavaError):
        stop(calls)


def test_the_last_batch_is_the_running_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query gets the state of a query that has read everything. It is not stopped, which would interrupt it."""
    jvm, calls = MagicMock(), query([], [], is_active=True)
    runtime = SimpleNamespace(**{"TERMINATED$": SimpleNamespace(**{"MODULE$": "terminated"})})
    jvm.org.apache.spark.sql.execution.streaming.runtime = runtime
    monkeypatch.setattr(module.SparkContext, "_jvm", jvm)
    begin_no_batch(calls)
    calls._jsq.streamingQuery.return_value.state.return_value.set.assert_called_once_with("terminated")
    calls.stop.assert_not_called()


def test_the_error_of_one_query_does_not_keep_the_others_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would interrupt their batches when it ends."""
    stopped: list[Any] = []
    monkeypatch.setattr(module, "plans_batch", lambda _: False)
    monkeypatch.setattr(module, "begin_no_batch", lambda _: None)
    monkeypatch.setattr(module, "stop", stopped.append)
    failed = MagicMock(exception=MagicMock(side_effect=RuntimeError("the JVM has ended")))
    others = [MagicMock(exception=lambda: None, status={"isTriggerActive": False}) for _ in range(30)]

    with pytest.raises(RuntimeError, match="the JVM has ended"):
        stop_between_batches([failed, *others], timedelta(minutes=1))

    assert 30 == len(stopped)
