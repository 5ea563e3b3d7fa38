"""The lease of a member. Tests with a coordinator are in tests/integration."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from services.errors import SettingsError
from services.interactive_queries import membership as module
from services.interactive_queries.membership import GroupMembership
from services.messaging.clients import LOST_SECONDS
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


@pytest.mark.parametrize("url", ["http://10.0.0.1:99999", "http://10.0.0.1:0", "http://[fe80::1%eth0]:8080"])
def test_an_instance_with_a_url_that_peers_ignore_does_not_start(url: str) -> None:
    """Its partitions would have no owner."""
    with pytest.raises(SettingsError, match=r"^LOYALTY_APPLICATION_SERVER: "):
        GroupMembership(Settings(), url)


def test_each_deployment_of_a_cluster_has_its_own_group() -> None:
    """Otherwise an instance would own partitions of topics that it does not read."""
    assert "test-loyalty-api" == GroupMembership(Settings(topic_prefix="test-"), URL).group


def answer(result: Any) -> "Future[Any]":
    """The future of a result, an error, or None for no response yet."""
    future: Future[Any] = Future()
    if result is None:
        return future
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


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


class Broker:
    """The clients of one member. After some polls it is told to leave, as a signal handler does.

    Attributes:
        seen: whether the partition is owned and whether the lease holds: before the member is told to leave, and when
            the group learns that it leaves.
        questions: how often the member has asked for the view.
    """

    def __init__(self, membership: GroupMembership) -> None:
        self._membership = membership
        self._polls = 0
        self.unsubscribed_at: int | None = None
        self.has_left = False
        self.closed = threading.Event()
        self.questions = 0
        self.seen: list[tuple[bool, bool]] = []

    def subscribe(self, _: list[str], on_assign: Callable[[Any, list[TopicPartition]], None], **__: object) -> None:
        self._on_assign = on_assign

    def incremental_assign(self, _: object) -> None: ...

    def pause(self, _: object) -> None: ...

    def memberid(self) -> str:
        return "" if self.has_left else f"{URL}-1"

    def unsubscribe(self) -> None:
        self.look()
        self.unsubscribed_at = self._polls

    def describe_consumer_groups(self, groups: list[str], **_: object) -> dict[str, "Future[Any]"]:
        self.questions += 1
        return {group: answer(description(member(URL, [PLACE]))) for group in groups}

    def poll(self, _: float) -> Any:
        self._polls += 1
        self.has_left = self.unsubscribed_at is not None and self._polls >= self.unsubscribed_at + 2
        if self._polls == 1:
            self._on_assign(self, [TopicPartition(*PLACE)])
        if self._polls == 5:
            self.look()
            self._membership.begin_to_leave()

    def close(self) -> None:
        self.left_before_close = self.has_left
        self.closed.set()

    def look(self) -> None:
        self.seen.append((PLACE in self._membership.owned, self._membership.lease_holds))


def test_a_member_that_leaves_owns_nothing_before_the_group_knows(
    membership: GroupMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner may write at once. A request that still runs here must not be answered as by the owner."""
    broker, changes = Broker(membership), []
    monkeypatch.setattr(module.clients, "consumer", lambda *_, **__: broker)
    monkeypatch.setattr(module.clients, "admin", lambda *_: broker)
    membership.on_change(lambda: changes.append(PLACE in membership.owned))

    for _ in range(2):  # the second call does nothing
        membership.join({PLACE[0]: 6})
    assert broker.closed.wait(60)
    membership.leave()

    assert [(True, True), (False, False)] == broker.seen
    assert 1 == broker.questions, "the clock stands still"
    assert [(PLACE[0], number) for number in range(6)] == membership.partitions
    assert broker.left_before_close
    assert not changes[-1]


@pytest.mark.parametrize(("copies", "before"), [(uuid4(), [True]), (None, [False])], ids=["static", "dynamic"])
def test_a_static_member_that_joins_gets_its_id_before_it_leaves(
    clock: Clock,  # noqa: ARG001  # in its place
    monkeypatch: pytest.MonkeyPatch,
    copies: UUID | None,
    before: list[bool],
) -> None:
    """Without its id it cannot leave, and Kafka would give it partitions. Kafka forgets a dynamic member that joins."""
    membership, found = GroupMembership(Settings(), URL, copies), list[bool]()

    class Joining(Broker):
        def memberid(self) -> str:
            return super().memberid() if self._polls > 7 else ""

        def unsubscribe(self) -> None:
            found.append(bool(self.memberid()))
            super().unsubscribe()

    broker = Joining(membership)
    monkeypatch.setattr(module.clients, "consumer", lambda *_, **__: broker)
    monkeypatch.setattr(module.clients, "admin", lambda *_: broker)
    membership.join({PLACE[0]: 6})
    assert broker.closed.wait(60)
    membership.leave()
    assert before == found


def test_a_member_without_a_broker_leaves_after_some_seconds(
    membership: GroupMembership, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the process would not end. The group knows when the call returns, if it can."""

    class Unreachable(Broker):
        def memberid(self) -> str:
            return f"{URL}-1"

        def poll(self, seconds: float) -> None:
            clock.now += seconds
            super().poll(seconds)

    broker = Unreachable(membership)
    monkeypatch.setattr(module.clients, "consumer", lambda *_, **__: broker)
    monkeypatch.setattr(module.clients, "admin", lambda *_: broker)
    membership.join({PLACE[0]: 6})
    membership.leave()
    assert broker.closed.is_set()


def test_a_member_that_has_left_does_not_join(membership: GroupMembership) -> None:
    """A signal can come while the instance still creates its topics. It is no failure of the member."""
    assert membership.alive, "it has not started yet"
    membership.begin_to_leave()
    membership.join({PLACE[0]: 6})
    membership.leave()
    assert membership._thread.ident is None
    assert membership.alive


@pytest.mark.parametrize(("code", "is_fatal"), [(KafkaError._FATAL, True), (KafkaError._TRANSPORT, False)])
def test_a_fenced_member_joins_again_as_another_one(
    clock: Clock,  # noqa: ARG001  # in its place
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    *,
    is_fatal: bool,
) -> None:
    """A broker that hung can fence a member with its own old requests. Other errors pass without a new client."""
    membership, names = GroupMembership(Settings(), URL, uuid4()), list[object]()
    changes: list[tuple[bool, bool]] = []

    class Message:
        def error(self) -> KafkaError:
            return KafkaError(code)

    class Fenced(Broker):
        def poll(self, seconds: float) -> Any:
            super().poll(seconds)
            return Message() if self._polls == 2 else None

    broker, replacement = Fenced(membership), Broker(membership)
    brokers = iter([broker, replacement])

    def consumer(*_: object, **options: object) -> Broker:
        names.append(options["group.instance.id"])
        return next(brokers)

    monkeypatch.setattr(module.clients, "consumer", consumer)
    monkeypatch.setattr(module.clients, "admin", lambda *_: broker)
    membership.on_change(lambda: changes.append((PLACE in membership.owned, membership.lease_holds)))
    membership.join({PLACE[0]: 6})
    assert (replacement if is_fatal else broker).closed.wait(60)
    membership.leave()

    assert broker.closed.is_set()
    if is_fatal:
        lost = changes.index((False, False))
        assert any(owned for owned, _ in changes[lost:]), "and then it gets partitions as another member"
        assert 2 == len({*names})


def test_a_process_with_the_same_copies_is_the_same_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it gets its partitions back at once. The coordinator keeps the former URL and partitions of a member."""
    options: list[Any] = []

    def consumer(_: Settings, __: str, **overrides: object) -> Broker:
        assert "cooperative-sticky" == overrides["partition.assignment.strategy"], "the callbacks are incremental"
        options.append(overrides.get("group.instance.id"))
        return Broker(GroupMembership(Settings(), URL))

    monkeypatch.setattr(module.clients, "consumer", consumer)
    first, second = uuid4(), uuid4()
    for url, copies, count in ((URL, first, 6), (URL, first, 6), (OTHER, first, 6), (URL, second, 6), (URL, first, 7)):
        membership = GroupMembership(Settings(), url, copies)
        membership._topics = {PLACE[0]: count}
        membership._consumer()
    GroupMembership(Settings(), URL)._consumer()

    assert options[0] == options[1]
    assert 4 == len({*options[:5]})
    assert options[5] is None


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_member_with_a_new_client_owns_nothing(
    membership: GroupMembership, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """The former client has lost all brokers, so the group may have given its partitions away. If it has not lost them,
    it still has its partitions, and would not get them again.
    """

    class Client(Broker):
        def poll(self, _: float) -> None:
            self.look()
            self.has_left = membership._leaving.is_set()
            membership.begin_to_leave()

    class Assigned(Client):
        def poll(self, seconds: float) -> None:
            if not self.seen:
                self._on_assign(self, [TopicPartition(*PLACE)])
                self.look()
            else:
                super().poll(seconds)

    broker, doubts = Assigned(membership), iter([False, True])
    client = Client(membership) if is_lost else broker
    monkeypatch.setattr(membership, "_is_in_doubt_for_long", lambda: next(doubts))
    monkeypatch.setattr(module.clients, "replaced_if_lost", lambda *_: client)
    monkeypatch.setattr(module.clients, "consumer", lambda *_, **__: broker)
    monkeypatch.setattr(module.clients, "admin", lambda *_: broker)

    membership.join({PLACE[0]: 6})
    assert client.closed.wait(60)
    membership.leave()

    assert [True, not is_lost, False] == [owned for owned, _ in (broker.seen[0], client.seen[-3], client.seen[-2])]


def test_an_admin_client_without_responses_is_replaced(
    membership: GroupMembership, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the lease would never hold again. librdkafka can end the process after a request has timed out, so the
    client must be replaced long before that.
    """
    timeouts = []

    class Silent(Broker):
        def describe_consumer_groups(self, groups: list[str], **options: Any) -> dict[str, "Future[Any]"]:
            timeouts.append(options["request_timeout"])
            clock.now += module._BROKER_SECONDS + 1
            return {group: answer(None) for group in groups}

    broker = Broker(membership)
    admins = iter([Silent(membership), broker])
    monkeypatch.setattr(module.clients, "consumer", lambda *_, **__: broker)
    monkeypatch.setattr(module.clients, "admin", lambda *_: next(admins))

    membership.join({PLACE[0]: 6})
    assert broker.closed.wait(60)
    membership.leave()

    assert (True, True) == broker.seen[0]
    assert timeouts[0] > 100 * module._BROKER_SECONDS


def test_a_pause_during_the_question_does_not_extend_the_lease(
    membership: GroupMembership, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator answers before the pause of a minute, and gives the partitions away during the pause."""
    start, leases = clock.now, list[bool]()

    class Paused(Broker):
        def describe_consumer_groups(self, groups: list[str], **_: object) -> dict[str, "Future[Any]"]:
            answers = super().describe_consumer_groups(groups)
            clock.now = start + 60
            return answers

    broker = Paused(membership)
    monkeypatch.setattr(module.clients, "has_lost_all_brokers", lambda *_: False)
    monkeypatch.setattr(module.clients, "consumer", lambda *_, **__: broker)
    monkeypatch.setattr(module.clients, "admin", lambda *_: broker)
    membership.on_change(lambda: leases.append(membership.view is not None and membership.lease_holds))

    membership.join({PLACE[0]: 6})
    assert broker.closed.wait(60)
    membership.leave()

    assert (True, True) == broker.seen[0], "the next answer confirms the lease"
    assert {False} == set(leases)
