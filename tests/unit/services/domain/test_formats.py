"""Points are exact."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.formats import (
    clamped_time_text,
    points_text,
    seconds_text,
    time_text,
    to_datetime,
    to_hundredths,
    to_milliseconds,
    to_points,
)
from tests.support.oracles import earned_points
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
    """Points have two places, rounded half away from zero, from the decimal that the amount shows."""
    assert hundredths == earned_points(amount)


@given(AMOUNTS, st.decimals(0, 1, places=4))
def test_error_is_at_most_half_a_hundredth(amount, factor):
    """The points of any amount differ from the exact product by at most half a hundredth."""
    exact = Fraction(repr(amount)) * Fraction(factor) * 100

    assert abs(earned_points(amount, factor) - exact) <= Fraction(1, 2)


@given(AMOUNTS)
def test_a_return_takes_back_what_was_earned(amount):
    """The negative of an amount earns the negative of its points."""
    assert 0 == earned_points(amount) + earned_points(-amount)


@given(st.integers(-(10**15), 10**15))
def test_hundredths_and_points_are_the_same_number(hundredths):
    """Conversion to the other unit and back changes nothing."""
    assert hundredths == to_hundredths(to_points(hundredths))
    assert Decimal(hundredths) / 100 == to_points(hundredths)


@pytest.mark.parametrize(
    ("hundredths", "text"), [(0, "0.00"), (-5, "-0.05"), (1_234_50, "1234.50"), (-(10**18), "-10000000000000000.00")]
)
def test_points_are_written_with_two_places(hundredths, text):
    """The text is exact and never in scientific notation."""
    assert text == points_text(hundredths)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_milliseconds_and_datetimes_are_the_same_time(milliseconds):
    """Conversion to a datetime and back changes nothing, also for times before 1970."""
    assert milliseconds == to_milliseconds(to_datetime(milliseconds))


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999Z"),
        (-(2**63), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_times_are_written_in_utc(milliseconds, text):
    """A time outside of the calendar becomes the nearest time that has a text."""
    assert text == clamped_time_text(milliseconds)
    assert text[:-5] + "Z" == seconds_text(milliseconds)


def test_a_time_that_no_calendar_has_is_an_error():
    """``time_text`` does not replace a time outside of the calendar."""
    assert "9999-12-31T23:59:59.999Z" == time_text(253_402_300_799_999)
    with pytest.raises(OverflowError):
        time_text(253_402_300_800_000)
