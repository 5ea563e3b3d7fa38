"""Members of the group with a real coordinator. No test can wait for the end of a session, which lasts 25 minutes."""

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID, uuid4

import pytest
from confluent_kafka.admin import NewTopic

from schemas.topics import POS_INVOICES, SHIPMENT, Topic
from services.interactive_queries.group import successors
from services.interactive_queries.membership import GroupMembership
from services.messaging import clients
from services.settings import Settings
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("topics_created")

URL, OTHER, THIRD = (f"http://127.0.0.1:{port}" for port in (1, 2, 3))


# Kafka accepts no session timeout above 30 minutes (group.max.session.timeout.ms).
_SESSION_MS = 25 * 60_000


class Group:
    """The members of the API's group, which distributes the partitions of one topic."""

    def __init__(self, settings: Settings, ends: ExitStack) -> None:
        self._settings, self._ends = settings, ends

    def join(self, url: str, copies: UUID | None, *topics: Topic) -> GroupMembership:
        membership = GroupMembership(self._settings, url, copies)
        self._ends.callback(membership.leave)
        names = [self._settings.name_of(topic) for topic in topics or (POS_INVOICES,)]
        membership.join(dict.fromkeys(names, self._settings.partitions))
        return membership

    def kill(self, url: str, copies: UUID) -> None:
        """Join as a process that is killed as soon as it has its partitions. The coordinator keeps the member."""
        killed = GroupMembership(self._settings, url, copies)
        killed._topics = {self._settings.name_of(POS_INVOICES): self._settings.partitions}
        consumer = killed._consumer()
        wait_for("its partitions", lambda: (consumer.poll(0), killed.owned)[1])
        consumer.close()  # a static member that only closes does not leave

    def wait_for_the_only_owner(self, membership: GroupMembership) -> None:
        count = self._settings.partitions
        wait_for("all partitions", lambda: membership.lease_holds and len(membership.owned) == count)

    def wait_for_shares(self, *memberships: GroupMembership) -> None:
        """Wait until each of these members has a share, and knows that nobody else has one."""

        def is_shared() -> bool:
            owned = [membership.owned for membership in memberships]
            views = [membership.view for membership in memberships]
            return (
                all(membership.lease_holds for membership in memberships)
                and all(owned)
                and sum(map(len, owned)) == self._settings.partitions
                and all(view and view.stable and len(view.members) == len(memberships) for view in views)
            )

        wait_for(f"{len(memberships)} members that share all partitions", is_shared)


@pytest.fixture
def group(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    options = clients.member_options
    long = {"session.timeout.ms": _SESSION_MS, "max.poll.interval.ms": _SESSION_MS}
    monkeypatch.setattr(clients, "member_options", lambda *arguments: options(*arguments) | long)
    with ExitStack() as ends:
        yield Group(settings, ends)


def test_a_process_with_the_same_copies_gets_the_partitions_at_once(group: Group) -> None:
    """The former process is killed. If it is alive, because two processes use copies of one directory, both share."""
    copies = uuid4()
    former = group.join(URL, copies)
    group.wait_for_the_only_owner(former)

    current = group.join(URL, copies)

    group.wait_for_the_only_owner(current)
    group.wait_for_shares(former, current)


def test_an_instance_that_leaves_hands_over_its_partitions_at_once(group: Group) -> None:
    """Kafka keeps a static member until its session ends, unless the member leaves the group."""
    leaving, staying = group.join(URL, uuid4()), group.join(OTHER, uuid4())
    group.wait_for_shares(leaving, staying)

    leaving.leave()

    group.wait_for_the_only_owner(staying)


@pytest.mark.parametrize("is_listed", [False, True])
def test_an_instance_that_leaves_while_it_joins_keeps_no_partition(group: Group, *, is_listed: bool) -> None:
    """It leaves at once, or when it is a member, but may have no partition yet."""
    staying = group.join(URL, uuid4())
    group.wait_for_the_only_owner(staying)
    joining = group.join(OTHER, uuid4())
    if is_listed:
        wait_for("the member", lambda: staying.view and OTHER in staying.view.urls)

    joining.leave()

    group.wait_for_the_only_owner(staying)


def test_a_group_whose_leader_has_restarted_still_rebalances(group: Group) -> None:
    """The restarted leader does not know that it is the leader, because librdkafka's JoinGroup cannot say so."""
    copies = uuid4()
    group.kill(URL, copies)  # the first member is the leader
    leader = group.join(URL, copies)
    group.wait_for_the_only_owner(leader)

    second, third = group.join(OTHER, uuid4()), group.join(THIRD, uuid4())
    group.wait_for_shares(leader, second, third)
    third.leave()
    group.wait_for_shares(leader, second)
    leader.leave()
    group.wait_for_the_only_owner(second)


def test_static_and_dynamic_members_share_the_partitions(group: Group) -> None:
    """During an upgrade, the instances of the former release are dynamic members. So are those with memory stores."""
    dynamic, static = group.join(URL, None), group.join(OTHER, uuid4())
    group.wait_for_shares(dynamic, static)

    dynamic.leave()
    group.wait_for_the_only_owner(static)
    returned = group.join(URL, None)
    group.wait_for_shares(returned, static)
    static.leave()

    group.wait_for_the_only_owner(returned)


def test_a_killed_instance_gets_the_partitions_of_a_new_topic(group: Group) -> None:
    """The coordinator gives a static member its former partitions only. So the new process is another member."""
    copies = uuid4()
    former = group.join(URL, copies)
    group.wait_for_the_only_owner(former)

    current = group.join(URL, copies, POS_INVOICES, SHIPMENT)

    old = former.partitions[0][0]
    wait_for("a partition of the new topic", lambda: any(topic != old for topic, _ in current.owned))


@pytest.fixture
def six_partitions(settings: Settings) -> Iterator[str]:
    """The name of a topic with six partitions."""
    name, client = f"{settings.topic_prefix}six", clients.admin(settings)
    client.create_topics([NewTopic(name, 6, 1)])[name].result()
    yield name
    client.delete_topics([name])[name].result()


def test_the_first_standbys_are_the_next_owners(settings: Settings, six_partitions: str) -> None:
    """Each of three members owns two partitions. The prediction must hold for both partitions of one that leaves."""
    with ExitStack() as ends:
        members = [GroupMembership(settings, url, uuid4()) for url in (URL, OTHER, THIRD)]
        for each in members:
            ends.callback(each.leave)
            each.join({six_partitions: 6})
        wait_for("equal shares", lambda: all(each.lease_holds and len(each.owned) == 2 for each in members))
        departing, *staying = members
        wait_for("a complete view", lambda: (view := staying[0].view) and view.covers(staying[0].partitions))
        view = staying[0].view
        assert view
        predicted = successors(view, next(each for each in view.members if each.url == departing.url))

        departing.leave()
        wait_for("new owners", lambda: sum(len(each.owned) for each in staying) == 6)

        actual = {partition: each.url for each in staying for partition in each.owned}
        assert predicted == {partition: actual[partition] for partition in predicted}
