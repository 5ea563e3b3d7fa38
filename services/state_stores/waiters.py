"""Long polls: requests that wait until a store contains a change."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


class SequenceWaiters:
    """Wakes waiting requests when the materialiser's thread has written their keys."""

    def __init__(self) -> None:
        self._waiting: defaultdict[bytes, set[asyncio.Event]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop of the waiting requests. It must be called before ``wait``."""
        self._loop = loop

    async def wait(self, key: bytes, read: Callable[[], T], is_enough: Callable[[T], bool], seconds: float) -> T:
        """Repeat a read after each write of the key, until its result is enough or the time is over.

        Returns the last result. Raises the errors of ``read``.
        """
        result = read()
        if is_enough(result) or seconds <= 0:
            return result
        written = asyncio.Event()
        self._waiting[key].add(written)
        try:
            async with asyncio.timeout(seconds):
                # The event is registered before the next read, so no write between them is missed.
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
        """Wake the requests that wait for these keys. Any thread may call it after a write."""
        if self._loop is None or not self._waiting:
            return
        waiting = [key for key in keys if key in self._waiting]
        if waiting:
            self._loop.call_soon_threadsafe(self._wake, waiting)

    def notify_all(self) -> None:
        """Wake all waiting requests: partitions have moved, and their keys may not be written here any more."""
        if self._loop is not None and self._waiting:
            self._loop.call_soon_threadsafe(lambda: self._wake(list(self._waiting)))

    def _wake(self, keys: list[bytes]) -> None:
        for key in keys:
            for written in self._waiting.get(key, ()):
                written.set()
