"""The checker accepts histories that have a possible order, and finds every planted violation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.linearizability import Operation, first_impossible
from tests.faults.orders import is_explained_by_some_order


def register(state, action):
    """A register: ``("write", value)`` and ``("read", value)``."""
    kind, value = action
    if kind == "write":
        return value
    return state if state == value else None


def is_read(action):
    return action[0] == "read"


def is_linearizable(*operations):
    return first_impossible([Operation(*each) for each in operations], 0, register) is None


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([], id="nothing"),
        pytest.param([(("write", 1), 0, 1), (("read", 1), 2, 3)], id="one after the other"),
        pytest.param([(("write", 1), 0, 9), (("read", 0), 1, 2), (("read", 1), 3, 4)], id="a write beside two reads"),
        pytest.param([(("write", 1), 0), (("read", 0), 5, 6), (("read", 1), 7, 8)], id="late effect, no response"),
        pytest.param([(("write", 1), 0), (("read", 0), 5, 6)], id="no effect, no response"),
        pytest.param([(("write", 1), 0, 1), (("read", 1), 1, 2)], id="times that touch"),
    ],
)
def test_an_order_explains_it(history):
    assert is_linearizable(*history)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([(("write", 1), 0, 1), (("read", 0), 2, 3)], id="a stale read"),
        pytest.param([(("write", 1), 0, 9), (("read", 1), 1, 2), (("read", 0), 3, 4)], id="a read that goes back"),
        pytest.param([(("read", 1), 0, 1), (("write", 1), 2, 3)], id="an effect before its request"),
        pytest.param([(("write", 1), 0), (("read", 1), 5, 6), (("read", 0), 7, 8)], id="an effect that is lost"),
        pytest.param([(("read", 7), 0, 1)], id="a value that nobody wrote"),
    ],
)
def test_a_planted_violation_is_found(history):
    assert not is_linearizable(*history)


def test_the_operation_at_which_no_order_continues_is_named():
    stale = Operation(("read", 0), 2, 3)
    history = [Operation(("write", 1), 0, 1), stale, Operation(("read", 1), 4, 5)]
    assert stale == first_impossible(history, 0, register)


times = st.integers(0, 12)
operations = st.builds(
    lambda action, times, is_answered: Operation(action, min(times), max(times) if is_answered else math.inf),
    st.tuples(st.sampled_from(["read", "write"]), st.integers(0, 2)),
    st.tuples(times, times),
    st.sampled_from([True, True, True, False]),
)


@given(st.lists(operations, max_size=5))
def test_it_agrees_with_the_definition(history):
    expected = is_explained_by_some_order(history, 0, register)
    assert expected == (first_impossible(history, 0, register) is None)
    assert expected == (first_impossible(history, 0, register, is_read) is None)


def test_a_wrong_history_with_many_reads_at_once_is_decided():
    reads = [Operation(("read", number % 3), 0, 1) for number in range(500)]
    writes = [Operation(("write", number), 0, 1) for number in range(3)]
    assert first_impossible([*reads, *writes], 0, register, is_read) is None
    assert first_impossible([*reads, *writes, Operation(("read", 7), 0, 1)], 0, register, is_read) is not None


def test_a_long_history_is_decided_without_recursion():
    writes = [Operation(("write", number), 2.0 * number, 2.0 * number + 3) for number in range(1, 3_000)]
    reads = [Operation(("read", number), 2.0 * number + 1, 2.0 * number + 2) for number in range(1, 3_000)]
    assert first_impossible([*writes, *reads], 0, register) is None
