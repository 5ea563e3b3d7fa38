"""Long polls: no wake-up is lost or late."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from services.state_stores import waiters as module
from services.state_stores.definition import ReadConsistency, VersionedValue
from services.state_stores.task import ChangelogRecord
from services.state_stores.waiters import SequenceWaiters

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

LONG = 60.0


@pytest.fixture
async def waiters(monkeypatch: pytest.MonkeyPatch) -> SequenceWaiters:
    """Waiters that do not read again each second, so a test proves what wakes them."""
    monkeypatch.setattr(module, "_PAUSE_SECONDS", LONG)
    found = SequenceWaiters()
    found.bind(asyncio.get_running_loop())
    return found


async def test_a_value_that_is_new_enough_is_returned_at_once(waiters: SequenceWaiters) -> None:
    """A request does not wait if the sequence number is reached, or if its timeout is 0."""
    newest = VersionedValue(5, 0, 0, b"")

    assert await waiters.wait(b"A", lambda: newest, ReadConsistency(5).is_satisfied_by, LONG) is newest
    assert await waiters.wait(b"A", lambda: newest, ReadConsistency(6).is_satisfied_by, 0) is newest


async def test_after_the_timeout_the_last_value_is_returned(waiters: SequenceWaiters) -> None:
    """A request waits no longer than its timeout."""
    started = time.monotonic()

    assert await waiters.wait(b"A", lambda: None, ReadConsistency(6).is_satisfied_by, 0.05) is None
    assert 0.05 <= time.monotonic() - started < 5


async def test_a_write_at_the_moment_of_the_timeout_does_not_keep_a_waiter(waiters: SequenceWaiters) -> None:
    """A thread wakes 200 waiters all the time, so it also wakes them at the moment of their timeouts."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            waiters.notify([b"A"])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        timeouts = [0.05 + number / 1_000 for number in range(200)]
        found = await asyncio.gather(*(waiters.wait(b"A", lambda: None, bool, seconds) for seconds in timeouts))
        assert [None] * len(timeouts) == found
    finally:
        is_over.set()
        thread.join()


async def test_all_waiters_of_a_key_wake_after_a_write(waiters: SequenceWaiters) -> None:
    """A thread writes as fast as it can. 50 waiters of each key, started at any moment, all get their values."""
    store = {key: VersionedValue(0, 0, 0, b"") for key in (b"A", b"B")}

    def write() -> None:
        for sequence in range(1, 2_001):
            for key in store:
                store[key] = VersionedValue(sequence, 0, 0, b"")
                waiters.notify([key])

    async def wait(key: bytes, sequence: int) -> VersionedValue | None:
        return await waiters.wait(key, lambda: store[key], ReadConsistency(sequence).is_satisfied_by, LONG)

    writer = threading.Thread(target=write)
    writer.start()
    found = await asyncio.gather(*(wait(key, sequence) for sequence in range(40, 2_001, 40) for key in store))
    writer.join()
    wanted = [sequence for sequence in range(40, 2_001, 40) for _ in store]

    assert all(value and value.sequence >= sequence for value, sequence in zip(found, wanted, strict=True))


@pytest.mark.parametrize("wake", [lambda waiters: waiters.notify([b"A", b"B"]), SequenceWaiters.notify_all])
async def test_one_wake_up_reaches_all_requests(
    waiters: SequenceWaiters, wake: Callable[[SequenceWaiters], None]
) -> None:
    """Two requests wait for each of two keys. After their end, nothing of them is left."""
    written: list[bool] = []
    requests = [asyncio.create_task(waiters.wait(key, lambda: written, bool, LONG)) for key in (b"A", b"A", b"B", b"B")]
    await asyncio.sleep(0)  # the requests start to wait
    written.append(True)
    wake(waiters)

    async with asyncio.timeout(20):
        await asyncio.gather(*requests)
    assert {} == waiters._waiting


RECORD = ChangelogRecord(7, 0, b"A", None)


async def test_all_followers_wake_when_partitions_move(waiters: SequenceWaiters) -> None:
    """Each of them follows another key, and must look for the new owner of its key."""
    with waiters.follow("log", b"A") as first, waiters.follow("log", b"B") as second:
        waiters.notify_all()
        async with asyncio.timeout(20):
            await asyncio.gather(first.woken.wait(), second.woken.wait())
        assert ([], []) == (first.take(), second.take())


async def test_a_follower_that_has_ended_gets_no_more_records(waiters: SequenceWaiters) -> None:
    """The other follower of the key gets them. After the end of both, nothing of them is left."""
    with waiters.follow("log", b"A") as first:
        with waiters.follow("log", b"A") as second:
            pass
        waiters.pass_on("log", [RECORD])
        await asyncio.wait_for(first.woken.wait(), 20)
        assert ([RECORD], []) == (first.take(), second.take())
    assert {} == waiters._followers


async def test_a_follower_that_has_missed_a_record_stays_overflowed(
    waiters: SequenceWaiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next records fit again. Without the missed ones, the client would see a gap. The memory has a limit."""
    monkeypatch.setattr(module, "_MOST_RECORDS", 3)
    with waiters.follow("log", b"A") as follower:
        for number in (2, 2, 1):
            waiters.pass_on("log", [RECORD] * number)
            await asyncio.sleep(0)

        assert follower.overflowed
        assert 2 == len(follower.take())


OLD, NEW = 1_000, 2_000
"""Two accounts of one card, by their opened times."""


@pytest.mark.parametrize(
    ("consistency", "version", "expected"),
    [
        (ReadConsistency(), None, True),
        (ReadConsistency(3), None, False),
        (ReadConsistency(3), (OLD, 3), True),
        (ReadConsistency(3), (OLD, 2), False),
        (ReadConsistency(3, OLD), (OLD, 3), True),
        (ReadConsistency(3, OLD), (OLD, 2), False),
        (ReadConsistency(3, OLD), (NEW, 1), True),  # a later account has applied all earlier changes
        (ReadConsistency(1, NEW), (OLD, 57), False),  # sequence numbers of two accounts cannot be compared
        (ReadConsistency(1, NEW), (0, 57), False),
        (ReadConsistency(9, OLD, erased=True), (OLD, 8), False),
        (ReadConsistency(9, OLD, erased=True), (OLD, 9), False),
        (ReadConsistency(9, OLD, erased=True), None, True),
        (ReadConsistency(9, OLD, erased=True), (NEW, 1), True),
    ],
)
def test_a_change_is_visible_in_its_account_and_in_later_accounts(
    consistency: ReadConsistency,
    version: tuple[int, int] | None,
    expected: bool,  # noqa: FBT001
) -> None:
    """Sequence numbers count within an account. A later account satisfies each read, and an earlier account none."""
    value = version and VersionedValue(version[1], 0, 0, b"", opened_time=version[0])

    assert expected == consistency.is_satisfied_by(value)
