"""The limits of one caller."""

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
