"""What follows from a description of the group: owners, standbys, heirs. Descriptions are the client's own class."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.interactive_queries.group import is_url, representative_topics, standbys_of, successors, view_of
from services.state_stores.assignment import ChangelogPartition
from tests.support.clusters import description, member, view

A, B, C, D = (f"http://10.0.0.{number}:8080" for number in range(1, 5))
PLACES: list[ChangelogPartition] = [("loyalty-balances", number) for number in range(6)]


def test_members_and_what_they_own() -> None:
    """A member's client id is its URL; whoever is in the group without one is no instance."""
    found = view_of(description(member(A, PLACES[:2]), member(B, PLACES[2:]), member("kcat", [])), 7.0, None)

    assert {A, B} == found.urls
    assert [A, A, B] == [found.owners[place].url for place in PLACES[:3]]
    assert (found.stable, found.asked_at) == (True, 7.0)
    assert found.covers(PLACES)
    assert not found.covers([*PLACES, ("loyalty-balances", 6)])


def test_during_a_rebalance_members_keep_what_they_had() -> None:
    """The coordinator then names members without partitions; whoever has left has nothing, a new one nothing yet."""
    before = view({A: PLACES[:2], B: PLACES[2:]})

    during = view_of(description(member(A, []), member(C, []), stable=False), 8.0, before)

    assert {A: frozenset(PLACES[:2]), C: frozenset()} == {each.url: each.partitions for each in during.members}
    assert not during.stable
    assert not during.covers(PLACES[:2])


def test_an_instance_that_comes_back_is_another_member() -> None:
    """Same URL, new member id: it has nothing of what its former self had."""
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
def test_only_bare_addresses_are_instances(client_id: str, expected: bool) -> None:  # noqa: FBT001
    """Requests go to scheme, host and port; nothing else that a client id may hold is taken for an address."""
    assert expected is is_url(client_id)


shares = st.lists(st.sampled_from([A, B, C, D]), min_size=6, max_size=6)


@given(shares, st.integers(0, 5))
def test_standbys(owners: list[str], count: int) -> None:
    """As many as asked for and there are, each once, never the owner; the heir first."""
    found = view(
        {url: [place for place, owner in zip(PLACES, owners, strict=True) if owner == url] for url in (A, B, C, D)}
    )

    for place, owner in zip(PLACES, owners, strict=True):
        standbys = standbys_of(found, place, count)
        assert len(standbys) == len(set(standbys)) == min(count, 3)
        assert owner not in standbys
        if count:
            assert standbys[0] == successors(found, found.owners[place])[place]


def test_a_standby_more_moves_no_copy() -> None:
    """With n + 1 standbys the first n are those that n gave."""
    found = view({A: PLACES[:2], B: PLACES[2:4], C: PLACES[4:5], D: PLACES[5:]})

    for place in PLACES:
        assert standbys_of(found, place, 3)[:2] == standbys_of(found, place, 2)


def test_heirs_are_those_with_least() -> None:
    """What a dead member leaves goes one by one to whoever has least, by member id where that is equal."""
    found = view({A: PLACES[:3], B: PLACES[3:5], C: PLACES[5:]})

    assert {PLACES[0]: C, PLACES[1]: B, PLACES[2]: C} == successors(found, found.owners[PLACES[0]])


def test_nobody_inherits_from_the_last() -> None:
    """A single instance has no standby."""
    alone = view({A: PLACES})

    assert () == standbys_of(alone, PLACES[0], 2)
    assert {} == successors(alone, alone.owners[PLACES[0]])


def test_topics_with_as_many_partitions_are_shared_as_one() -> None:
    """The first leads; one with another number of partitions leads itself."""
    assert {"a": "a", "b": "a", "c": "c"} == representative_topics({"a": 3, "b": 3, "c": 2})
