"""The hours of a trading day."""

from bisect import bisect_right
from datetime import date, datetime, time, timedelta, timezone
from itertools import accumulate

TIME_ZONE = timezone(timedelta(hours=5, minutes=30), "IST")
"""India has one time zone and no summer time."""

OPENING_HOUR = 9
CUSTOMERS_PER_HOUR = (2, 4, 6, 8, 7, 5, 5, 6, 9, 12, 11, 7, 3)
"""The relative number of customers in each hour from 09:00 to 22:00."""

_MS_PER_HOUR = 3_600_000
_CLOSED_BY = tuple(accumulate(CUSTOMERS_PER_HOUR))


def opening(day: date) -> int:
    """The opening time of a day, in milliseconds since the epoch."""
    return int(datetime.combine(day, time(OPENING_HOUR), TIME_ZONE).timestamp()) * 1000


def since_opening(part_of_trade: float) -> int:
    """Milliseconds after the opening at which this part (0 to below 1) of the day's trade is done."""
    done = part_of_trade * _CLOSED_BY[-1]
    hour = bisect_right(_CLOSED_BY, done)
    before = _CLOSED_BY[hour - 1] if hour else 0
    return int((hour + (done - before) / CUSTOMERS_PER_HOUR[hour]) * _MS_PER_HOUR)
