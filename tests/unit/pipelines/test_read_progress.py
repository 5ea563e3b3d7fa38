"""The thread that tells the clock of a query what the query has read."""

import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Listener
from queue import SimpleQueue

import pytest

from pipelines.runtime import read_progress


@pytest.fixture
def times() -> SimpleQueue[int | None]:
    """What the thread reads next. None is an error."""
    return SimpleQueue()


@pytest.fixture
def address(times: SimpleQueue[int | None]) -> Iterator[str]:
    """Where the thread answers."""

    def read() -> int:
        if (time := times.get()) is None:
            raise RuntimeError("Kafka is away")
        return time

    with Listener(family="AF_UNIX") as listener:
        threading.Thread(target=read_progress._serve, args=(listener, read), daemon=True).start()
        yield str(listener.address)


def test_a_clock_that_has_ended_does_not_stop_the_answers(address: str, times: SimpleQueue[int | None]) -> None:
    """A query once waited forever after its restart, because the thread had ended with the former clock."""
    with Client(address):
        pass
    times.put(1)
    with Client(address) as clock:
        times.put(2)
        assert clock.poll(30)
        assert 2 == clock.recv()


def test_an_error_delays_the_timers(address: str, times: SimpleQueue[int | None]) -> None:
    times.put(None)
    with Client(address) as clock:
        assert clock.poll(30)
        assert 0 == clock.recv()
