"""How the pipeline starts, watches and stops its queries."""

import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

import pipelines.__main__ as pipeline
from pipelines.__main__ import MAX_RESTARTS, WORKER_FAILURES, _run, _stop_between_batches, _watch
from pipelines.checkpoints.lock import CheckpointInUseError, hold
from pipelines.runtime.query_table import QUERIES
from services.settings import Settings, read_settings


def query(error: str | None = None) -> Any:
    """A query that fails with this error as soon as it has started, or has ended."""
    return SimpleNamespace(exception=lambda: error, isActive=error is not None)


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


def test_any_other_failure_ends_the_process() -> None:
    assert [] == starts({"loyalty": query("java.lang.OutOfMemoryError"), "fan-out": query()})


class Running:
    """A query that runs micro-batches. It notes whether it was stopped between two of them."""

    def __init__(self, clock: "Clock", batch_ends: float, *, error: str | None = None, is_active: bool = True) -> None:
        self._clock = clock
        self._batch_ends = batch_ends
        self._error = error
        self.isActive = is_active
        self.stopped = ""

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": self._clock.now < self._batch_ends}

    def exception(self) -> str | None:
        return self._error

    def stop(self) -> None:
        self.stopped = "in a batch" if self.status["isTriggerActive"] else "between batches"
        self.isActive = False


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
    return found


def test_a_query_stops_after_its_micro_batch(clock: Clock) -> None:
    """An interrupted batch runs again after the restart, and all its records with it."""
    queries: list[Any] = [Running(clock, batch_ends=end) for end in (0.0, 3.0, 1.0)]
    _stop_between_batches(queries, timedelta(seconds=10))
    assert ["between batches"] * 3 == [each.stopped for each in queries]
    assert 3.0 <= clock.now < 3.1


def test_a_micro_batch_that_does_not_end_in_time_is_interrupted(clock: Clock) -> None:
    """All queries together have one deadline. A query that has ended keeps nobody waiting."""
    queries: list[Any] = [Running(clock, 100.0, is_active=False), Running(clock, 5.0), Running(clock, 100.0)]
    _stop_between_batches(queries, timedelta(seconds=10))
    assert ["in a batch", "between batches", "in a batch"] == [each.stopped for each in queries]
    assert 10.0 <= clock.now < 10.1


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOYALTY_CHECKPOINT_DIR", str(tmp_path))
    return read_settings()


@pytest.mark.parametrize(("error", "status"), [(None, 0), ("java.lang.OutOfMemoryError", 1)])
def test_the_status_says_whether_a_query_has_failed(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: str | None, status: int
) -> None:
    """A supervisor starts the pipeline again after a failure only. The other queries stop between two batches."""
    ended = Running(clock, 0.0, error=error, is_active=False)
    other = Running(clock, 3.0 if error else 0.0, is_active=error is not None)
    queries = {"sales": ended, "fan-out": other}
    made = {
        name: SimpleNamespace(reads_programme=False, start=lambda *_, query=query, **__: query)
        for name, query in queries.items()
    }
    spark = SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None), stop=lambda: None)
    monkeypatch.setattr(pipeline, "QUERIES", made)
    monkeypatch.setattr(pipeline, "spark_session", lambda _: spark)
    monkeypatch.setattr(pipeline, "require_broker", lambda _: None)
    monkeypatch.setattr(pipeline, "signal", SimpleNamespace(SIGTERM=1, SIGINT=2, signal=lambda *_: None))
    with ExitStack() as stack:
        assert status == _run(settings, [*queries], stack, without_wait(), available_now=True, backfill=False)
        assert ("", "") == (ended.stopped, other.stopped)
    assert "between batches" == other.stopped


def test_a_second_process_starts_no_query(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that write one checkpoint damage it. The refusal names the checkpoint."""
    checkpoint = QUERIES["fan-out"].checkpoint(settings)
    monkeypatch.setattr(pipeline, "_run", lambda *_, **__: pytest.fail("a query starts"))
    with hold(checkpoint), capture_logs() as logs:
        assert 2 == pipeline.run(settings, ["sales", "fan-out"], available_now=True)
    (line,) = logs
    assert "refused to start" == line["event"]
    assert checkpoint in line["reason"]


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
