"""The model of accounts accepts what can happen, and finds every planted violation."""

import math
import random
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.histories import EXTERNAL, READ, Account, Action, Histories, Received, not_linearizable, step
from tests.faults.linearizability import Operation
from tests.faults.orders import is_explained_by_some_order

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
    return [mismatch.text for mismatch in not_linearizable(histories, entries)]


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


def execution(actions, chance: random.Random):
    """The operations take effect one after the other. Their times overlap, and contain the moments of the effects."""
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
    return history, account


def read_of(account, start, end):
    received = Received(account.sequence, account.total, account.available)
    return Operation(Action(READ, received=received), start, end)


@given(st.lists(ACTIONS, min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_each_execution_is_accepted_and_a_read_from_the_past_is_not(actions, chance: random.Random):
    history, account = execution(actions, chance)
    chance.shuffle(history)
    assert not wrong(history)

    if account.sequence:
        last = max(each.end for each in history)
        assert wrong([*history, read_of(Account(), last + 1, last + 2)])
        assert not wrong([*history, read_of(Account(), -9, -8)])


def shown_otherwise(operation, **changes):
    received = operation.action.received
    changed = {name: getattr(received, name) + change for name, change in changes.items()}
    return replace(operation, action=operation.action._replace(received=received._replace(**changed)))


SEVEN = Decimal(7)
PLANTED = {
    "a lost reservation": [("reserve", SEVEN, 2, 100, 93), (READ, 0, 1, 100, 100)],
    "one taken twice": [("reserve", SEVEN, 2, 100, 93), (READ, 0, 2, 100, 86)],
    "a later value": [(READ, 0, 2, 100, 93), ("reserve", SEVEN, 2, 100, 93)],
    "two with one number": [("reserve", SEVEN, 2, 100, 93), ("reserve", SEVEN, 2, 100, 93)],
    "overdrawn": [("reserve", SEVEN, 2, 100, 93), ("transfer", Decimal(100), 3, 0, -7)],
}
"""Kind and points of operations, and what they show after an invoice has brought the account to 100 points."""


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@given(actions=st.lists(ACTIONS, max_size=20), chance=st.randoms(use_true_random=False))
def test_a_violation_is_found_after_any_execution(planted, actions, chance: random.Random):
    history, account = execution(actions, chance)
    now, held = len(actions) + 9, account.total - account.available
    history.append(Operation(Action(EXTERNAL, points=100 - account.available), 0, now))
    for number, (kind, points, sequence, total, available) in enumerate(planted, 1):
        shown = (account.sequence + sequence, held + total, available)
        history.append(operation(kind, now + number, now + number + 0.5, *shown, id=f"P{number}", points=points))
    assert wrong(history)


@given(
    st.lists(ACTIONS, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["sequence", "total", "available", "end", "start"]))),
)
def test_it_agrees_with_the_definition(actions, chance: random.Random, changes):
    """Possible histories, some with changed amounts and times."""
    history, _ = execution(actions, chance)
    for number, name in changes:
        place = number % len(history)
        if name == "end":
            history[place] = replace(history[place], end=math.inf)
        elif name == "start":
            history[place] = replace(history[place], start=-math.inf)
        else:
            history[place] = shown_otherwise(history[place], **{name: chance.choice((-1, 1))})
    assert is_explained_by_some_order(history, Account(), step) == (not wrong(history))


def test_a_refusal_may_be_answered_before_its_number_is_seen_and_must_be_right():
    def with_refusal(points, total, available):
        histories = Histories()
        received = Received(2, Decimal(total), Decimal(available), "refused")
        histories.add_command(CARD, Action("reserve", id="R", points=Decimal(points), received=received), 0, 1)
        histories.add(CARD, operation(READ, 2, 3, 1, 100, 100))
        return [*not_linearizable(histories, [EARNED])]

    assert not with_refusal(101, 100, 100)
    assert with_refusal(60, 100, 100), "the account covers it"
    assert with_refusal(101, 100, 99), "no entry has it"


def test_a_read_that_is_marked_stale_shows_the_past_and_never_the_future():
    def with_stale_read(sequence, available):
        histories = Histories()
        histories.add(CARD, reserve("R", 0, 1, 60, 2, 100, 40))
        histories.add(CARD, reserve("S", 8, 9, 10, 3, 100, 30))
        balance = {"Sequence": sequence, "TotalLoyaltyPoints": "100.00", "AvailableLoyaltyPoints": available}
        histories.add_read(CARD, 5, 6, balance, is_stale=True)
        histories.add_read(CARD, 5, 6, None, is_stale=True)
        return [*not_linearizable(histories, [EARNED])]

    assert not with_stale_read(1, "100.00")
    assert not with_stale_read(2, "40.00")
    assert with_stale_read(1, "99.00"), "no entry has it"
    assert with_stale_read(3, "30.00"), "the request of the command came later"
