"""Points in lots: spending them and returning them."""

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
def test_nothing_gets_lost(lots, points):
    """The result has the requested points, or all that exist. Putting them back restores the lots."""
    for take, there in (take_spendable, spendable(lots)), (take_any, sum(lots.values())):
        left = dict(lots)
        taken = take(left, points)
        assert min(points, there) == sum(taken.values())
        assert all(count > 0 for held in (left, taken) for count in held.values())
        add(left, taken)
        assert lots == left


@settings(max_examples=examples(60))
@given(LOTS, st.integers(0, 500))
def test_soonest_to_expire_goes_first(lots, points):
    """No lot that is left expires before a spent lot, except pending ones, which are never spent."""
    taken = take_spendable(lots, points)

    assert not any(terms.available_time for terms in taken)
    assert max(map(expiry, taken), default=0) <= min(
        (expiry(terms) for terms in lots if not terms.available_time), default=NEVER
    )


def test_nothing_makes_no_lot():
    """An invoice that earns 0 creates no lot."""
    lots = {Terms(): 5}
    add(lots, {Terms(1): 0, Terms(): 0})

    assert {Terms(): 5} == lots
