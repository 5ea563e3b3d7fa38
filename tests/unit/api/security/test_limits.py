"""The limits of one caller."""

import time

import pytest

from api.security.caller import Caller
from api.security.limits import CallerLimits
from api.security.problems import TooManyRequests

ANNA, BERTA = Caller("anna", frozenset()), Caller("berta", frozenset())


def test_a_flood_of_one_caller_leaves_the_others_alone() -> None:
    """Each caller has its own count for each route. The problem says when to come back."""
    limits = CallerLimits("3/minute", 10)
    for _ in range(3):
        limits.count(ANNA, "/a")

    with pytest.raises(TooManyRequests) as refused:
        limits.count(ANNA, "/a")
    assert 1 <= (refused.value.retry_after or 0) <= 61
    limits.count(ANNA, "/b")
    limits.count(BERTA, "/a")


def test_requests_in_work_have_places() -> None:
    """A place is free again when its request ends. Forwarded requests were counted by another instance."""
    limits = CallerLimits("3/minute", 2)
    forwarded = Caller("anna", frozenset(), is_forwarded=True)
    limits.take_place(ANNA)
    limits.take_place(ANNA)

    with pytest.raises(TooManyRequests):
        limits.take_place(ANNA)
    limits.take_place(BERTA)
    for _ in range(9):
        limits.take_place(forwarded)
        limits.count(forwarded, "/a")
    limits.leave_place(forwarded)
    limits.leave_place(ANNA)
    limits.take_place(ANNA)


def test_the_window_slides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of the last period fade. No period of the given length lets through more than its limit and a half."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limits = CallerLimits("10/second", 1)

    def accepted() -> int:
        for number in range(20):
            try:
                limits.count(ANNA, "/a")
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


def test_idle_callers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory does not grow with callers that came once. A caller of this moment stays counted."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("api.security.limits._FIRST_CLEAN_UP", 100)
    limits = CallerLimits("1/second", 1)
    for number in range(500):
        now += 0.1
        limits.count(Caller(f"caller {number}", frozenset()), "/a")
    assert len(limits._windows) < 130
    with pytest.raises(TooManyRequests):
        limits.count(Caller("caller 499", frozenset()), "/a")
