"""Points are exact."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.points import earned_points, to_hundredths, to_points
from tests.support.strategies import AMOUNTS


@pytest.mark.parametrize(
    ("amount", "hundredths"),
    [
        (11114.0, 22228),
        (0.25, 1),  # 0.005 points: half up
        (0.24, 0),
        (-0.25, -1),
        (1.005, 2),  # as floats, 1.005 * 0.02 is 0.020099999…
        (0.0, 0),
        (99_999_999_999.99, 200_000_000_000),
    ],
)
def test_rounding_is_half_up_once_an_invoice(amount, hundredths):
    """Two places, half away from zero, from the decimal that the amount shows."""
    assert hundredths == earned_points(amount)


@given(AMOUNTS, st.decimals(0, 1, places=4))
def test_error_is_at_most_half_a_hundredth(amount, factor):
    """No amount earns more than half a hundredth beside the exact product."""
    exact = Fraction(repr(amount)) * Fraction(factor) * 100

    assert abs(earned_points(amount, factor) - exact) <= Fraction(1, 2)


@given(AMOUNTS)
def test_a_return_takes_back_what_was_earned(amount):
    """The negative of an amount earns the negative of its points."""
    assert 0 == earned_points(amount) + earned_points(-amount)


@given(st.integers(-(10**15), 10**15))
def test_hundredths_and_points_are_the_same_number(hundredths):
    """Conversion there and back changes nothing."""
    assert hundredths == to_hundredths(to_points(hundredths))
    assert Decimal(hundredths) / 100 == to_points(hundredths)
