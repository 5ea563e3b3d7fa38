"""The group, the lease and the partitions of a member. Tests with a coordinator are in tests/integration."""

from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from services.errors import SettingsError
from services.interactive_queries import membership as module
from services.interactive_queries.membership import GroupMembership
from services.messaging.clients import LOST_SECONDS
from services.settings import Settings
from tests.support.clusters import URL, description, member
from tests.unit.services.interactive_queries.coordinator_answers import OTHER, PLACE, Clock, answer

SESSION_SECONDS = Settings().session_timeout.total_seconds()


@pytest.mark.parametrize("url", ["http://10.0.0.1:99999", "http://10.0.0.1:0", "http://[fe80::1%eth0]:8080"])
def test_an_instance_with_a_url_that_peers_ignore_does_not_start(url: str) -> None:
    """Its partitions would have no owner."""
    with pytest.raises(SettingsError, match=r"^LOYALTY_APPLICATION_SERVER: "):
        GroupMembership(Settings(), url)


def test_each_deployment_of_a_cluster_has_its_own_group() -> None:
    """Otherwise an instance would own partitions of topics that it does not read."""
    assert "test-loyalty-api" == GroupMembership(Settings(topic_prefix="test-"), URL).group


def test_the_error_of_the_group_ends_when_the_group_has_the_member(membership: GroupMembership, clock: Clock) -> None:
    """Until then it stays, also if the group describes itself."""
    membership.error = "JoinGroup failed"
    membership._update_view(clock.now, answer(description(member(OTHER, [PLACE]))), "")
    assert "JoinGroup failed" == membership.error
    membership._update_view(clock.now, answer(description(member(URL, [PLACE]))), f"{URL}-1")
    assert membership.error is None


def test_each_change_of_the_group_is_announced_once(membership: GroupMembership, clock: Clock) -> None:
    """Waiting requests then look for the owner again. The end of a rebalance is a change."""
    seen: list[int] = []
    membership.on_change(lambda: seen.append(len(membership.view.urls) if membership.view else 0))
    for urls in ([URL], [URL], [URL, OTHER], [URL, OTHER], [OTHER]):
        for stable in (True, True, False, False):
            group = description(*(member(url, []) for url in urls), stable=stable)
            membership._update_view(clock.now, answer(group), f"{URL}-1")
            clock.now += 1
    assert [1, 1, 1, 1, 2, 2, 2, 2, 1, 1] == seen


def test_the_lease_starts_when_the_coordinator_is_asked(membership: GroupMembership, clock: Clock) -> None:
    """It lasts half of the session timeout, also if the answer is read late, for example after a suspend."""
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
        description(member(OTHER, [PLACE])),  # removed from the group
        description(member(URL, [PLACE], "former")),  # in the group with an old member id
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
        None,
    ],
)
def test_other_answers_do_not_renew_the_lease(membership: GroupMembership, clock: Clock, result: Any) -> None:
    """Only a description that lists this member id renews the lease."""
    membership._update_view(clock.now, answer(result), f"{URL}-1")

    assert not membership.lease_holds


@pytest.mark.parametrize("stable", [True, False])
def test_the_lease_ends_when_the_group_has_removed_the_member(
    membership: GroupMembership, clock: Clock, *, stable: bool
) -> None:
    """Another member may own its partitions already, or may own them before the next description."""
    membership._update_view(clock.now, answer(description(member(URL, [PLACE]))), f"{URL}-1")

    membership._update_view(clock.now, answer(description(member(OTHER, [PLACE]), stable=stable)), f"{URL}-1")

    assert not membership.lease_holds


def test_a_rebalance_does_not_end_the_lease_of_a_member(membership: GroupMembership, clock: Clock) -> None:
    """During a rebalance the coordinator lists the members without their partitions. The next question comes soon."""
    membership._update_view(clock.now, answer(description(member(URL, [PLACE]))), f"{URL}-1")
    found = []
    for membership._next_refresh in (clock.now + 1, 0.0):
        membership._update_view(clock.now, answer(description(member(URL, []), stable=False)), f"{URL}-1")
        found.append(membership._next_refresh)

    assert membership.lease_holds
    assert membership.view is not None
    assert f"{URL}-1" == membership.member_id == membership.view.owners[PLACE].member_id
    assert [clock.now + module._REBALANCE_REFRESH_SECONDS, 0.0] == found


def test_the_log_says_once_that_the_coordinator_does_not_answer(membership: GroupMembership, clock: Clock) -> None:
    """And once that it answers again. The instance asks each second."""
    group = description(member(URL, [PLACE]))
    with capture_logs() as logs:
        for result in (group, None, KafkaException(KafkaError(KafkaError._TIMED_OUT)), group, group, None):
            membership._update_view(clock.now, answer(result), f"{URL}-1")
    expected = [("warning", "no response"), ("info", None), ("warning", "no response")]
    assert expected == [(line["log_level"], line.get("error")) for line in logs]


class Group:
    """The consumer of the callbacks. It notes what is owned at each of their calls."""

    def __init__(self, membership: GroupMembership) -> None:
        self._membership = membership
        self.calls: list[tuple[str, bool]] = []
        self.offsets: list[int] = []

    def __getattr__(self, name: str) -> Any:
        def call(partitions: list[TopicPartition]) -> None:
            self.calls.append((name, PLACE in self._membership.owned))
            self.offsets += [each.offset for each in partitions]

        return call


@pytest.mark.parametrize("callback", ["_revoked", "_lost"])
def test_ownership_ends_before_the_group_knows(membership: GroupMembership, callback: str) -> None:
    """Otherwise two instances could own a partition. Assigned partitions are paused: this member reads nothing."""
    group, changes = Group(membership), []
    membership.on_change(lambda: changes.append(PLACE in membership.owned))
    partitions = [TopicPartition(*PLACE)]

    membership._assigned(cast(Consumer, group), partitions)
    assert [("incremental_assign", False), ("pause", False)] == group.calls
    assert [OFFSET_END] * 2 == group.offsets
    getattr(membership, callback)(group, partitions)

    assert ("incremental_unassign", False) == group.calls[-1]
    assert [True, False] == changes


@pytest.mark.parametrize("callback", ["_revoked", "_lost"])
def test_the_group_gives_and_takes_single_partitions(membership: GroupMembership, clock: Clock, callback: str) -> None:
    """The others stay. A partition that comes back has a new time, because another instance may have owned it."""
    group, second = cast(Consumer, Group(membership)), (PLACE[0], 2)
    for place in (PLACE, second):
        membership._next_refresh = clock.now + 1
        membership._assigned(group, [TopicPartition(*place)])
        assert 0.0 == membership._next_refresh, "the other members must know the new owner"
        clock.now += 5
    assert {PLACE, second} == membership.owned
    getattr(membership, callback)(group, [TopicPartition(*PLACE)])
    assert {second} == membership.owned
    membership._assigned(group, [TopicPartition(*PLACE)])
    assert {PLACE: 1010.0, second: 1005.0} == membership.assigned_at


def test_a_member_is_in_doubt_only_after_a_long_time_without_its_lease(
    membership: GroupMembership, clock: Clock
) -> None:
    """A lease that holds in between starts the time again, and so does the doubt."""
    found = [membership._is_in_doubt_for_long()]
    membership._confirmed_at = clock.now
    found.append(membership._is_in_doubt_for_long())
    clock.now += SESSION_SECONDS
    found.append(membership._is_in_doubt_for_long())
    for seconds in (LOST_SECONDS - 1, 1, LOST_SECONDS):
        clock.now += seconds
        found.append(membership._is_in_doubt_for_long())
    assert [False, False, False, False, True, False] == found
