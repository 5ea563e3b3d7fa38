"""The times in which customers got no answer."""

import time


class Outages:
    """An outage of a customer begins with the first request that fails, and ends with the next answer."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def begin(self, card: str, asked: float) -> None:
        """A request has failed that was sent at this time of ``time.monotonic``."""
        self._since.setdefault(card, asked)

    def end(self, card: str) -> float:
        """The seconds of the outage that ends now; 0 if there was none."""
        now = time.monotonic()
        return now - self._since.pop(card, now)

    def end_all(self) -> float:
        """The seconds of the longest outage that has not ended; 0 if there is none."""
        return max(map(self.end, [*self._since]), default=0.0)
