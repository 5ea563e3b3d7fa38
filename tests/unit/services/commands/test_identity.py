"""The identity of commands."""

from hypothesis import given
from hypothesis import strategies as st

from services.codecs.records import mark_of
from services.commands.identity import command_id, keyed_hash, possible_hashes, request_hash

PATH = "/v1/customers/4711/redemptions"


def test_the_id_of_a_command_is_the_same_everywhere() -> None:
    """The id depends on method, path and key only. Instances of all versions must derive this id."""
    assert "35edb2bb-11a1-5247-af62-606475b77ae9" == command_id("POST", PATH, "k-1")


@given(
    first=st.tuples(st.sampled_from(["POST", "DELETE"]), st.sampled_from([PATH, "/v1/transfers"]), st.text("ab1\n ")),
    second=st.tuples(st.sampled_from(["POST", "DELETE"]), st.sampled_from([PATH, "/v1/transfers"]), st.text("ab1\n ")),
)
def test_requests_that_differ_have_different_ids(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    """A different method, path or key gives a different command."""
    assert (first == second) == (command_id(*first) == command_id(*second))


def test_the_hash_of_a_request_depends_on_its_id_and_values() -> None:
    """The order of the members does not matter."""
    request = {"points": 1000, "reason": "tea"}

    assert request_hash("C-1", request) == request_hash("C-1", {"reason": "tea", "points": 1000})
    others = [request_hash("C-2", request), request_hash("C-1", {**request, "points": 1001}), request_hash("C-1", {})]
    assert 4 == len({request_hash("C-1", request), *others})


def test_the_hash_of_a_record_depends_on_the_key() -> None:
    """Without the key, nobody can find out what was requested. Instances of all versions must derive this hash."""
    assert "65001d2a84ed9bac0e1f833a08adfae0" == keyed_hash("beef", "k-1")
    assert 3 == len({keyed_hash("beef", "k-1"), keyed_hash("beef", "k-2"), keyed_hash("cafe", "k-1")})


def test_a_record_can_have_four_hashes_of_one_request() -> None:
    """They have the actor of the body or not, and the key or not. Another actor has one half of them in common."""
    request = {"points": 1000, "actor": "ann"}
    plain = {request_hash("C-1", request), request_hash("C-1", {"points": 1000})}

    hashes = possible_hashes("C-1", request, "k-1")
    assert plain | {keyed_hash(each, "k-1") for each in plain} == hashes
    without_actor = possible_hashes("C-1", {"points": 1000}, "k-1")
    assert without_actor == hashes & possible_hashes("C-1", {**request, "actor": "bob"}, "k-1")
    assert set() == hashes & possible_hashes("C-1", {**request, "points": 1001}, "k-1")


def test_a_mark_names_no_customer() -> None:
    """A mark has an id, a kind and a hash, and no card."""
    mark = mark_of("C-1", "reserve", "beef")

    values = {name: value for name, value in mark.items() if value}
    assert {"CommandID": "C-1", "Sequence": 1, "Status": "pending", "Kind": "reserve", "RequestHash": "beef"} == values
