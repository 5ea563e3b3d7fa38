"""How the pipeline watches its queries."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.__main__ import MAX_RESTARTS, WORKER_FAILURES, _watch


def query(error: str | None = None) -> Any:
    """A query that fails with this error as soon as it has started, or has ended."""
    return SimpleNamespace(exception=lambda: error, isActive=error is not None)


def starts(queries: dict[str, Any], *successors: Any) -> list[str]:
    """The queries that start again. Each start takes the next successor."""
    started, left = [], list(successors)

    def start(name: str) -> None:
        started.append(name)
        queries[name] = left.pop(0)

    stopping = threading.Event()
    stopping.wait = lambda _: False  # type: ignore[method-assign, assignment]  # the test does not wait
    _watch(queries, start, None, stopping)
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


def test_any_other_failure_ends_the_process() -> None:
    assert [] == starts({"loyalty": query("java.lang.OutOfMemoryError"), "fan-out": query()})
