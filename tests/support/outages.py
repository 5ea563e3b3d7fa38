"""Measures the times in which customers get no answer."""

import time


class Outages:
    """An outage of a customer begins with the first request that fails, and ends with the next answer."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def begin(self, card: str, asked: float) -> None:
        """Record that a request failed. ``asked`` is the time (``time.monotonic``) at which it was sent."""
        self._since.setdefault(card, asked)

    def end(self, card: str) -> float:
        """End the outage of a customer. Returns its seconds; 0 if there was none."""
        now = time.monotonic()
        return now - self._since.pop(card, now)

    def end_all(self) -> float:
        """End all outages. Returns the seconds of the longest one; 0 if there was none."""
        return max(map(self.end, [*self._since]), default=0.0)
