"""The clock of the loyalty query, and the thread of the driver that gives it the time."""

import contextlib
import threading
from multiprocessing.connection import Listener

import pytest

from pipelines.runtime import read_progress
from pipelines.sources import clock
from pipelines.sources.clock import TIMER_DELAY, ClockReader
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES
from services.settings import Settings

INTERVAL = 10_000
NOW = 1_770_000_005_000 + TIMER_DELAY
WHOLE = 1_770_000_000_000
BEFORE = WHOLE - INTERVAL


@pytest.fixture(autouse=True)
def _machine_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.time, "time", lambda: NOW / 1000)
    monkeypatch.setattr(read_progress.time, "time_ns", lambda: NOW * 1_000_000)


def next_offset(start: dict[str, int], answer: int, *, available_now: bool = False) -> dict[str, int]:
    """The clock's next offset if the driver gives this answer."""
    listener = Listener(family="AF_UNIX")

    def serve() -> None:
        # A clock that is not behind does not ask.
        with contextlib.suppress(OSError), listener.accept() as connection:
            connection.send(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    reader = ClockReader(INTERVAL, str(listener.address))
    if available_now:
        reader.prepareForTriggerAvailableNow()
    try:
        return reader.latestOffset(start, None)  # type: ignore[arg-type]  # the clock needs no limit
    finally:
        listener.close()


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize(
    ("start", "answer", "expected"),
    [
        ({"readUntil": BEFORE}, NOW, {"readUntil": WHOLE}),
        ({"readUntil": BEFORE}, WHOLE - 1, {"readUntil": BEFORE}),
        ({"readUntil": 0}, BEFORE - INTERVAL + 1, {"readUntil": BEFORE - INTERVAL}),
        ({"readUntil": WHOLE}, 0, {"readUntil": WHOLE}),
        ({"tick": 177_000_000}, BEFORE, {"readUntil": BEFORE}),
        ({"tick": 177_000_000}, 0, {"tick": 177_000_000}),
    ],
)
def test_the_clock_shows_how_far_events_have_been_read(
    start: dict[str, int], answer: int, expected: dict[str, int], *, available_now: bool
) -> None:
    """It shows whole intervals, never goes back, never passes the machine's time, and continues release 0.1."""
    assert expected == next_offset(start, answer, available_now=available_now)


def test_each_new_time_is_one_row() -> None:
    """Spark gives the same row again when it replays a micro-batch, also one of release 0.1, which had no row."""
    reader = ClockReader(INTERVAL, "")
    (partition,) = reader.partitions({"tick": 1}, {"readUntil": WHOLE})
    assert [(None, WHOLE, None)] == list(reader.read(partition))
    assert [] == reader.partitions({"tick": 1}, {"tick": 2})
    assert [] == reader.partitions({"readUntil": WHOLE}, {"readUntil": WHOLE})


@pytest.mark.parametrize(("unread", "expected"), [([], NOW - TIMER_DELAY), ([BEFORE, WHOLE], BEFORE)])
def test_time_stops_at_the_first_unread_record(
    unread: list[int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earliest unread record of all partitions and topics counts. Without one, the time is almost now."""
    times = {POS_INVOICES.name: unread, LOYALTY_COMMANDS.name: []}
    positions = {POS_INVOICES.name: {0: 7}}

    class Reader:
        def __init__(self, *_: object) -> None:
            self.positions = lambda: positions

    monkeypatch.setattr(read_progress, "CheckpointReader", Reader)
    monkeypatch.setattr(
        read_progress,
        "_unread_times",
        lambda _, topic, found, now: times[topic] if found == positions.get(topic, {}) else pytest.fail(topic),
    )
    found = read_progress.read_until(None, "checkpoint", (POS_INVOICES, LOYALTY_COMMANDS), Settings())  # type: ignore[arg-type]  # no Spark
    assert expected == found
