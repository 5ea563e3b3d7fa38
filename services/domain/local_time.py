"""Days and calendar periods in a time zone. Times are milliseconds since the epoch."""

from datetime import date, datetime, time, timedelta
from functools import lru_cache
from importlib import resources
from zoneinfo import TZPATH, ZoneInfo, reset_tzpath

from services.domain.formats import to_datetime, to_milliseconds
from services.domain.programme import DAY, Period

_MONTHS = {Period.MONTH: 1, Period.QUARTER: 3, Period.HALF_YEAR: 6, Period.YEAR: 12}

# All processes must compute the same days, but machines have different versions of the time zone database. So the
# package tzdata comes first. Release 0.1 published programmes with zones that only machines have, such as localtime.
reset_tzpath([str(resources.files("tzdata") / "zoneinfo"), *TZPATH])

ZONES_APART = 2 * DAY
"""More than the longest time between the same midnight in two time zones, which is 26 hours."""


def local_time(milliseconds: int, zone: str) -> datetime:
    """Returns the local time. Raises OverflowError outside of the years 1 to 9999."""
    return to_datetime(milliseconds).astimezone(ZoneInfo(zone))


def end_of_day(milliseconds: int, zone: str) -> int:
    """Returns the next midnight."""
    return end_of_date(local_time(milliseconds, zone).date(), zone)


def end_of_date(day: date, zone: str) -> int:
    """Returns the midnight at the end of the day. Raises OverflowError for the last day of the calendar."""
    return _midnight(day + timedelta(days=1), zone)


def end_of_period(milliseconds: int, period: Period, zone: str) -> int:
    """Returns the end (exclusive) of the calendar period that contains the time."""
    day = local_time(milliseconds, zone).date()
    months = _MONTHS[period]
    first = (day.year * 12 + day.month - 1) // months * months
    year, month = divmod(first + months, 12)
    return _midnight(date(year, month + 1, 1), zone)


@lru_cache(maxsize=4096)
def _midnight(day: date, zone: str) -> int:
    return to_milliseconds(datetime.combine(day, time.min, ZoneInfo(zone)))
