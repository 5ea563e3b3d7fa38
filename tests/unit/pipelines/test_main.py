"""How the pipeline starts, watches and stops its queries."""

import logging
import threading
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

import pipelines.__main__ as pipeline
from pipelines.__main__ import MAX_RESTARTS, WORKER_FAILURES, _run, _stop_between_batches, _watch
from pipelines.checkpoints.lock import CheckpointInUseError, hold
from pipelines.runtime.query_table import QUERIES
from pipelines.sinks.foreach_batch import BatchFailedError
from services.errors import UserError
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings, read_settings


def query(error: str | None = None) -> Any:
    """A query that fails with this error as soon as it has started, or has ended."""
    return SimpleNamespace(exception=lambda: error, isActive=False)


def starts(queries: dict[str, Any], *successors: Any) -> list[str]:
    """The queries that start again. Each start takes the next successor."""
    started, left = [], list(successors)

    def start(name: str) -> None:
        started.append(name)
        queries[name] = left.pop(0)

    _watch(queries, start, None, without_wait())
    return started


def without_wait() -> threading.Event:
    """A stop signal that does not come. Nobody waits for it."""
    stopping = threading.Event()
    stopping.wait = lambda _: False  # type: ignore[method-assign, assignment]
    return stopping


@pytest.mark.parametrize("reason", WORKER_FAILURES)
def test_a_query_starts_again_after_the_loss_of_a_worker(reason: str) -> None:
    """The other queries continue. The process does not end, because a start of Spark takes much longer."""
    failed = query(f"Job aborted due to stage failure: Lost task 2.0: {reason} (crashed).")
    assert ["loyalty", "loyalty"] == starts({"loyalty": failed, "fan-out": query()}, failed, query())


def test_a_worker_that_always_ends_ends_the_process() -> None:
    """The supervisor sees it then."""
    failed = query(WORKER_FAILURES[0])
    assert MAX_RESTARTS == len(starts({"loyalty": failed}, *[failed] * MAX_RESTARTS))


def test_no_failed_query_starts_again_after_a_stop_signal() -> None:
    """A start takes half a minute on a busy machine, which is where workers are lost. The log has the failure."""
    stopping, started = without_wait(), []
    queries = {name: query(WORKER_FAILURES[0]) for name in ("sales", "export")}

    def start(name: str) -> None:
        started.append(name)
        stopping.set()

    with capture_logs() as logs:
        _watch(queries, start, None, stopping)
    assert ["sales"] == started
    assert ("query failed", "export") == (logs[-1]["event"], logs[-1]["query"])


def test_active_queries_and_the_programme_are_asked_every_two_seconds() -> None:
    """An exception takes three calls of the JVM. Twice a second, they were a tenth of the cost of an idle driver.
    The programme takes two requests to Kafka. They were one in ten requests of an idle stack.
    """
    stopping = without_wait()
    waited: list[float] = []
    asked: list[float] = []
    checked: list[float] = []
    running = SimpleNamespace(exception=lambda: asked.append(sum(waited)), isActive=True)
    stopping.wait = lambda seconds: (waited.append(seconds), sum(waited) > 6)[1]  # type: ignore[method-assign, assignment]
    programme: Any = SimpleNamespace(has_changed=lambda: checked.append(sum(waited)))
    _watch({"loyalty": running}, pytest.fail, programme, stopping)
    assert [0.5, 2.5, 4.5] == asked == checked


def test_a_failed_query_ends_the_process_during_its_clean_up() -> None:
    """Spark first sets the exception. The clean-up of the sources can fail or hang, and then the query stays active."""
    failed = SimpleNamespace(exception=lambda: "java.lang.OutOfMemoryError", isActive=True)
    stopping, turns = without_wait(), iter(range(5))
    stopping.wait = lambda _: next(turns) == 4  # type: ignore[method-assign, assignment]
    with capture_logs() as logs:
        _watch({"sales": failed}, pytest.fail, None, stopping)
    assert ["query failed"] == [line["event"] for line in logs]


def test_a_query_starts_again_only_after_its_clean_up() -> None:
    """Until then Spark refuses a query of the same name, and the process would end."""
    failed = SimpleNamespace(exception=lambda: WORKER_FAILURES[0], isActive=True)
    queries, started = {"loyalty": failed}, []
    stopping, waits = without_wait(), iter(range(9))

    def wait(_: float) -> bool:
        failed.isActive = next(waits) < 2
        return False

    def start(name: str) -> None:
        started.append((name, failed.isActive))
        queries[name] = query()

    stopping.wait = wait  # type: ignore[method-assign, assignment]
    _watch(queries, start, None, stopping)
    assert [("loyalty", False)] == started


def test_a_failure_of_the_archive_stops_no_other_query() -> None:
    """Points matter more. The alert ArchiveFallsBehind needs a metric of the archive, also if it has never run."""
    queries = {"loyalty": query(), "archive": query("java.lang.OutOfMemoryError\n=== Streaming Query ===")}
    with capture_logs() as logs:
        assert [] == starts(queries)
    (line,) = logs
    assert ("a query cannot run", "archive") == (line["event"], line["query"])
    assert line["reason"].startswith("java.lang.OutOfMemoryError. The other queries run without the archive")
    assert ["loyalty"] == [*queries]
    assert REGISTRY.get_sample_value("loyalty_query_batches_total", {"query": "archive"}) is not None


def test_a_failure_of_the_archive_alone_ends_the_process() -> None:
    with capture_logs() as logs:
        assert [] == starts({"archive": query("java.lang.OutOfMemoryError")})
    assert ["query failed"] == [line["event"] for line in logs]


def test_any_other_failure_ends_the_process() -> None:
    assert [] == starts({"loyalty": query("java.lang.OutOfMemoryError"), "fan-out": query()})


def test_the_log_line_of_a_failure_has_the_error_and_its_causes() -> None:
    """Spark's message also has stack traces and the plan of the query, which hide the error."""
    error = (
        "Job aborted: Lost task 0.0: org.apache.kafka.common.errors.TimeoutException: no answer.\n\tat Sink.send\n\n"
        "Caused by: java.net.ConnectException\n\t... 3 more\n=== Streaming Query ===\nIdentifier: fan-out\n+- Project"
    )
    with capture_logs() as logs:
        starts({"fan-out": query(error)})
    expected = (
        "Job aborted: Lost task 0.0: org.apache.kafka.common.errors.TimeoutException: no answer. | "
        "Caused by: java.net.ConnectException"
    )
    assert [("query failed", expected)] == [(line["event"], line["reason"]) for line in logs]


class Running:
    """A query with a backlog: each micro-batch begins when the last one ends. It notes how it was stopped.

    Args:
        planned: when Spark has planned the first batch. Before this, ``begin_no_batch`` would interrupt the batch.
    """

    def __init__(
        self,
        clock: "Clock",
        batch_ends: float,
        *,
        planned: float = 0.0,
        error: str | None = None,
        is_active: bool = True,
    ) -> None:
        self._clock = clock
        self._batch_ends = batch_ends
        self._planned = planned
        self._error = error
        self._is_last = False
        self.isActive = is_active
        self.stopped = self.interrupted = ""

    @property
    def status(self) -> dict[str, bool]:
        in_batch = self._clock.now < self._batch_ends or not self._is_last
        return {"isTriggerActive": in_batch and (self.isActive or self._is_last)}

    def exception(self) -> str | None:
        return self._error

    def plans_batch(self) -> bool:
        return self.isActive and self._clock.now < self._planned

    def begin_no_batch(self) -> None:
        if self.plans_batch():
            self.interrupted = "while Spark plans"
        self._is_last = True
        self.isActive = False

    def stop(self) -> None:
        self.stopped = self.interrupted or ("in a batch" if self.status["isTriggerActive"] else "between batches")


class Clock:
    """The time of the process, which only its waits change."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(pipeline, "time", found)
    monkeypatch.setattr(pipeline, "plans_batch", Running.plans_batch)
    monkeypatch.setattr(pipeline, "begin_no_batch", Running.begin_no_batch)
    monkeypatch.setattr(pipeline, "stop", lambda query: query.stop())
    return found


def test_a_query_stops_after_its_micro_batch(clock: Clock) -> None:
    """An interrupted batch runs again after the restart, and all its records with it."""
    queries: list[Any] = [Running(clock, batch_ends=end) for end in (0.0, 3.0, 1.0)]
    _stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches"] * 3 == [each.stopped for each in queries]
    assert 3.0 <= clock.now < 3.1


def test_a_micro_batch_that_spark_plans_runs_before_the_stop(clock: Clock) -> None:
    """Its offsets are in the checkpoint already. After the stop timeout it is interrupted, as any other batch."""
    queries: list[Any] = [Running(clock, 4.0, planned=2.0), Running(clock, 100.0, planned=50.0)]
    _stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches", "while Spark plans"] == [each.stopped for each in queries]
    assert 10.0 <= clock.now < 10.1


def test_a_micro_batch_that_does_not_end_in_time_is_interrupted(clock: Clock) -> None:
    """All queries together have one deadline. The stop does not wait for a query that has ended."""
    queries: list[Any] = [Running(clock, 0.0, is_active=False), Running(clock, 5.0), Running(clock, 100.0)]
    _stop_between_batches(queries, timedelta(seconds=10))
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
    _stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches"] * 2 == [each.stopped for each in queries]


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
        _stop_between_batches(queries, timedelta(seconds=10))
    assert ["the disk is full"] == [line["reason"] for line in logs]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOYALTY_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("LOYALTY_ARCHIVE_DIR", str(tmp_path / "archive"))
    return read_settings()


class Process:
    """The pipeline process with queries of the test, and without Spark and Kafka.

    Attributes:
        queries: by name, the queries that can start, or the errors of their starts.
        started: the names of those that have started.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, queries: dict[str, Any]) -> None:
        self.queries = queries
        self.started: list[str] = []
        self._handlers: dict[int, Any] = {}
        spark = SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None), stop=lambda: None)

        def session(_: Settings) -> Any:
            # PySpark does so, too. Its own handler aborts all micro-batches.
            self._handlers[signals.SIGINT] = lambda: pytest.fail("PySpark handles Ctrl-C")
            return spark

        made = {
            name: SimpleNamespace(reads_programme=False, start=lambda *_, name=name, **__: self._start(name))
            for name in queries
        }
        signals = SimpleNamespace(SIGTERM=1, SIGINT=2, signal=self._handlers.__setitem__)
        monkeypatch.setattr(pipeline, "QUERIES", made)
        monkeypatch.setattr(pipeline, "spark_session", session)
        monkeypatch.setattr(pipeline, "require_broker", lambda _: None)
        monkeypatch.setattr(pipeline, "serve_health", lambda *_: nullcontext())
        monkeypatch.setattr(pipeline, "signal", signals)

    def _start(self, name: str) -> Any:
        self.started.append(name)
        if isinstance(self.queries[name], Exception):
            raise self.queries[name]
        return self.queries[name]

    def stop(self) -> None:
        """Send SIGTERM and SIGINT."""
        assert {1, 2} == self._handlers.keys()
        for handler in self._handlers.values():
            handler()

    def run(self, settings: Settings, stopping: threading.Event, *, available_now: bool) -> int:
        with ExitStack() as stack:
            return _run(settings, [*self.queries], stack, stopping, available_now=available_now, backfill=False)


@pytest.mark.parametrize(("error", "status"), [(None, 0), ("java.lang.OutOfMemoryError", 1)])
def test_the_status_says_whether_a_query_has_failed(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: str | None, status: int
) -> None:
    """A supervisor starts the pipeline again after a failure only. The other queries stop between two batches."""
    ended = Running(clock, 0.0, error=error, is_active=False)
    other = Running(clock, 3.0 if error else 0.0, is_active=error is not None)
    process = Process(monkeypatch, {"sales": ended, "fan-out": other})
    assert status == process.run(settings, without_wait(), available_now=True)
    assert "between batches" == other.stopped


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_an_archive_that_refuses_to_start_stops_no_other_query(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, available_now: bool, status: int
) -> None:
    """For example, Kafka has deleted records. The error says how only the archive skips them."""
    process = Process(monkeypatch, {"archive": UserError("it would skip records"), "sales": Running(clock, 0.0)})
    monkeypatch.setattr(pipeline, "_watch", lambda *_: process.stop())
    with capture_logs() as logs:
        assert status == process.run(settings, threading.Event(), available_now=available_now)
    assert ["archive", "sales"] == process.started
    assert "it would skip records. The other queries run without the archive" in logs[0]["reason"]
    assert "`LOYALTY_ACCEPT_DATA_LOSS=true loyalty archive`" in logs[0]["reason"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("sales", UserError("another setting")),
        ("archive", PublishError("Kafka does not answer")),
        ("archive", SchemaRegistryUnavailableError("no registry")),
    ],
)
def test_the_process_does_not_run_without_another_query_or_without_kafka(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str, error: UserError
) -> None:
    """After an outage of Kafka, the supervisor starts all queries again."""
    process = Process(monkeypatch, {"fan-out": Running(clock, 0.0), name: error})
    monkeypatch.setattr(pipeline, "_watch", lambda *_: None)
    with pytest.raises(type(error)):
        process.run(settings, threading.Event(), available_now=False)


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_a_stop_before_the_last_record_is_a_failure_of_a_run_to_the_end(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, available_now: bool, status: int
) -> None:
    """`loyalty archive && next-step` must not continue after half of the records. A service has no last record."""
    running = Running(clock, 3.0)
    process = Process(monkeypatch, {"archive": running})
    stopping = threading.Event()
    monkeypatch.setattr(pipeline, "_watch", lambda *_: process.stop())
    assert status == process.run(settings, stopping, available_now=available_now)
    assert (True, "between batches") == (stopping.is_set(), running.stopped)


def test_a_run_to_the_end_that_ends_before_the_signal_succeeds(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(monkeypatch, {"archive": Running(clock, 0.0, is_active=False)})
    monkeypatch.setattr(pipeline, "_watch", lambda *_: process.stop())
    assert 0 == process.run(settings, threading.Event(), available_now=True)


@pytest.mark.parametrize("slow_step", ["require_broker", "spark_session"])
@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_a_signal_during_the_start_is_not_lost(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, slow_step: str, *, available_now: bool, status: int
) -> None:
    """The first process of a container gets no signal that it does not handle. No query starts any more."""
    process = Process(monkeypatch, {"sales": None})
    step = getattr(pipeline, slow_step)
    monkeypatch.setattr(pipeline, slow_step, lambda settings: (process.stop(), step(settings))[1])
    assert status == process.run(settings, threading.Event(), available_now=available_now)
    assert [] == process.started


def test_no_query_starts_after_a_stop_signal(settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start takes seconds. A supervisor could kill the process before the last query has started and stopped."""
    process = Process(monkeypatch, {"sales": Running(clock, 3.0), "fan-out": Running(clock, 3.0)})
    start = process._start
    monkeypatch.setattr(process, "_start", lambda name: (process.stop(), start(name))[1])
    assert 0 == process.run(settings, threading.Event(), available_now=False)
    assert ["sales"] == process.started
    assert "between batches" == process.queries["sales"].stopped


def test_a_new_version_of_the_programme_starts_no_query_after_a_stop_signal(clock: Clock) -> None:
    """The stop of the running queries may have taken long enough for the signal to come."""
    stopping = without_wait()
    running = Running(clock, 0.0)
    running.stop = lambda: (stopping.set(), setattr(stopping, "wait", lambda _: True))  # type: ignore[method-assign]
    programme: Any = SimpleNamespace(has_changed=lambda: True)
    started: list[str] = []
    _watch({"loyalty": running}, started.append, programme, stopping)
    assert (True, []) == (stopping.is_set(), started)


def test_a_batch_that_a_stop_interrupts_is_no_error_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query reports an error of a batch. Any other error of py4j stays in the log."""
    loggers = [logging.getLogger(name) for name in ("", "py4j", "py4j.clientserver")]
    for logger in loggers:
        monkeypatch.setattr(logger, "filters", [])
        monkeypatch.setattr(logger, "level", logger.level)
    pipeline._quieten_py4j()
    found = {}
    for error in (BatchFailedError("java.lang.InterruptedException"), KeyError("rows")):
        record = loggers[-1].makeRecord("", logging.ERROR, "", 0, "", (), (type(error), error, None))
        found[type(error)] = bool(loggers[-1].filter(record))
    assert {BatchFailedError: False, KeyError: True} == found


def test_a_query_that_is_named_twice_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second lock would say that another process uses the checkpoint."""
    run: list[list[str]] = []
    monkeypatch.setattr(pipeline, "run", lambda _, names, **__: run.append(names) or 0)
    monkeypatch.setattr(pipeline, "_quieten_py4j", lambda: None)
    monkeypatch.setattr(pipeline, "configure_logging", lambda _: None)
    with pytest.raises(SystemExit):
        pipeline.main(["sales", "fan-out", "sales"], available_now=True)
    assert [["sales", "fan-out"]] == run


def test_a_second_process_starts_no_query(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that write one checkpoint damage it. The refusal names the checkpoint."""
    checkpoint = QUERIES["fan-out"].checkpoint(settings)
    monkeypatch.setattr(pipeline, "_run", lambda *_, **__: pytest.fail("a query starts"))
    with hold(checkpoint), capture_logs() as logs:
        assert 2 == pipeline.run(settings, ["sales", "fan-out"], available_now=True)
    (line,) = logs
    assert "refused to start" == line["event"]
    assert checkpoint in line["reason"]


def test_an_archive_beside_the_pipeline_says_that_the_pipeline_archives(settings: Settings) -> None:
    """An operator needs `loyalty archive` only while the pipeline is stopped."""
    with hold(QUERIES["archive"].checkpoint(settings)), capture_logs() as logs:
        assert 2 == pipeline.run(settings, ["archive"], available_now=True)
    (line,) = logs
    assert "a running pipeline archives by itself within LOYALTY_ARCHIVE_INTERVAL" in line["reason"]


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_an_archive_that_runs_elsewhere_stops_no_other_query(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *, available_now: bool, status: int
) -> None:
    """An old scheduled run can hold the lock. A run to the end then lacks the records of the archive."""
    run: list[list[str]] = []
    monkeypatch.setattr(pipeline, "require_port", lambda *_: None)
    monkeypatch.setattr(pipeline, "_run", lambda _, names, *__, **___: run.append(names) or 0)
    with hold(QUERIES["archive"].checkpoint(settings)), capture_logs() as logs:
        assert status == pipeline.run(settings, [*QUERIES], available_now=available_now)
    assert [[name for name in QUERIES if name != "archive"]] == run
    (line,) = logs
    assert "stop it first. The other queries run without the archive" in line["reason"]


@pytest.mark.parametrize(("interval", "last"), [("PT1H", ["archive"]), ("PT0S", [])])
def test_an_interval_of_zero_switches_the_archive_off(
    monkeypatch: pytest.MonkeyPatch, interval: str, last: list[str]
) -> None:
    run: list[list[str]] = []
    monkeypatch.setenv("LOYALTY_ARCHIVE_INTERVAL", interval)
    monkeypatch.setattr(pipeline, "run", lambda _, names, **__: run.append(names) or 0)
    monkeypatch.setattr(pipeline, "_quieten_py4j", lambda: None)
    monkeypatch.setattr(pipeline, "configure_logging", lambda _: None)
    for query in (None, ["archive"]):
        with pytest.raises(SystemExit):
            pipeline.main(query, available_now=True)
    assert [["fan-out", "loyalty", "sales", "export", *last], ["archive"]] == run


def test_the_process_holds_the_checkpoints_of_all_its_queries(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are free again when it ends."""
    checkpoints = [QUERIES[name].checkpoint(settings) for name in ("sales", "fan-out")]

    def refused(*_: object, **__: object) -> int:
        for checkpoint in checkpoints:
            with pytest.raises(CheckpointInUseError), hold(checkpoint):
                pass
        return 0

    monkeypatch.setattr(pipeline, "_run", refused)
    assert 0 == pipeline.run(settings, ["sales", "fan-out"], available_now=True)
    for checkpoint in checkpoints:
        with hold(checkpoint):
            pass
