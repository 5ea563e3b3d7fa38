"""The limits of one caller."""

import time

import pytest

from api.security.caller import Caller
from api.security.limits import CallerLimits, FailedLogins, Usage
from api.security.problems import TooManyRequests

ANNA, BERTA = Caller("anna", frozenset()), Caller("berta", frozenset())


def use(limits: CallerLimits, caller: Caller) -> Usage:
    usage = limits.usage(caller)
    assert usage is not None
    return usage


def test_a_flood_of_one_caller_leaves_the_others_alone() -> None:
    """Each caller has its own count for each route."""
    limits = CallerLimits("3/minute", 10)
    for _ in range(3):
        use(limits, ANNA).count("/a")

    with pytest.raises(TooManyRequests):
        use(limits, ANNA).count("/a")
    use(limits, ANNA).count("/b")
    use(limits, BERTA).count("/a")


def test_a_request_has_a_place_until_it_ends() -> None:
    """Requests that another instance has forwarded need none, because that instance counts them."""
    limits = CallerLimits("3/minute", 2)
    forwarded = Caller("anna", frozenset(), is_forwarded=True)
    use(limits, ANNA).take_place()
    use(limits, ANNA).take_place()

    with pytest.raises(TooManyRequests):
        use(limits, ANNA).take_place()
    use(limits, BERTA).take_place()
    assert limits.usage(forwarded) is None
    use(limits, ANNA).leave_place()
    use(limits, ANNA).take_place()


def test_the_window_slides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of the last period count less and less. No period allows more than one and a half limits."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limits = CallerLimits("10/second", 1)

    def accepted() -> int:
        for number in range(20):
            try:
                use(limits, ANNA).count("/a")
            except TooManyRequests:
                return number
        return 20

    assert 10 == accepted()
    now += 1.0
    assert 0 == accepted()
    now += 0.5
    assert 5 == accepted()
    now += 9.0
    assert 10 == accepted()


@pytest.mark.parametrize(("rate", "seconds"), [("60/minute", 0.0), ("60/minute", 60.6), ("24/day", 86_401.5)])
def test_a_caller_can_come_back_after_the_time_that_the_refusal_says(
    rate: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second earlier is too early. So a place that is free in a second is not announced for the next period."""
    now = start = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limits = CallerLimits(rate, 1)

    def wait() -> int:
        """Send requests until one is refused."""
        try:
            while True:
                use(limits, ANNA).count("/a")
        except TooManyRequests as refused:
            return refused.retry_after or 0

    wait()
    now = start + seconds
    now += wait() - 1
    with pytest.raises(TooManyRequests):
        use(limits, ANNA).count("/a")
    now += 1
    use(limits, ANNA).count("/a")


def test_idle_callers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory does not grow with callers that came once. A current caller stays counted."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("api.security.limits._FIRST_CLEAN_UP", 100)
    limits = CallerLimits("1/second", 1)
    for number in range(500):
        now += 0.1
        use(limits, Caller(f"caller {number}", frozenset())).count("/a")
    assert len(limits._usages) < 130
    with pytest.raises(TooManyRequests):
        use(limits, Caller("caller 499", frozenset())).count("/a")


def test_a_caller_with_a_running_request_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its long poll keeps its place, even if the caller has sent nothing else for many periods."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("api.security.limits._FIRST_CLEAN_UP", 10)
    limits = CallerLimits("1/second", 1)
    use(limits, ANNA).take_place()
    for number in range(50):
        now += 1.0
        use(limits, Caller(f"caller {number}", frozenset())).count("/a")
    with pytest.raises(TooManyRequests):
        use(limits, ANNA).take_place()


def test_failed_logins_count_for_an_address_or_a_network_of_ipv6() -> None:
    """Another address has its own count. All addresses of one IPv6 network have one.

    An IPv4 address has the same count if a socket for both versions shows it as an IPv6 address.
    """
    failed = FailedLogins("2/minute")
    for address in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "2001:db8::1", "2001:db8::2"):
        failed.count(address)

    for address in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::3"):
        with pytest.raises(TooManyRequests):
            failed.require_room(address)
    for address in ("10.0.0.2", "::ffff:10.0.0.2", "2001:db8:0:1::1", "testclient", ""):
        failed.require_room(address)
