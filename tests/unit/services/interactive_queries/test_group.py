"""Owners, standbys and successors that follow from a description of the group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.interactive_queries.group import is_url, representative_topics, standbys_of, successors, view_of
from services.state_stores.assignment import ChangelogPartition
from tests.support.clusters import description, member, view

A, B, C, D = (f"http://10.0.0.{number}:8080" for number in range(1, 5))
PLACES: list[ChangelogPartition] = [("loyalty-balances", number) for number in range(6)]


def test_members_and_their_partitions() -> None:
    """The client id of a member is its URL. A member without a URL is not an instance."""
    found = view_of(description(member(A, PLACES[:2]), member(B, PLACES[2:]), member("kcat", [])), 7.0, None)

    assert {A, B} == found.urls
    assert [A, A, B] == [found.owners[place].url for place in PLACES[:3]]
    assert (found.stable, found.asked_at) == (True, 7.0)
    assert found.covers(PLACES)
    assert not found.covers([*PLACES, ("loyalty-balances", 6)])


def test_during_a_rebalance_members_keep_their_partitions() -> None:
    """The coordinator then lists members without partitions. Departed and new members have none."""
    before = view({A: PLACES[:2], B: PLACES[2:]})

    during = view_of(description(member(A, []), member(C, []), stable=False), 8.0, before)

    assert {A: frozenset(PLACES[:2]), C: frozenset()} == {each.url: each.partitions for each in during.members}
    assert not during.stable
    assert not during.covers(PLACES[:2])


def test_an_instance_that_restarts_is_another_member() -> None:
    """It has the same URL and a new member id, and none of its former partitions."""
    before = view_of(description(member(A, PLACES, "old")), 1.0, None)

    during = view_of(description(member(A, [], "new"), stable=False), 2.0, before)

    assert {} == during.owners
    assert not during.has(f"{A}-old")


@pytest.mark.parametrize(
    ("client_id", "expected"),
    [
        ("http://10.0.0.1:8080", True),
        ("https://api-0.loyalty", True),
        ("http://[::1]:8080", True),
        ("loyalty-api", False),
        ("http://", False),
        ("http://user@10.0.0.1:8080", False),
        ("http://10.0.0.1:8080/admin", False),
        ("http://10.0.0.1:99999", False),
        ("http://10.0.0.1:8080?x", False),
        ("ftp://10.0.0.1:8080", False),
        ("http://10.0.0.1:8080@evil", False),
        ("http://10.0.0.1:8080\n", False),
        ("http://a b", False),
    ],
)
def test_only_base_urls_are_instances(client_id: str, expected: bool) -> None:  # noqa: FBT001
    """The URL of an instance has scheme, host and port. Requests go to no other client id."""
    assert expected is is_url(client_id)


shares = st.lists(st.sampled_from([A, B, C, D]), min_size=6, max_size=6)


@given(shares, st.integers(0, 5))
def test_standbys_are_other_members_and_the_first_is_the_successor(owners: list[str], count: int) -> None:
    """There are as many as configured and available, and each is another member than the owner."""
    found = view(
        {url: [place for place, owner in zip(PLACES, owners, strict=True) if owner == url] for url in (A, B, C, D)}
    )

    for place, owner in zip(PLACES, owners, strict=True):
        standbys = standbys_of(found, place, count)
        assert len(standbys) == len(set(standbys)) == min(count, 3)
        assert owner not in standbys
        if count:
            assert standbys[0] == successors(found, found.owners[place])[place]


def test_one_more_standby_moves_no_copy() -> None:
    """The first n of n + 1 standbys are the same as with n standbys."""
    found = view({A: PLACES[:2], B: PLACES[2:4], C: PLACES[4:5], D: PLACES[5:]})

    for place in PLACES:
        assert standbys_of(found, place, 3)[:2] == standbys_of(found, place, 2)


def test_successors_are_the_members_with_the_fewest_partitions() -> None:
    """Each partition goes to the member that has the fewest; of equal ones, to the lowest member id."""
    found = view({A: PLACES[:3], B: PLACES[3:5], C: PLACES[5:]})

    assert {PLACES[0]: C, PLACES[1]: B, PLACES[2]: C} == successors(found, found.owners[PLACES[0]])


def test_a_single_instance_has_no_successor() -> None:
    """It has no standby either."""
    alone = view({A: PLACES})

    assert () == standbys_of(alone, PLACES[0], 2)
    assert {} == successors(alone, alone.owners[PLACES[0]])


def test_topics_with_equally_many_partitions_have_one_representative() -> None:
    """It is the first of them. A topic with another number of partitions represents itself."""
    assert {"a": "a", "b": "a", "c": "c"} == representative_topics({"a": 3, "b": 3, "c": 2})
