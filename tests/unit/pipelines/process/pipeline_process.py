"""The process of the pipeline with queries of the test, and without Spark and Kafka."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import pipelines.__main__ as pipeline
from pipelines.__main__ import _run
from pipelines.driver import watch
from pipelines.driver.watch import QueryWatch
from pipelines.queries.query_table import QUERIES
from pipelines.runtime.query import Query
from services.errors import UserError
from services.settings import Settings


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
