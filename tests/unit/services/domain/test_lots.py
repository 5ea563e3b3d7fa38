"""Points in lots: spending them and returning them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.account.lots import Terms, add, spendable, take_any, take_spendable
from tests.support.examples import examples

TERMS = st.builds(Terms, st.integers(0, 3), st.integers(0, 2), st.integers(0, 1))
LOTS = st.dictionaries(TERMS, st.integers(1, 100), max_size=8)
NEVER = 10


def expiry(terms):
    return terms.expires_time or NEVER


@settings(max_examples=examples(60))
@given(LOTS, st.integers(0, 500))
def test_taking_points_and_adding_them_again_restores_the_lots(lots, points):
    """The function takes the requested points, or all that exist."""
    for take, there in (take_spendable, spendable(lots)), (take_any, sum(lots.values())):
        left = dict(lots)
        taken = take(left, points)
        assert min(points, there) == sum(taken.values())
        assert all(count > 0 for held in (left, taken) for count in held.values())
        add(left, taken)
        assert lots == left


@settings(max_examples=examples(60))
@given(LOTS, st.integers(0, 500))
def test_points_that_expire_soonest_are_spent_first(lots, points):
    """No lot that is left expires before a spent lot. Pending lots are never spent."""
    taken = take_spendable(lots, points)

    assert not any(terms.available_time for terms in taken)
    assert max(map(expiry, taken), default=0) <= min(
        (expiry(terms) for terms in lots if not terms.available_time), default=NEVER
    )


@settings(max_examples=examples(60))
@given(LOTS, st.integers(0, 500), st.none() | TERMS, st.randoms())
def test_the_order_of_the_dictionary_has_no_meaning(lots, points, preferred, dice):
    shuffled = dict(dice.sample([*lots.items()], len(lots)))

    assert take_any(dict(lots), points, preferred) == take_any(dict(shuffled), points, preferred)
    assert take_spendable(lots, points) == take_spendable(shuffled, points)


@pytest.mark.parametrize(
    ("other", "taken"),
    [(Terms(2, 6), Terms(2, 6)), (Terms(2), Terms(2)), (Terms(2, 8), Terms(1)), (Terms(3), Terms(1))],
)
def test_the_lot_of_a_purchase_goes_first(other, taken):
    """The lot is pending or already released. A lot with another time of release belongs to another purchase."""
    assert {taken: 5} == take_any({Terms(1): 5, other: 5}, 5, Terms(2, 6))


def test_0_points_make_no_lot():
    """An invoice can earn 0 points."""
    lots = {Terms(): 5}
    add(lots, {Terms(1): 0, Terms(): 0})

    assert {Terms(): 5} == lots
