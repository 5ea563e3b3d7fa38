"""Points and times as people and programs outside read them."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = -62_135_596_800_000
_LAST = 253_402_300_799_999


def points_text(hundredths: int) -> str:
    """Two places, exact: -5 is ``-0.05``."""
    sign = "-" if hundredths < 0 else ""
    whole, rest = divmod(abs(hundredths), 100)
    return f"{sign}{whole}.{rest:02}"


def time_text(milliseconds: int) -> str:
    """ISO 8601 in UTC with milliseconds; before the year 1 and after 9999 the first, or last, moment of those."""
    moment = _EPOCH + timedelta(milliseconds=min(max(milliseconds, _FIRST), _LAST))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
