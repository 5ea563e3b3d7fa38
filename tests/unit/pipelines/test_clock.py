"""The clock of the loyalty query, and the thread of the driver that gives it the time."""

import contextlib
import threading
from multiprocessing.connection import Client, Listener
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from pipelines.runtime import read_progress
from pipelines.runtime.read_progress import serve_read_progress
from pipelines.sources import clock
from pipelines.sources.clock import TIMER_DELAY, ClockReader
from schemas.topics import POS_INVOICES
from services.settings import Settings

INTERVAL = 10_000
NOW = 1_770_000_005_000 + TIMER_DELAY
WHOLE = 1_770_000_000_000
BEFORE = WHOLE - INTERVAL


@pytest.fixture(autouse=True)
def _machine_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.time, "time", lambda: NOW / 1000)
    monkeypatch.setattr("services.clock.now", lambda: NOW)


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
    assert [(None, WHOLE, None, None, None, None)] == list(reader.read(partition))
    assert [] == reader.partitions({"tick": 1}, {"tick": 2})
    assert [] == reader.partitions({"readUntil": WHOLE}, {"readUntil": WHOLE})


class Broker:
    """Stands for a consumer.

    ``records`` has the append time of each record, by topic and partition. A consumer that reads only committed
    transactions sees ``open_records`` less. Retention has deleted ``deleted`` records of each partition.
    """

    deleted = 0

    def __init__(
        self, records: dict[tuple[str, int], list[int]], open_records: int = 0, isolation: str = "read_committed"
    ) -> None:
        self._records = records
        self._hidden = open_records if isolation == "read_committed" else 0
        self.assigned: list[TopicPartition] = []

    def list_topics(self, topic: str, timeout: float) -> Any:
        partitions = {number: SimpleNamespace(leader=1) for name, number in self._records if name == topic}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions, error=None)})

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        return self.deleted, len(self._records[partition.topic, partition.partition]) - self._hidden

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def unassign(self) -> None:
        self.assigned = []

    def poll(self, timeout: float) -> Any:
        (partition,) = self.assigned
        assert partition.offset >= self.deleted
        append_time = self._records[partition.topic, partition.partition][partition.offset]
        return SimpleNamespace(
            error=lambda: None,
            partition=lambda: partition.partition,
            offset=lambda: partition.offset,
            timestamp=lambda: (2, append_time),
        )


def test_time_stops_at_the_first_unread_record() -> None:
    """The earliest unread record of all partitions and topics counts. Without one, the time is almost now.

    One consumer answers every question. It holds no partition in between, so it buffers no records that nobody reads.
    """
    invoices, commands = ("pos-invoices", "loyalty-commands")
    broker: Any = Broker({(invoices, 0): [100, 200], (invoices, 1): [150], (commands, 0): [120, 300]})

    def answer(positions: dict[str, dict[int, int]]) -> int:
        found = read_progress.read_until(broker, [invoices, commands], positions)
        assert [] == broker.assigned
        return found

    assert 100 == answer({})
    assert 120 == answer({invoices: {0: 1, 1: 1}})
    assert 200 == answer({invoices: {0: 1, 1: 1}, commands: {0: 1}})
    assert NOW - TIMER_DELAY == answer({invoices: {0: 2, 1: 1}, commands: {0: 2}})
    broker.deleted = 1
    assert 300 == answer({invoices: {0: 2, 1: 1}})


def test_time_stops_at_the_first_record_of_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query has read all committed records. It reads those of the transaction later, with their append times."""

    def consumer(_: Settings, __: str, **options: str) -> Any:
        return Broker({("pos-invoices", 0): [100, 200]}, 1, options.get("isolation.level", "read_committed"))

    monkeypatch.setattr(read_progress, "bounded_consumer", consumer)
    positions = SimpleNamespace(positions=lambda: {"pos-invoices": {0: 1}})
    monkeypatch.setattr(read_progress, "CheckpointReader", lambda *_: positions)

    address = serve_read_progress(object(), "open-transaction", (POS_INVOICES,), Settings())  # type: ignore[arg-type]

    with Client(address) as clock_reader:
        assert clock_reader.poll(30)
        assert 200 == clock_reader.recv()


def test_a_consumer_that_has_lost_all_brokers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the timers would wait until the process starts again."""
    lost: Any = Broker({})
    lost.list_topics = lambda *_, **__: raise_error(KafkaException(KafkaError(KafkaError._TRANSPORT)))
    monkeypatch.setattr(read_progress, "bounded_consumer", lambda *_, **__: lost)
    monkeypatch.setattr(read_progress, "replaced_if_lost", lambda *_: Broker({("pos-invoices", 0): [100]}))
    positions = SimpleNamespace(positions=dict)
    monkeypatch.setattr(read_progress, "CheckpointReader", lambda *_: positions)

    address = serve_read_progress(object(), "lost-brokers", (POS_INVOICES,), Settings())  # type: ignore[arg-type]

    found = []
    with capture_logs() as logs:
        for _ in range(2):
            with Client(address) as clock_reader:
                assert clock_reader.poll(30)
                found.append(clock_reader.recv())
    assert [0, 100] == found
    assert ["timers wait, because the read progress is unknown"] == [line["event"] for line in logs]


def raise_error(error: Exception) -> None:
    raise error
