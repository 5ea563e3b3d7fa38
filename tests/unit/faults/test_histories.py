"""The model of accounts accepts what can happen, and finds every planted violation."""

import random
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.histories import EXTERNAL, READ, Account, Action, Histories, Received, not_linearizable, step
from tests.faults.linearizability import Operation

CARD = "A"


def entry(sequence, points, total, available, event_id="I", kind="earned"):
    return {
        "CustomerCardNo": CARD,
        "EventID": event_id,
        "Kind": kind,
        "Sequence": sequence,
        "EarnedLoyaltyPoints": Decimal(points),
        "TotalLoyaltyPoints": Decimal(total),
        "AvailableLoyaltyPoints": Decimal(available),
    }


def operation(kind, start, end, sequence, total, available, status="done", **what):  # noqa: PLR0913, PLR0917
    received = Received(sequence, Decimal(total), Decimal(available), None if kind == READ else status)
    return Operation(Action(kind, received=received, **what), start, end)


def reserve(name, start, end, points, *shown):
    return operation("reserve", start, end, *shown, id=name, points=Decimal(points))


def wrong(operations, *entries):
    histories = Histories()
    for each in operations:
        histories.add(CARD, each)
    return [mismatch.text for mismatch in not_linearizable([histories], entries)]


EARNED = entry(1, 100, 100, 100)


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([operation(READ, 0, 1, 0, 0, 0), operation(READ, 2, 3, 1, 100, 100)], id="an invoice"),
        pytest.param([reserve("R", 0, 5, 60, 2, 100, 40), operation(READ, 1, 2, 1, 100, 100)], id="a read beside it"),
        pytest.param([reserve("R", 0, 5, 60, 2, 100, 40), operation(READ, 1, 2, 2, 100, 40)], id="a read of it"),
        pytest.param(
            [reserve("R", 0, 5, 60, 2, 100, 40), reserve("S", 0, 5, 60, 3, 100, 40, "refused")], id="one of two fits"
        ),
        pytest.param(
            [Operation(Action("reserve", id="R", points=Decimal(60)), 0.0), operation(READ, 8, 9, 2, 100, 40)],
            id="a command without a response took effect",
        ),
        pytest.param(
            [Operation(Action("reserve", id="R", points=Decimal(60)), 0.0), operation(READ, 8, 9, 1, 100, 100)],
            id="a command without a response took none",
        ),
    ],
)
def test_what_can_happen_is_accepted(operations):
    assert not wrong(operations, EARNED)


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([reserve("R", 0, 1, 60, 2, 100, 40), operation(READ, 2, 3, 1, 100, 100)], id="a stale read"),
        pytest.param([reserve("R", 0, 5, 60, 2, 100, 40), reserve("S", 0, 5, 60, 3, 100, -20)], id="spent twice"),
        pytest.param([reserve("R", 0, 5, 60, 2, 100, 100, "refused")], id="refused, although it is covered"),
        pytest.param(
            [
                reserve("R", 0, 1, 60, 2, 100, 40),
                operation("capture", 2, 5, 3, 40, 40, redemption_id="R"),
                operation("capture", 2, 5, 4, -20, -20, redemption_id="R"),
            ],
            id="captured twice",
        ),
        pytest.param([operation("transfer", 0, 1, 2, 40, 40, points=Decimal(60), possible=False)], id="sent to itself"),
        pytest.param([reserve("R", 3, 4, 60, 2, 100, 40), operation(READ, 0, 1, 2, 100, 40)], id="before its request"),
        pytest.param([operation(READ, 0, 1, 1, 200, 200)], id="an invoice that counts twice"),
        pytest.param(
            [operation(READ, 0, 1, 1, 100, 100), operation(READ, 2, 3, 0, 0, 0)], id="a customer who is unknown again"
        ),
        pytest.param(
            [
                Operation(Action("reserve", id="R", points=Decimal(60)), 0.0),
                operation(READ, 2, 3, 2, 100, 40),
                operation(READ, 4, 5, 1, 100, 100),
            ],
            id="an effect that is lost",
        ),
    ],
)
def test_a_planted_violation_is_found(operations):
    (text,) = wrong(operations, EARNED)
    assert CARD in text


POINTS = st.integers(1, 90).map(Decimal)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["reserve", "adjust", "transfer", EXTERNAL]), POINTS).map(
        lambda each: Action(each[0], points=each[1])
    ),
    st.tuples(st.sampled_from(["capture", "void"]), st.integers(0, 12)).map(
        lambda each: Action(each[0], redemption_id=f"C{each[1]}")
    ),
    st.just(Action(READ)),
)


@given(st.lists(ACTIONS, min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_each_execution_is_accepted_and_a_read_from_the_past_is_not(actions, chance: random.Random):
    """Operations take effect one after the other, at a moment inside times that overlap."""
    account, history = Account(), []
    for moment, action in enumerate(actions):
        asked = action._replace(id=f"C{moment}")
        after = step(account, asked)
        is_refused = action.kind != READ and after == account._replace(sequence=account.sequence + 1)
        status = None if action.kind in {READ, EXTERNAL} else "refused" if is_refused else "done"
        received = Received(after.sequence, after.total, after.available, status)
        history.append(
            Operation(asked._replace(received=received), moment - chance.random() * 3, moment + chance.random() * 3)
        )
        account = after
    chance.shuffle(history)
    assert not wrong(history)

    if account.sequence:
        last = max(each.end for each in history)
        first = Action(READ, received=Received(0, Decimal(0), Decimal(0)))
        assert wrong([*history, Operation(first, last + 1, last + 2)])
        assert not wrong([*history, replace(history[0], action=first, start=-9, end=-8)])
