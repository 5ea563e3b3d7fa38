"""Points in lots: spending and putting back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.account.lots import Terms, add, spendable, take_any, take_spendable

TERMS = st.builds(Terms, st.integers(0, 3), st.integers(0, 2), st.integers(0, 1))
LOTS = st.dictionaries(TERMS, st.integers(1, 100), max_size=8)
NEVER = 10


def expiry(terms):
    return terms.expires_time or NEVER


@settings(max_examples=60)
@given(LOTS, st.integers(0, 500))
def test_nothing_gets_lost(lots, points):
    """What is taken is as much as asked for, or all there is, and put back it makes the lots that there were."""
    for take, there in (take_spendable, spendable(lots)), (take_any, sum(lots.values())):
        left = dict(lots)
        taken = take(left, points)
        assert min(points, there) == sum(taken.values())
        assert all(count > 0 for held in (left, taken) for count in held.values())
        add(left, taken)
        assert lots == left


@settings(max_examples=60)
@given(LOTS, st.integers(0, 500))
def test_soonest_to_expire_goes_first(lots, points):
    """Nothing that could have been spent, and is left, expires sooner than anything that was; pending is left alone."""
    taken = take_spendable(lots, points)

    assert not any(terms.available_time for terms in taken)
    assert max(map(expiry, taken), default=0) <= min(
        (expiry(terms) for terms in lots if not terms.available_time), default=NEVER
    )


def test_nothing_makes_no_lot():
    """An invoice that earns 0 leaves no trace among the lots."""
    lots = {Terms(): 5}
    add(lots, {Terms(1): 0, Terms(): 0})

    assert {Terms(): 5} == lots
