"""Limits of one caller, so that its flood does not disturb the others. They are limits of each instance."""

import math
import time
from collections import Counter

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from api.security.caller import Caller
from api.security.problems import TooManyRequests


class CallerLimits:
    """Counts the requests of each caller. Only the thread of the event loop may call it."""

    def __init__(self, rate: str, most_at_once: int) -> None:
        """Set the limits.

        Args:
            rate: how often a caller may use one route, for example ``100/second``.
            most_at_once: how many requests of a caller may be in work. A long poll is in work while it waits.
        """
        self._rate: RateLimitItem = parse(rate)
        self._windows = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._most_at_once = most_at_once
        self._at_once: Counter[str] = Counter()

    def count(self, caller: Caller, route: str) -> None:
        """Count a request. Raises TooManyRequests."""
        # The instance that received the request from the caller has counted it.
        if not caller.is_forwarded and not self._windows.hit(self._rate, caller.name, route):
            reset = self._windows.get_window_stats(self._rate, caller.name, route).reset_time
            raise TooManyRequests(retry_after=max(1, math.ceil(reset - time.time())))

    def take_place(self, caller: Caller) -> None:
        """Take a place of the caller while its request is in work. Raises TooManyRequests."""
        if caller.is_forwarded:
            return
        if self._at_once[caller.name] >= self._most_at_once:
            raise TooManyRequests
        self._at_once[caller.name] += 1

    def leave_place(self, caller: Caller) -> None:
        if not caller.is_forwarded:
            self._at_once[caller.name] -= 1
            if not self._at_once[caller.name]:
                del self._at_once[caller.name]
