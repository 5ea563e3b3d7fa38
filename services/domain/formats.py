"""Converts points and times. Stored points are hundredths; stored times are milliseconds since the epoch."""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_TIME = -62_135_596_800_000
"""The first millisecond of the year 1. The calendar has no earlier time."""
LAST_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999. The calendar has no later time."""
_HUNDREDTH = Decimal("0.01")


def to_hundredths(points: Decimal, rounding: str = ROUND_HALF_UP) -> int:
    """``rounding`` is a rounding mode of ``decimal``."""
    return int(points.quantize(_HUNDREDTH, rounding).scaleb(2))


def to_points(hundredths: int) -> Decimal:
    """Returns the exact points, with two decimal places."""
    return Decimal(hundredths).scaleb(-2)


def points_text(hundredths: int) -> str:
    """Returns the points with two decimal places: -5 is ``-0.05``."""
    return str(to_points(hundredths))


def to_datetime(milliseconds: int) -> datetime:
    """Returns the time in UTC. Raises OverflowError outside of the years 1 to 9999."""
    # This call is twice as fast as timedelta(milliseconds=...).
    return _EPOCH + timedelta(0, milliseconds // 1000, milliseconds % 1000 * 1000)


def to_milliseconds(time: datetime) -> int:
    """Returns the milliseconds since the epoch, rounded down. ``time`` must have a time zone."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


def from_time_text(text: str | None) -> int:
    """Returns the milliseconds since the epoch of a time in ISO 8601 with a time zone; 0 for no text."""
    return to_milliseconds(datetime.fromisoformat(text)) if text else 0


def time_text(milliseconds: int) -> str:
    """Returns the time as ISO 8601 in UTC with milliseconds. Raises OverflowError outside of the years 1 to 9999."""
    return to_datetime(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clamped_time_text(milliseconds: int) -> str:
    """Returns the same as ``time_text``. Outside of the years 1 to 9999 it returns their first or last time."""
    return time_text(min(max(milliseconds, FIRST_TIME), LAST_TIME))


def seconds_text(milliseconds: int) -> str:
    """Returns the time as commands show it: ISO 8601 in UTC without a fraction. It clamps as ``clamped_time_text``."""
    return clamped_time_text(milliseconds).split(".")[0] + "Z"


def short_time_text(milliseconds: int) -> str:
    """Returns the same as ``clamped_time_text``, but a full second has no fraction."""
    return clamped_time_text(milliseconds).replace(".000Z", "Z")
