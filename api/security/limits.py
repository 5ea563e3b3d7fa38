"""Limits of each caller on one instance, so that the requests of one caller do not disturb the others.

Decision 0020 says why no library counts the requests.
"""

import math
import time
from contextlib import suppress
from ipaddress import IPv4Address, ip_address, ip_network

from api.security.caller import Caller
from api.security.problems import TooManyRequests

_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_FIRST_CLEAN_UP = 10_000


class _Window:
    """Requests since the start of the current period, and in the period before it."""

    __slots__ = ("count", "previous", "start")

    def __init__(self, start: float) -> None:
        self.start = start
        self.count = self.previous = 0


class Usage:
    """The usage of one caller: its running requests, and its recent requests to each route."""

    __slots__ = ("_at_once", "_limits", "_windows")

    def __init__(self, limits: "CallerLimits") -> None:
        self._limits = limits
        self._at_once = 0
        self._windows: dict[str, _Window] = {}

    def take_place(self) -> None:
        """Take one of the caller's places while its request runs. Raises TooManyRequests."""
        if self._at_once >= self._limits.most_at_once:
            raise TooManyRequests
        self._at_once += 1

    def leave_place(self) -> None:
        self._at_once -= 1

    def count(self, route: str) -> None:
        """Count a request in a sliding window. Raises TooManyRequests.

        The requests of the previous period count in proportion to its part that is still in the window.
        """
        self.require_room(route).count += 1

    def require_room(self, route: str) -> _Window:
        """The window of a route, if it has room for one more request. Raises TooManyRequests."""
        now, seconds, window = time.monotonic(), self._limits.seconds, self._windows.get(route)
        if window is None:
            window = self._windows[route] = _Window(now)
        elapsed = now - window.start
        if elapsed >= seconds:
            window.previous = window.count if elapsed < 2 * seconds else 0
            window.count, elapsed = 0, elapsed % seconds
            window.start = now - elapsed
        if window.count + window.previous * (1 - elapsed / seconds) >= self._limits.most:
            # The place gets free when enough requests of the previous period have left the window. If all the requests
            # are of the current period, that is the end of the period.
            wait = seconds * (1 - (self._limits.most - window.count) / max(1, window.previous)) - elapsed
            raise TooManyRequests(retry_after=math.floor(wait) + 1)
        return window

    def is_over(self, now: float) -> bool:
        """Whether this usage can be forgotten: no request runs, and no earlier request counts any more."""
        ended = now - 2 * self._limits.seconds
        return not self._at_once and all(window.start <= ended for window in self._windows.values())


class CallerLimits:
    """Knows the usage of each caller. Only the thread of the event loop may call it.

    Args:
        rate: how often a caller may use one route, such as ``100/second``. ``most`` and ``seconds`` are its parts.
        most_at_once: how many requests of a caller may run at the same time. A long poll runs while it waits.
    """

    def __init__(self, rate: str, most_at_once: int) -> None:
        most, unit = rate.split("/")
        self.most, self.seconds = int(most), _SECONDS[unit]
        self.most_at_once = most_at_once
        self._usages: dict[str, Usage] = {}
        self._clean_up_at = _FIRST_CLEAN_UP

    def usage(self, caller: Caller) -> Usage | None:
        """The usage of a caller. None for a forwarded request: the instance that forwards it has counted it."""
        return None if caller.is_forwarded else self.usage_of(caller.name)

    def usage_of(self, name: str) -> Usage:
        """The usage under a name."""
        usage = self._usages.get(name)
        if usage is None:
            self._clean_up()
            usage = self._usages[name] = Usage(self)
        return usage

    def _clean_up(self) -> None:
        """Forget the usages that are over, each time the number of usages has doubled."""
        if len(self._usages) >= self._clean_up_at:
            now = time.monotonic()
            self._usages = {name: usage for name, usage in self._usages.items() if not usage.is_over(now)}
            self._clean_up_at = max(_FIRST_CLEAN_UP, 2 * len(self._usages))


class FailedLogins:
    """Limits the requests with wrong credentials from each address, so that nobody can try many keys.

    Args:
        rate: how many requests with wrong credentials one address may send, for example ``60/minute``.
    """

    _ROUTE = "login"

    def __init__(self, rate: str) -> None:
        self._limits = CallerLimits(rate, 1)

    def require_room(self, address: str) -> None:
        """Raise TooManyRequests if the address may send no more."""
        self._limits.usage_of(_network(address)).require_room(self._ROUTE)

    def count(self, address: str) -> None:
        """Count a request with wrong credentials. At the limit it counts nothing, and raises nothing."""
        with suppress(TooManyRequests):
            self._limits.usage_of(_network(address)).count(self._ROUTE)


def _network(address: str) -> str:
    """The address, or the first 64 bits of an IPv6 address, because each customer of a provider gets a whole /64.

    A socket for both versions shows an IPv4 address as the IPv6 address ::ffff:a.b.c.d.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
