"""Members of the group with a real coordinator. No test can wait for the end of a session, which lasts 25 minutes."""

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID, uuid4

import pytest

from schemas.topics import POS_INVOICES
from services.interactive_queries.membership import GroupMembership
from services.messaging import clients
from services.settings import Settings
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("topics_created")

URL, OTHER = "http://127.0.0.1:1", "http://127.0.0.1:2"


# Kafka accepts no session timeout above 30 minutes (group.max.session.timeout.ms).
_SESSION_MS = 25 * 60_000


class Group:
    """The members of the API's group, which distributes the partitions of one topic."""

    def __init__(self, settings: Settings, ends: ExitStack) -> None:
        self._settings, self._ends = settings, ends

    def join(self, url: str, copies: UUID) -> GroupMembership:
        membership = GroupMembership(self._settings, url, copies)
        self._ends.callback(membership.leave)
        membership.join({self._settings.name_of(POS_INVOICES): self._settings.partitions})
        return membership

    def wait_for_the_only_owner(self, membership: GroupMembership) -> None:
        count = self._settings.partitions
        wait_for("all partitions", lambda: membership.lease_holds and len(membership.owned) == count)


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
    both = (former, current)
    wait_for("the end of the former member", lambda: not former.owned & current.owned)
    wait_for("a share of each", lambda: all(each.lease_holds and each.owned for each in both))
    assert not former.owned & current.owned


def test_an_instance_that_leaves_hands_over_its_partitions_at_once(group: Group) -> None:
    """Kafka keeps a static member until its session ends, unless the member leaves the group."""
    leaving, staying = group.join(URL, uuid4()), group.join(OTHER, uuid4())
    wait_for("a share of each", lambda: all(each.lease_holds and each.owned for each in (leaving, staying)))

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
