"""Long polls: requests that wait until a store shows a change."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


class SequenceWaiters:
    """Wakes the event loop's waiters when the materialiser's thread has written their keys; nobody polls."""

    def __init__(self) -> None:
        self._waiting: defaultdict[bytes, set[asyncio.Event]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop whose tasks wait; before any of them does."""
        self._loop = loop

    async def wait(self, key: bytes, read: Callable[[], T], is_enough: Callable[[T], bool], seconds: float) -> T:
        """Repeat a read after each write of the key, until its result is enough or the time is over.

        Returns the last result. Raises what ``read`` raises.
        """
        result = read()
        if is_enough(result) or seconds <= 0:
            return result
        written = asyncio.Event()
        self._waiting[key].add(written)
        try:
            async with asyncio.timeout(seconds):
                # Registered before read again: a write in between is either seen here or wakes this waiter.
                while not is_enough(result := read()):
                    await written.wait()
                    written.clear()
        except TimeoutError:
            return read()
        finally:
            self._waiting[key].discard(written)
            if not self._waiting[key]:
                del self._waiting[key]
        return result

    def notify(self, keys: Collection[bytes]) -> None:
        """Tell the waiters of these keys to read again; called from any thread, after the write."""
        if self._loop is None or not self._waiting:
            return
        awaited = [key for key in keys if key in self._waiting]
        if awaited:
            self._loop.call_soon_threadsafe(self._wake, awaited)

    def notify_all(self) -> None:
        """Tell every waiter to read again: partitions have moved, and what was waited for may not come here."""
        if self._loop is not None and self._waiting:
            self._loop.call_soon_threadsafe(lambda: self._wake(list(self._waiting)))

    def _wake(self, keys: list[bytes]) -> None:
        for key in keys:
            for written in self._waiting.get(key, ()):
                written.set()
