"""How the pipeline watches its queries, and starts them again."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from structlog.testing import capture_logs

from pipelines.driver import watch as module
from pipelines.driver.watch import MAX_RESTARTS, WORKER_FAILURES, QueryWatch
from services.errors import UserError
from services.messaging.publishing import PublishError
from services.programmes.file import ProgrammeError
from tests.unit.pipelines.stop_signals import without_wait


def query(error: str | None = None, *, is_active: bool = False) -> Any:
    """A query that fails with this error as soon as it has started, or has ended, or runs."""
    return SimpleNamespace(exception=lambda: error, isActive=is_active)


def watch_of(
    queries: dict[str, Any],
    start: Callable[[str], Any] = pytest.fail,
    stopping: threading.Event | None = None,
    programme: Any = None,
) -> QueryWatch:
    """A watch of these queries and of the programme, which have started."""
    watch = QueryWatch(queries, start, stopping or without_wait(), retries=False)
    watch.queries.update(queries)
    watch._programme = programme
    return watch


def starts(queries: dict[str, Any], *successors: Any) -> list[str]:
    """The queries that start again. Each start takes the next successor."""
    started, left = [], list(successors)

    def start(name: str) -> Any:
        started.append(name)
        return left.pop(0)

    watch_of(queries, start).watch()
    return started


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

    def start(name: str) -> Any:
        started.append(name)
        stopping.set()
        return query()

    with capture_logs() as logs:
        watch_of(queries, start, stopping).watch()
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
    watch_of({"loyalty": running}, stopping=stopping, programme=programme).watch()
    assert [0.5, 2.5, 4.5] == asked == checked


def test_a_failed_query_ends_the_process_during_its_clean_up() -> None:
    """Spark first sets the exception. The clean-up of the sources can fail or hang, and then the query stays active."""
    failed = query("java.lang.OutOfMemoryError", is_active=True)
    stopping, turns = without_wait(), iter(range(5))
    stopping.wait = lambda _: next(turns) == 4  # type: ignore[method-assign, assignment]
    with capture_logs() as logs:
        watch_of({"sales": failed}, stopping=stopping).watch()
    assert ["query failed"] == [line["event"] for line in logs]


def test_a_clean_up_that_hangs_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the loss of a worker. Otherwise the query would never run again, and the log would not say so."""
    monkeypatch.setattr(module, "_CLEAN_UP_SECONDS", 0)
    failed = query(WORKER_FAILURES[0], is_active=True)
    with capture_logs() as logs:
        watch_of({"loyalty": failed}).watch()
    assert ["a query has failed and starts again after its clean-up", "query failed"] == [
        each["event"] for each in logs
    ]
    assert logs[-1]["reason"].startswith("its clean-up has not ended after 0 s: ")


def test_each_clean_up_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query loses a worker, and a new version of the programme starts it again. Later it loses a worker again."""
    hours = iter(range(100))
    monkeypatch.setattr(module, "boot_seconds", lambda: 3_600.0 * next(hours))
    failed = query(WORKER_FAILURES[0], is_active=True)
    watch = watch_of({"loyalty": failed}, lambda _: failed)
    for _ in range(2):
        assert watch._survives("loyalty", WORKER_FAILURES[0], is_active=True) is True
        assert watch.start(["loyalty"])


def test_a_query_starts_again_only_after_its_clean_up() -> None:
    """Until then Spark refuses a query of the same name, and the process would end."""
    failed = query(WORKER_FAILURES[0], is_active=True)
    started = []
    stopping, waits = without_wait(), iter(range(9))

    def wait(_: float) -> bool:
        failed.isActive = next(waits) < 2
        return False

    def start(name: str) -> Any:
        started.append((name, failed.isActive))
        return query()

    stopping.wait = wait  # type: ignore[method-assign, assignment]
    watch_of({"loyalty": failed}, start, stopping).watch()
    assert [("loyalty", False)] == started


def test_a_failure_of_the_archive_stops_no_other_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points matter more. The alert ArchiveFallsBehind needs a metric of the archive, also if it has never run."""
    monkeypatch.setattr(module, "announce", announced := MagicMock())
    watch = watch_of({"loyalty": query(), "archive": query("java.lang.OutOfMemoryError\n=== Streaming Query ===")})
    with capture_logs() as logs:
        watch.watch()
    (line,) = logs
    assert ("a query cannot run", "archive") == (line["event"], line["query"])
    assert line["reason"].startswith("java.lang.OutOfMemoryError. The other queries run without the archive")
    assert ["loyalty"] == [*watch.queries]
    announced.assert_called_once_with("archive", {})


class Day:
    """A process with the loyalty query and an archive. A day passes in steps of a minute.

    Attributes:
        started: the minutes at which the archive has started.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *runs: Any) -> None:
        """Each start takes the next run, which can be an error, and then the last one for ever."""
        self.started: list[int] = []
        self._runs, self._minutes = list(runs), 0
        self.stopping = without_wait()
        self.stopping.wait = self._wait  # type: ignore[method-assign, assignment]
        monkeypatch.setattr(module, "boot_seconds", lambda: self._minutes * 60.0)
        self.watch = QueryWatch(["loyalty", "archive"], self._start, self.stopping, retries=True)

    def _wait(self, _: float) -> bool:
        self._minutes += 1
        return self._minutes > 24 * 60

    def _start(self, name: str) -> Any:
        if name == "loyalty":
            return query(is_active=True)
        self.started.append(self._minutes)
        run = self._runs.pop(0) if len(self._runs) > 1 else self._runs[0]
        if isinstance(run, Exception):
            raise run
        return run

    def run(self) -> list[Any]:
        """Returns the log."""
        with capture_logs() as logs:
            self.watch.start(["loyalty", "archive"])
            self.watch.watch()
        return logs


class JavaError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """An error of Java whose trace needs no JVM."""

    def __init__(self) -> None: ...

    def __str__(self) -> str:
        return "java.io.IOException: disk full"


@pytest.mark.parametrize(
    "run",
    [
        query("disk full"),
        UserError("another key"),
        PublishError("no broker"),
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
        OSError("read-only"),
        PySparkException("no plan"),
        JavaError(),
    ],
    ids=["it fails", "another key", "no broker", "no answer", "read-only", "Spark", "Java"],
)
def test_an_archive_that_cannot_run_starts_again_after_an_hour(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """It heals when its cause is gone. Nobody has to restart the driver."""
    day = Day(monkeypatch, run, run, query(is_active=True))
    day.run()
    # The watch asks a query for its error only in the minute after its start.
    delay = 60 if isinstance(run, Exception) else 61
    assert [0, delay, 2 * delay] == day.started


def test_an_archive_that_loses_a_worker_and_then_cannot_start_waits_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start leaves a thread and a socket. The failed run must not start the archive again and again."""
    day = Day(monkeypatch, query(WORKER_FAILURES[0]), UserError("disk full"), query(is_active=True))
    day.run()
    assert [0, 1, 61] == day.started


def test_a_failed_archive_whose_clean_up_hangs_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays active. Later Spark refuses a second query with its name, and the log says that, too."""
    day = Day(monkeypatch, query("disk full", is_active=True), OSError("a query with that name is already active"))
    logs = day.run()
    assert [0, 61, 121] == day.started[:3]
    assert logs[0]["reason"].startswith("disk full. The other queries")
    assert logs[1]["reason"].startswith("a query with that name is already active. The other queries")


def test_the_archive_starts_after_the_loyalty_query_for_a_new_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start can take long, and customers wait for their points."""
    started: list[str] = []
    monkeypatch.setattr(module, "stop_between_batches", lambda *_: None)
    watch = QueryWatch(["loyalty", "archive"], started.append, without_wait(), retries=True)  # type: ignore[arg-type]
    watch.queries |= {"archive": query(is_active=True), "loyalty": query(is_active=True)}
    watch._check_programme(SimpleNamespace(has_changed=lambda: True))  # type: ignore[arg-type]
    assert ["loyalty", "archive"] == started


class Unreadable:
    """A programme whose newest version this release cannot read."""

    is_closed = False

    def has_changed(self) -> bool:
        raise ProgrammeError("offset 7: an unknown field")

    def close(self) -> None:
        self.is_closed = True


def test_a_version_that_this_release_cannot_read_stops_the_archive_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The export and the fan-out do not use the programme. The archive would skip customers of a new type."""
    stopped: list[Any] = []
    monkeypatch.setattr(module, "stop_between_batches", lambda queries, _: stopped.extend(queries))
    archive, programme = query(is_active=True), Unreadable()
    watch = watch_of({"fan-out": query(), "archive": archive}, programme=programme)
    with capture_logs() as logs:
        watch.watch()
    assert ([archive], ["fan-out"], True) == (stopped, [*watch.queries], programme.is_closed)
    assert logs[-1]["reason"].startswith("offset 7: an unknown field. The other queries run without the archive")


def test_a_version_that_this_release_cannot_read_ends_the_process_of_the_loyalty_query() -> None:
    """By the former version, it would count wrong points."""
    with pytest.raises(ProgrammeError):
        watch_of({"loyalty": query(is_active=True), "archive": query()}, programme=Unreadable()).watch()


def test_a_programme_that_cannot_be_read_at_the_start_stops_the_archive_only() -> None:
    """The archive starts again when the programme can be read, and from then on the process watches the programme."""
    programmes: list[Any] = [ProgrammeError("an unknown field"), SimpleNamespace(close=lambda: None)]
    started = []

    def watch_programme() -> Any:
        if isinstance(programme := programmes.pop(0), Exception):
            raise programme
        return programme

    def start(name: str) -> Any:
        started.append((name, len(programmes)))
        return query(is_active=True)

    names = ["fan-out", "archive"]
    watch = QueryWatch(names, start, without_wait(), retries=True, watch_programme=watch_programme)
    watch.start(names)
    assert ["fan-out"] == [*watch.queries]
    watch.start(["archive"])
    watch.start(["archive"])
    assert [("fan-out", 2), ("archive", 0), ("archive", 0)] == started


def test_an_archive_that_fails_at_each_start_is_named_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says what to do, and that the driver tries again."""
    logs = Day(monkeypatch, UserError("it would skip records")).run()
    assert 25 == len(logs)
    assert "it would skip records. The other queries run without the archive" in logs[-1]["reason"]
    assert "starts it again after an hour" in logs[-1]["reason"]
    assert "`LOYALTY_ACCEPT_DATA_LOSS=true loyalty archive`" in logs[-1]["reason"]


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


def test_a_new_version_of_the_programme_starts_no_query_after_a_stop_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop of the running queries may have taken long enough for the signal to come."""
    stopping = without_wait()
    monkeypatch.setattr(
        module,
        "stop_between_batches",
        lambda *_: (stopping.set(), setattr(stopping, "wait", lambda _: True)),
    )
    programme: Any = SimpleNamespace(has_changed=lambda: True)
    watch_of({"loyalty": query(is_active=True)}, stopping=stopping, programme=programme).watch()
    assert stopping.is_set()
