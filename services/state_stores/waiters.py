"""Requests that wait for changes: long polls wait for one change, and streams send all records of a key."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from services.state_stores.task import ChangelogRecord

T = TypeVar("T")

_PAUSE_SECONDS = 1.0
"""The longest time between two reads of a waiting request."""

_MOST_RECORDS = 1_000
"""A follower with more waiting records is disconnected. It connects again, and reads the rest from the changelog."""


class KeyFollower:
    """The records of one key that were applied since the start of ``SequenceWaiters.follow``.

    Attributes:
        woken: set after each new record, and when partitions have moved.
        overflowed: whether records were dropped, because more than the maximum waited.
    """

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.overflowed = False
        self._records: deque[ChangelogRecord] = deque()

    def take(self) -> list[ChangelogRecord]:
        """The records since the last call, in the order of their offsets."""
        self.woken.clear()
        records = list(self._records)
        self._records.clear()
        return records

    def put(self, records: Sequence[ChangelogRecord]) -> None:
        self.overflowed = self.overflowed or len(self._records) + len(records) > _MOST_RECORDS
        if not self.overflowed:
            self._records.extend(records)
        self.woken.set()


class SequenceWaiters:
    """Wakes waiting requests when the materialiser's thread has written their keys."""

    def __init__(self) -> None:
        self._waiting: defaultdict[bytes, set[asyncio.Event]] = defaultdict(set)
        self._followers: defaultdict[tuple[str, bytes], set[KeyFollower]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop of the waiting requests. It must be called before ``wait`` and ``follow``."""
        self._loop = loop

    async def wait(self, key: bytes, read: Callable[[], T], is_enough: Callable[[T], bool], seconds: float) -> T:
        """Repeat a read after each write of the key, and each second, until the result is enough or the time is over.

        Returns the last result. Raises the errors of ``read``.
        """
        result = read()
        if is_enough(result) or seconds <= 0:
            return result
        written, end = asyncio.Event(), time.monotonic() + seconds
        self._waiting[key].add(written)
        try:
            # The event is registered before the next read, so no write between them is missed.
            while not is_enough(result := read()) and (left := end - time.monotonic()) > 0:
                # A result can become enough without a write, when the broker reports the end of the topic.
                # In Python 3.11, asyncio.wait_for can lose the cancellation of a request that ends at this moment.
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _PAUSE_SECONDS)):
                        await written.wait()
                written.clear()
        finally:
            self._waiting[key].discard(written)
            if not self._waiting[key]:
                del self._waiting[key]
        return result

    @contextmanager
    def follow(self, changelog: str, key: bytes) -> Iterator[KeyFollower]:
        """Collect each record of the key in a changelog (without the prefix of the deployment) that is applied."""
        follower, place = KeyFollower(), (changelog, key)
        self._followers[place].add(follower)
        try:
            yield follower
        finally:
            self._followers[place].discard(follower)
            if not self._followers[place]:
                del self._followers[place]

    def notify(self, keys: Collection[bytes]) -> None:
        """Wake the requests that wait for these keys. Any thread may call it after a write."""
        if self._loop is None or not self._waiting:
            return
        waiting = [key for key in keys if key in self._waiting]
        if waiting:
            self._loop.call_soon_threadsafe(self._wake, waiting)

    def pass_on(self, changelog: str, records: Sequence[ChangelogRecord]) -> None:
        """Give records to the followers of their keys. Any thread may call it after all stores have applied them."""
        if self._loop is None or not self._followers:
            return
        found: defaultdict[tuple[str, bytes], list[ChangelogRecord]] = defaultdict(list)
        for record in records:
            if record.key is not None and (changelog, record.key) in self._followers:
                found[changelog, record.key].append(record)
        if found:
            self._loop.call_soon_threadsafe(self._hand_over, found)

    def notify_all(self) -> None:
        """Wake all waiting requests: partitions have moved, and their keys may not be written here any more."""
        if self._loop is not None and (self._waiting or self._followers):
            self._loop.call_soon_threadsafe(lambda: self._wake(list(self._waiting)))
            self._loop.call_soon_threadsafe(lambda: self._hand_over(dict.fromkeys(self._followers, ())))

    def _wake(self, keys: list[bytes]) -> None:
        for key in keys:
            for written in self._waiting.get(key, ()):
                written.set()

    def _hand_over(self, found: Mapping[tuple[str, bytes], Sequence[ChangelogRecord]]) -> None:
        for place, records in found.items():
            for follower in self._followers.get(place, ()):
                follower.put(records)
