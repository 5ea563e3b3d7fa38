"""Limits of one caller, so that its flood does not disturb the others. They are limits of each instance.

Decision 0020 says why no library counts the requests.
"""

import math
import time
from dataclasses import dataclass

from api.security.caller import Caller
from api.security.problems import TooManyRequests

_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_FIRST_CLEAN_UP = 10_000


@dataclass(slots=True)
class _Window:
    """Requests since the start of the present period, and in the period before it."""

    start: float
    count: int = 0
    previous: int = 0


class CallerLimits:
    """Counts the requests of each caller. Only the thread of the event loop may call it."""

    def __init__(self, rate: str, most_at_once: int) -> None:
        """Set the limits.

        Args:
            rate: how often a caller may use one route, for example ``100/second``.
            most_at_once: how many requests of a caller may be in work. A long poll is in work while it waits.
        """
        most, unit = rate.split("/")
        self._most, self._seconds = int(most), _SECONDS[unit]
        self._windows: dict[tuple[str, str], _Window] = {}
        self._clean_up_at = _FIRST_CLEAN_UP
        self._most_at_once = most_at_once
        self._at_once: dict[str, int] = {}

    def count(self, caller: Caller, route: str) -> None:
        """Count a request in a sliding window. Raises TooManyRequests.

        The requests of the previous period count by the share of it that is still in the window.
        """
        if caller.is_forwarded:  # The instance that received the request from the caller has counted it.
            return
        now, key = time.monotonic(), (caller.name, route)
        window = self._windows.get(key)
        if window is None:
            self._clean_up(now)
            window = self._windows[key] = _Window(now)
        elapsed = now - window.start
        if elapsed >= self._seconds:
            window.previous = window.count if elapsed < 2 * self._seconds else 0
            window.count, elapsed = 0, elapsed % self._seconds
            window.start = now - elapsed
        if window.count + window.previous * (1 - elapsed / self._seconds) >= self._most:
            raise TooManyRequests(retry_after=max(1, math.ceil(self._seconds - elapsed)))
        window.count += 1

    def _clean_up(self, now: float) -> None:
        """Forget windows that count nothing any more, each time that their number has doubled."""
        if len(self._windows) >= self._clean_up_at:
            ended = now - 2 * self._seconds
            self._windows = {key: window for key, window in self._windows.items() if window.start > ended}
            self._clean_up_at = max(_FIRST_CLEAN_UP, 2 * len(self._windows))

    def take_place(self, caller: Caller) -> None:
        """Take a place of the caller while its request is in work. Raises TooManyRequests."""
        if caller.is_forwarded:
            return
        present = self._at_once.get(caller.name, 0)
        if present >= self._most_at_once:
            raise TooManyRequests
        self._at_once[caller.name] = present + 1

    def leave_place(self, caller: Caller) -> None:
        if not caller.is_forwarded:
            present = self._at_once.pop(caller.name) - 1
            if present:
                self._at_once[caller.name] = present
