"""Long polls: no wake-up is lost or late."""

import asyncio
import threading
import time

import pytest

from services.state_stores.definition import ReadConsistency, VersionedValue
from services.state_stores.waiters import SequenceWaiters

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

LONG = 60.0


async def test_a_value_that_is_new_enough_is_returned_at_once() -> None:
    """A request does not wait if the sequence number is reached, or if its timeout is 0."""
    waiters = SequenceWaiters()
    waiters.bind(asyncio.get_running_loop())
    newest = VersionedValue(5, 0, 0, b"")

    assert await waiters.wait(b"A", lambda: newest, ReadConsistency(5).is_satisfied_by, LONG) is newest
    assert await waiters.wait(b"A", lambda: newest, ReadConsistency(6).is_satisfied_by, 0) is newest


async def test_after_the_timeout_the_last_value_is_returned() -> None:
    """A request waits no longer than its timeout."""
    waiters = SequenceWaiters()
    waiters.bind(asyncio.get_running_loop())
    started = time.monotonic()

    assert await waiters.wait(b"A", lambda: None, ReadConsistency(6).is_satisfied_by, 0.05) is None
    assert 0.05 <= time.monotonic() - started < 5


async def test_a_write_at_the_moment_of_the_timeout_does_not_keep_a_waiter() -> None:
    """A thread wakes 200 waiters all the time, so it also wakes them at the moment of their timeouts."""
    waiters = SequenceWaiters()
    waiters.bind(asyncio.get_running_loop())
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


async def test_all_waiters_of_a_key_wake_after_a_write() -> None:
    """A thread writes as fast as it can. 50 waiters of each key, started at any moment, all get their values."""
    store = {key: VersionedValue(0, 0, 0, b"") for key in (b"A", b"B")}
    waiters = SequenceWaiters()
    waiters.bind(asyncio.get_running_loop())

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
