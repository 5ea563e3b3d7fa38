"""The partitions that an instance holds, from the view of the group and the reports of its peers."""

from typing import cast

import pytest

from services.interactive_queries.assignment import GroupAssignment
from services.interactive_queries.group import GroupView, view_of
from services.interactive_queries.membership import GroupMembership
from services.interactive_queries.reports import HeldPartition, InstanceReport, PeerReports
from services.state_stores.assignment import ChangelogPartition, Role
from tests.support.clusters import URL, FixedMembership, description, member, view

OTHER, THIRD = "http://10.0.0.2:8080", "http://10.0.0.3:8080"
BALANCES, SALES = "loyalty-balances", "store-sales"
PLACES: list[ChangelogPartition] = [(BALANCES, number) for number in range(3)]
TOPICS = {BALANCES: 3, SALES: 3}


class Member(FixedMembership):
    """A membership that notes the topics that it joins."""

    partitions = PLACES
    joined: dict[str, int] | None = None

    @property
    def member_id(self) -> str:
        return f"{self.url}-1"

    def join(self, topics: dict[str, int]) -> None:
        self.joined = topics


@pytest.fixture
def membership() -> Member:
    return Member()


@pytest.fixture
def reports() -> PeerReports:
    return PeerReports()


def new_assignment(
    membership: Member, reports: PeerReports, standbys: int = 0, on_disk: tuple[ChangelogPartition, ...] = ()
) -> GroupAssignment:
    stores = {BALANCES: ["customer-balances", "top-customers"], SALES: ["store-sales"]}
    assignment = GroupAssignment(cast(GroupMembership, membership), reports, standbys, frozenset(on_disk), stores)
    assignment.attach(TOPICS)
    return assignment


def serves(url: str, *held: tuple[str, int], role: Role = Role.ACTIVE) -> InstanceReport:
    partitions = [
        HeldPartition(store=store, partition=number, role=role, restored=True, position=5, end_offset=5, lag=0)
        for store, number in held
    ]
    return InstanceReport(url=url, group="loyalty-api", partitions=tuple(partitions))


def numbers(holdings: dict[ChangelogPartition, Role], role: Role, topic: str = BALANCES) -> list[int]:
    return sorted(number for (name, number), held in holdings.items() if (name, held) == (topic, role))


def test_the_owner_of_a_representative_owns_copartitioned_topics(membership: Member, reports: PeerReports) -> None:
    """The group distributes only the representative. Its owner also owns equal partitions of the other topics."""
    membership.owned = frozenset(PLACES[:1])

    holdings = dict(new_assignment(membership, reports).holdings([]))

    assert {BALANCES: 3} == membership.joined
    assert {(BALANCES, 0): Role.ACTIVE, (SALES, 0): Role.ACTIVE} == holdings


def test_a_partition_that_came_back_is_a_standby_for_one_call(membership: Member, reports: PeerReports) -> None:
    """Another instance may have owned it in between. So the materialiser must ask again which records exist."""
    membership.owned, membership.assigned_at = frozenset(PLACES[:2]), {PLACES[0]: 1.0, PLACES[1]: 1.0}
    assignment = new_assignment(membership, reports)
    assert [0, 1] == numbers(dict(assignment.holdings([])), Role.ACTIVE)

    membership.assigned_at = {PLACES[0]: 1.0, PLACES[1]: 2.0}
    holdings = dict(assignment.holdings(PLACES[:2]))

    for topic in TOPICS:
        assert ([0], [1]) == (numbers(holdings, Role.ACTIVE, topic), numbers(holdings, Role.STANDBY, topic))
    assert [0, 1] == numbers(dict(assignment.holdings(PLACES[:2])), Role.ACTIVE)


def test_standbys_are_held(membership: Member, reports: PeerReports) -> None:
    """With one standby and two instances, each holds all partitions: its own as owner, the others as standby."""
    membership.owned, membership.view = frozenset(PLACES[:1]), view({URL: PLACES[:1], OTHER: PLACES[1:]})

    holdings = dict(new_assignment(membership, reports, standbys=1).holdings([]))

    assert [0] == numbers(holdings, Role.ACTIVE)
    assert [1, 2] == numbers(holdings, Role.STANDBY)
    assert [1, 2] == numbers(holdings, Role.STANDBY, SALES)


def test_no_standby_is_closed_during_a_rebalance(membership: Member, reports: PeerReports) -> None:
    """An unstable view, or one in which a partition has no owner, changes no standby."""
    membership.view = view({URL: [], OTHER: PLACES})
    assignment = new_assignment(membership, reports, standbys=1)
    before = assignment.holdings([])

    membership.view = view({OTHER: PLACES[1:]})  # this instance is not in the view
    assert before == assignment.holdings([])
    membership.view = view_of(description(member(OTHER, []), stable=False), 1.0, None)
    assert before == assignment.holdings([])


@pytest.mark.parametrize(
    ("report", "kept"),
    [
        (None, True),  # the new owner has sent no report
        (serves(OTHER), True),  # it has not opened the partition
        (serves(OTHER, ("customer-balances", 1), ("top-customers", 1), role=Role.STANDBY), True),  # it restores
        (serves(OTHER, ("customer-balances", 1)), True),  # it has only one of the two stores of the topic
        (serves(OTHER, ("customer-balances", 1), ("top-customers", 1)), False),
    ],
)
def test_a_copy_stays_until_the_new_owner_serves(
    membership: Member,
    reports: PeerReports,
    report: InstanceReport | None,
    kept: bool,  # noqa: FBT001
) -> None:
    """So a partition that moves can always be read from an instance."""
    membership.owned, membership.view = frozenset(PLACES[:1]), view({URL: PLACES[:1], OTHER: PLACES[1:]})
    if report:
        reports.note(report)

    holdings = new_assignment(membership, reports).holdings([PLACES[0], PLACES[1]])

    assert kept == (PLACES[1] in holdings)
    assert holdings[PLACES[0]] is Role.ACTIVE


def test_local_data_are_held_until_the_group_has_settled(membership: Member, reports: PeerReports) -> None:
    """A restarted instance serves from its copies while its former member is still in the group."""
    assignment = new_assignment(membership, reports, on_disk=(PLACES[0], PLACES[2], (BALANCES, 9)))
    assert [0, 2] == numbers(dict(assignment.holdings([])), Role.STANDBY)
    assert not assignment.settled

    membership.owned, membership.view = frozenset(PLACES[:1]), view({URL: PLACES[:1], OTHER: PLACES[1:]})
    reports.note(serves(OTHER, ("customer-balances", 2), ("top-customers", 2)))

    assert {(BALANCES, 0): Role.ACTIVE, (SALES, 0): Role.ACTIVE} == assignment.holdings([PLACES[0], PLACES[2]])
    assert assignment.settled


@pytest.mark.parametrize(
    ("found", "owned"),
    [
        (None, []),
        (view({OTHER: PLACES}), []),  # this instance is not in the group yet
        (view({URL: PLACES[:1], OTHER: PLACES[1:2]}), PLACES[:1]),  # one partition has no owner yet
        (view({URL: PLACES[:1], OTHER: PLACES[1:]}), []),  # this instance does not know its partitions yet
    ],
)
def test_the_assignment_has_not_settled_yet(
    membership: Member, reports: PeerReports, found: GroupView | None, owned: list[ChangelogPartition]
) -> None:
    """It settles when each partition has an owner, and this instance knows its own partitions."""
    membership.view, membership.owned = found, frozenset(owned)

    assert not new_assignment(membership, reports).settled


def test_a_disconnected_instance_keeps_its_copies(membership: Member, reports: PeerReports) -> None:
    """Its client gives up the partitions after a session time-out. The copies stay readable."""
    membership.view = view({URL: PLACES})

    holdings = dict(new_assignment(membership, reports).holdings(PLACES))

    assert [0, 1, 2] == numbers(holdings, Role.STANDBY)


def test_another_instance_takes_over_only_if_it_answers_and_follows_kafka(
    membership: Member, reports: PeerReports
) -> None:
    """An instance whose own disk is full, or that does not answer, cannot help."""
    membership.view = view({URL: PLACES[:1], OTHER: PLACES[1:]})
    assignment = new_assignment(membership, reports)

    reports.note(serves(URL))
    assert not assignment.can_hand_over
    reports.note(serves(OTHER).model_copy(update={"kafka_error": "the disk is full"}))
    assert not assignment.can_hand_over
    reports.note(serves(OTHER))
    assert assignment.can_hand_over
    reports.suspect(OTHER, "it does not answer")
    assert not assignment.can_hand_over
