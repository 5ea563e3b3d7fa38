"""The thread that tells the clock of a query what the query has read."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from queue import SimpleQueue

import pytest

from pipelines.runtime import read_progress


@pytest.fixture
def times() -> SimpleQueue[int | None]:
    """What the thread reads next. None is an error."""
    return SimpleQueue()


class EndError(Exception):
    """The test has ended."""


class EndingListener(Listener):
    """Ends the thread with the test. After `close` alone, it can call `accept` without a pause until the run ends."""

    ended = False

    def accept(self) -> Connection:
        connection = super().accept()
        if self.ended:
            connection.close()
            raise EndError
        return connection


@pytest.fixture
def address(times: SimpleQueue[int | None]) -> Iterator[str]:
    """Where the thread answers."""

    def read() -> int:
        if (time := times.get()) is None:
            raise RuntimeError("Kafka is away")
        return time

    def serve() -> None:
        with suppress(EndError):
            read_progress._serve(listener, read)

    with EndingListener(family="AF_UNIX") as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield str(listener.address)
        listener.ended = True
        times.put(None)  # in case the test failed while the thread waits for a time
        with Client(listener.address):
            thread.join(30)
        assert not thread.is_alive()


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
