"""A member with its clients: how it joins and leaves, and gets new clients."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import KafkaError, TopicPartition

from services.interactive_queries import membership as module
from services.interactive_queries.membership import GroupMembership
from services.settings import Settings
from tests.support.clusters import URL, description, member
from tests.unit.services.interactive_queries.coordinator_answers import OTHER, PLACE, Clock, answer


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
