"""Days and calendar periods of a time zone. Times are milliseconds since the epoch."""

from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from services.domain.formats import to_datetime
from services.domain.programme import Period

_MONTHS = {Period.MONTH: 1, Period.QUARTER: 3, Period.HALF_YEAR: 6, Period.YEAR: 12}


def local(moment: int, zone: str) -> datetime:
    """The clock on the wall at that time; raises OverflowError beyond the years 1 to 9999."""
    return to_datetime(moment).astimezone(ZoneInfo(zone))


def end_of_day(moment: int, zone: str) -> int:
    """The midnight after that time."""
    return _midnight(local(moment, zone).date() + timedelta(days=1), zone)


def period_of(moment: int, period: Period, zone: str) -> tuple[int, int]:
    """Start (inclusive) and end (exclusive) of the calendar period around that time."""
    day = local(moment, zone).date()
    months = _MONTHS[period]
    first = (day.year * 12 + day.month - 1) // months * months
    return _first_of_month(first, zone), _first_of_month(first + months, zone)


def _first_of_month(months: int, zone: str) -> int:
    return _midnight(date(months // 12, months % 12 + 1, 1), zone)


@lru_cache(maxsize=4096)
def _midnight(day: date, zone: str) -> int:
    return int(datetime.combine(day, time.min, ZoneInfo(zone)).timestamp()) * 1000
