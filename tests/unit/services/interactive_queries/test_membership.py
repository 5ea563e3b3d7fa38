"""The lease on what the group has given; the coordinator's part is in tests/integration."""

from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from services.interactive_queries import membership as module
from services.interactive_queries.membership import GroupMembership
from services.settings import Settings
from tests.support.clusters import URL, description, member

PLACE = ("loyalty-balances", 1)
OTHER = "http://10.0.0.2:8080"
SESSION_SECONDS = Settings().session_timeout.total_seconds()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "boot_seconds", found)
    return found


@pytest.fixture
def membership(clock: Clock) -> GroupMembership:  # noqa: ARG001  # in its place
    return GroupMembership(Settings(), URL)


def answer(result: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def test_the_lease_runs_from_when_the_coordinator_was_asked(membership: GroupMembership, clock: Clock) -> None:
    """Half of the session, however late the answer is looked at: a suspended process gains nothing by it."""
    assert not membership.lease_holds
    group = answer(description(member(URL, [PLACE])))
    membership._update_view(clock.now, group, f"{URL}-1")
    assert membership.lease_holds

    clock.now += SESSION_SECONDS / 2 - 0.01
    assert membership.lease_holds
    clock.now += 0.01
    assert not membership.lease_holds
    membership._update_view(1000.0, group, f"{URL}-1")
    assert not membership.lease_holds


@pytest.mark.parametrize(
    "result",
    [
        description(member(OTHER, [PLACE])),  # expelled
        description(member(URL, [PLACE], "former")),  # in it under an id of before
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
    ],
)
def test_nobody_else_s_word_renews_it(membership: GroupMembership, clock: Clock, result: Any) -> None:
    """Only a description that names this very member does."""
    membership._update_view(clock.now, answer(result), f"{URL}-1")

    assert not membership.lease_holds


class Group:
    """What the callbacks ask of a consumer, and what was owned when they did."""

    def __init__(self, membership: GroupMembership) -> None:
        self._membership = membership
        self.calls: list[tuple[str, bool]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda _: self.calls.append((name, PLACE in self._membership.owned))


@pytest.mark.parametrize("callback", ["_revoked", "_lost"])
def test_what_is_given_up_is_owned_no_more_before_the_group_hears_of_it(
    membership: GroupMembership, callback: str
) -> None:
    """Else two instances could own it; what is given is paused at once, as this member reads nothing."""
    group, changes = Group(membership), []
    membership.on_change(lambda: changes.append(PLACE in membership.owned))
    partitions = [TopicPartition(*PLACE)]

    membership._assigned(cast(Consumer, group), partitions)
    assert [("incremental_assign", False), ("pause", False)] == group.calls
    getattr(membership, callback)(group, partitions)

    assert ("incremental_unassign", False) == group.calls[-1]
    assert [True, False] == changes
