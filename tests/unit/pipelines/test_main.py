"""How the pipeline starts, watches and stops its queries."""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from typer.testing import CliRunner

import pipelines.__main__ as pipeline
from infra.local.stack import private_settings
from pipelines.__main__ import _run
from pipelines.checkpoints.lock import CheckpointInUseError, hold
from pipelines.driver import stop as stop_module
from pipelines.driver import watch
from pipelines.driver.stop import stop_between_batches
from pipelines.driver.watch import QueryWatch
from pipelines.queries.query_table import QUERIES
from pipelines.runtime.query import Query
from pipelines.sinks.foreach_batch import BatchFailedError
from services.errors import UserError
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings, read_settings


def without_wait() -> threading.Event:
    """A stop signal that does not come. Nobody waits for it."""
    stopping = threading.Event()
    stopping.wait = lambda _: False  # type: ignore[method-assign, assignment]
    return stopping


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
    monkeypatch.setattr(stop_module, "time", found)
    monkeypatch.setattr(stop_module, "plans_batch", Running.plans_batch)
    monkeypatch.setattr(stop_module, "begin_no_batch", Running.begin_no_batch)
    monkeypatch.setattr(stop_module, "stop", lambda query: query.stop())
    return found


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


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOYALTY_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("LOYALTY_ARCHIVE_DIR", str(tmp_path / "archive"))
    return read_settings()


class Process:
    """The pipeline process with queries of the test, and without Spark and Kafka.

    Attributes:
        queries: by name, the queries that can start, or the errors of their starts.
        refusals: by name, the errors of the checks before the first start.
        started: the names of those that have started.
        ids: the schema ids of each start.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: Settings, queries: dict[str, Any]) -> None:
        self.queries = queries
        self._settings = settings
        self.refusals: dict[str, UserError] = {}
        self.started: list[str] = []
        self.ids: list[object] = []
        self._handlers: dict[int, Any] = {}
        self._monkeypatch = monkeypatch
        spark = SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None), stop=lambda: None)

        def session(_: Settings) -> Any:
            # PySpark does so, too. Its own handler aborts all micro-batches.
            self._handlers[signals.SIGINT] = lambda: pytest.fail("PySpark handles Ctrl-C")
            return spark

        made = {name: replace(QUERIES[name], reads_programme=False) for name in queries}
        monkeypatch.setattr(Query, "check_start", lambda query, *_: self._check(query.name))
        monkeypatch.setattr(Query, "start", lambda query, _, ids, *__, **___: self._start(query.name, ids))
        signals = SimpleNamespace(SIGTERM=1, SIGINT=2, signal=self._handlers.__setitem__)
        for module in (pipeline, watch):
            monkeypatch.setattr(module, "QUERIES", made)
        monkeypatch.setattr(pipeline, "spark_session", session)
        monkeypatch.setattr(pipeline, "require_broker", lambda _: None)
        monkeypatch.setattr(pipeline, "serve_health", lambda *_: nullcontext())
        monkeypatch.setattr(pipeline, "signal", signals)

    def _check(self, name: str) -> None:
        if name in self.refusals:
            raise self.refusals[name]

    def _start(self, name: str, ids: object) -> Any:
        self.started.append(name)
        self.ids.append(ids)
        if isinstance(self.queries[name], Exception):
            raise self.queries[name]
        return self.queries[name]

    def stop(self) -> None:
        """Send SIGTERM and SIGINT."""
        assert {1, 2} == self._handlers.keys()
        for handler in self._handlers.values():
            handler()

    def watch(self, watch: Callable[[QueryWatch], object]) -> None:
        """Replace the watching."""
        self._monkeypatch.setattr(QueryWatch, "watch", watch)

    def run(self, stopping: threading.Event | None = None, *, available_now: bool = False, **changes: object) -> int:
        settings, stopping = self._settings.model_copy(update=changes), stopping or threading.Event()
        with ExitStack() as locks:
            return _run(settings, [*self.queries], locks, stopping, available_now=available_now, backfill=False)


ProcessOf = Callable[[dict[str, Any]], Process]


@pytest.fixture
def process_of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> ProcessOf:
    """Makes a process with these queries."""
    return partial(Process, monkeypatch, settings)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The queries of each run of the command, which starts none of them."""
    found: list[list[str]] = []
    monkeypatch.setattr(pipeline, "run", lambda _, names, **__: found.append(names) or 0)
    monkeypatch.setattr(pipeline, "_quieten_py4j", lambda: None)
    monkeypatch.setattr(pipeline, "configure_logging", lambda _: None)
    return found


@pytest.mark.parametrize(("error", "status"), [(None, 0), ("java.lang.OutOfMemoryError", 1)])
def test_the_status_says_whether_a_query_has_failed(
    process_of: ProcessOf, clock: Clock, error: str | None, status: int
) -> None:
    """A supervisor starts the pipeline again after a failure only. The other queries stop between two batches."""
    ended = Running(clock, 0.0, error=error, is_active=False)
    other = Running(clock, 3.0 if error else 0.0, is_active=error is not None)
    process = process_of({"sales": ended, "fan-out": other})
    assert status == process.run(without_wait(), available_now=True)
    assert "between batches" == other.stopped


def test_no_query_starts_before_all_have_been_checked(process_of: ProcessOf, clock: Clock) -> None:
    """After the loss of all checkpoints, each attempt of the supervisor would let the fan-out write older records."""
    process = process_of({"fan-out": Running(clock, 0.0), "loyalty": Running(clock, 0.0)})
    process.refusals["loyalty"] = UserError("the checkpoint is new")
    process.watch(lambda _: None)
    with pytest.raises(UserError, match="the checkpoint is new"):
        process.run()
    assert [] == process.started


def test_the_check_of_an_optional_query_stops_no_other_query(process_of: ProcessOf, clock: Clock) -> None:
    """Its start reports the error."""
    process = process_of({"sales": Running(clock, 0.0, is_active=False), "archive": Running(clock, 0.0)})
    process.refusals["archive"] = UserError("another key")
    process.watch(lambda _: None)
    process.run()
    assert ["sales", "archive"] == process.started


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_an_archive_that_refuses_to_start_stops_no_other_query(
    process_of: ProcessOf, clock: Clock, *, available_now: bool, status: int
) -> None:
    """For example, Kafka has deleted records. The error says how only the archive skips them."""
    process = process_of({"archive": UserError("it would skip records"), "sales": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    with capture_logs() as logs:
        assert status == process.run(available_now=available_now)
    assert ["archive", "sales"] == process.started
    assert "it would skip records. The other queries run without the archive" in logs[0]["reason"]


def test_a_run_to_the_end_names_the_archive_that_refused_to_start(process_of: ProcessOf, clock: Clock) -> None:
    """A repetition of the command would not help."""
    queries = {"archive": UserError("it would skip records"), "sales": Running(clock, 0.0, is_active=False)}
    process = process_of(queries)
    with capture_logs() as logs:
        assert 1 == process.run(without_wait(), available_now=True)
    assert "some queries have not read the last record" in logs[-1]["event"]
    assert ["archive"] == logs[-1]["queries"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("sales", UserError("another setting")),
        ("sales", PublishError("Kafka does not answer")),
        ("sales", SchemaRegistryUnavailableError("no registry")),
    ],
)
def test_the_process_does_not_run_without_another_query(
    process_of: ProcessOf, clock: Clock, name: str, error: UserError
) -> None:
    """After an outage of Kafka, the supervisor starts all queries again."""
    process = process_of({"fan-out": Running(clock, 0.0), name: error})
    process.watch(lambda _: None)
    with pytest.raises(type(error)):
        process.run()


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_a_stop_before_the_last_record_is_a_failure_of_a_run_to_the_end(
    process_of: ProcessOf, clock: Clock, *, available_now: bool, status: int
) -> None:
    """`loyalty archive && next-step` must not continue after half of the records. A service has no last record."""
    running = Running(clock, 3.0)
    process = process_of({"archive": running})
    stopping = threading.Event()
    process.watch(lambda _: process.stop())
    assert status == process.run(stopping, available_now=available_now)
    assert (True, "between batches") == (stopping.is_set(), running.stopped)


def test_a_run_to_the_end_that_ends_before_the_signal_succeeds(process_of: ProcessOf, clock: Clock) -> None:
    process = process_of({"archive": Running(clock, 0.0, is_active=False)})
    process.watch(lambda _: process.stop())
    assert 0 == process.run(available_now=True)


@pytest.mark.parametrize("slow_step", ["require_broker", "spark_session"])
@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_a_signal_during_the_start_is_not_lost(
    process_of: ProcessOf, monkeypatch: pytest.MonkeyPatch, slow_step: str, *, available_now: bool, status: int
) -> None:
    """The first process of a container gets no signal that it does not handle. No query starts any more."""
    process = process_of({"sales": None})
    step = getattr(pipeline, slow_step)
    monkeypatch.setattr(pipeline, slow_step, lambda settings: (process.stop(), step(settings))[1])
    assert status == process.run(available_now=available_now)
    assert [] == process.started


def test_no_query_starts_after_a_stop_signal(
    process_of: ProcessOf, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start takes seconds. A supervisor could kill the process before the last query has started and stopped."""
    process = process_of({"sales": Running(clock, 3.0), "fan-out": Running(clock, 3.0)})
    start = process._start
    monkeypatch.setattr(process, "_start", lambda *given: (process.stop(), start(*given))[1])
    assert 0 == process.run()
    assert ["sales"] == process.started
    assert "between batches" == process.queries["sales"].stopped


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


def test_a_query_that_is_named_twice_runs_once(run: list[list[str]]) -> None:
    """Its second lock would say that another process uses the checkpoint."""
    with pytest.raises(SystemExit):
        pipeline.main(["sales", "fan-out", "sales"], available_now=True)
    assert [["fan-out", "sales"]] == run


@pytest.mark.parametrize(("setting", "names"), [("export_dir", [*QUERIES]), ("archive_dir", ["archive"])])
def test_a_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, names: list[str]
) -> None:
    """The reason names the folder and the variable. No folder and no file appears, also in the other folders."""
    (tmp_path / "file").touch()
    settings = private_settings(tmp_path, **{setting: str(tmp_path / "file" / "below")})
    monkeypatch.setattr(pipeline, "_run", lambda *_, **__: pytest.fail("a query starts"))
    with capture_logs() as logs:
        assert 2 == pipeline.run(settings, names, available_now=False)
    (line,) = logs
    assert f"cannot write to {tmp_path / 'file' / 'below'}" in line["reason"]
    assert f"set LOYALTY_{setting.upper()} to another folder" in line["reason"]
    assert [tmp_path / "file"] == list(tmp_path.iterdir())


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
    process_of: ProcessOf, settings: Settings, clock: Clock, *, available_now: bool, status: int
) -> None:
    """An old scheduled run can hold the lock. A run to the end then lacks the records of the archive."""
    process = process_of({"sales": Running(clock, 0.0), "archive": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    with hold(QUERIES["archive"].checkpoint(settings)), capture_logs() as logs:
        assert status == process.run(available_now=available_now)
    assert ["sales"] == process.started
    assert "stop it first. The other queries run without the archive" in logs[0]["reason"]


def test_the_archive_locks_its_checkpoint_at_its_first_start_until_the_end(
    process_of: ProcessOf, settings: Settings, clock: Clock
) -> None:
    """It runs after the end of the scheduled run that held the lock. Between two runs nobody else can write."""
    checkpoint = QUERIES["archive"].checkpoint(settings)
    archive = Running(clock, 0.0)
    process = process_of({"sales": Running(clock, 0.0), "archive": archive})
    elsewhere = ExitStack()
    elsewhere.enter_context(hold(checkpoint))

    def is_locked() -> None:
        with pytest.raises(CheckpointInUseError), hold(checkpoint):
            pass

    def watch(queries: QueryWatch) -> None:
        elsewhere.close()
        for _ in range(2):
            queries.start(["archive"])
            is_locked()
        process.stop()

    archive.stop = is_locked  # type: ignore[method-assign]
    process.watch(watch)
    assert 0 == process.run()
    assert ["sales", "archive", "archive"] == process.started
    with hold(checkpoint):
        pass


def test_a_query_that_starts_again_does_not_ask_for_the_schema_ids(process_of: ProcessOf, clock: Clock) -> None:
    """It must not depend on the Schema Registry."""
    process = process_of({"sales": Running(clock, 0.0), "archive": Running(clock, 0.0, is_active=False)})
    process.watch(lambda queries: (queries.start(["sales", "archive"]), process.stop()))
    process.run()
    assert 4 == len(process.ids)
    assert 1 == len({id(each) for each in process.ids})


@pytest.mark.parametrize(
    ("interval", "arguments", "expected"),
    [
        ("PT1H", ["--available-now"], ["fan-out", "loyalty", "sales", "export", "archive"]),
        ("PT1H", ["--query", "archive", "--query", "loyalty"], ["loyalty", "archive"]),
        ("PT0S", ["--available-now"], ["fan-out", "loyalty", "sales", "export"]),
        ("PT0S", ["--query", "sales", "--query", "archive"], ["sales"]),
        ("PT0S", ["--query", "archive", "--available-now"], ["archive"]),
        ("PT0S", ["--query", "archive"], None),
    ],
)
def test_an_interval_of_zero_switches_the_archive_off(
    run: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    interval: str,
    arguments: list[str],
    expected: list[str] | None,
) -> None:
    """`loyalty archive`, which somebody runs by hand, still archives."""
    monkeypatch.setenv("LOYALTY_ARCHIVE_INTERVAL", interval)
    app = typer.Typer()
    app.command()(pipeline.main)
    result = CliRunner().invoke(app, arguments)
    assert (0 if expected else 2) == result.exit_code
    assert [expected] * (expected is not None) == run


def test_the_metrics_say_whether_the_archive_is_switched_off(process_of: ProcessOf, clock: Clock) -> None:
    """Otherwise ArchiveFallsBehind would fire for a week."""
    process = process_of({"sales": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    for interval in (timedelta(hours=1), timedelta(0)):
        process.run(archive_interval=interval)
        assert interval.total_seconds() == REGISTRY.get_sample_value("loyalty_archive_interval_seconds")


def test_the_metrics_say_whether_lost_records_are_skipped(process_of: ProcessOf, clock: Clock) -> None:
    """The alert DataLossAccepted reminds the operator to remove the setting."""
    process = process_of({"sales": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    for accepts in (True, False):
        process.run(accept_data_loss=accepts)
        assert accepts == REGISTRY.get_sample_value("loyalty_pipeline_accepts_data_loss")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("value", "warnings"), [("true", 1), ("false", 0)])
def test_a_start_that_skips_lost_records_says_so(monkeypatch: pytest.MonkeyPatch, value: str, warnings: int) -> None:
    """The setting can stay in a file of settings, and then hides later losses."""
    monkeypatch.setenv("LOYALTY_ACCEPT_DATA_LOSS", value)
    with capture_logs() as logs, pytest.raises(SystemExit):
        pipeline.main()
    assert warnings == sum("LOYALTY_ACCEPT_DATA_LOSS is true" in each["event"] for each in logs)


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
