"""Converts texts of a file to values. Errors say what is allowed. ``scalar`` makes a pydantic validator of each."""

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

from pydantic import PlainValidator

Value = TypeVar("Value")
Word = TypeVar("Word", bound=StrEnum)

_LONGEST_TEXT = 200

_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DURATION = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,3})?)S)?)?", re.ASCII)
_CALENDAR = re.compile(r"P(\d+W)?\d+[YM].*", re.ASCII)
_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = 10**14
"""In milliseconds. It is below the maximum of a timedelta."""


def scalar(convert: Callable[[str], Value]) -> PlainValidator:
    """Returns a validator of single values. ``convert`` raises ValueError with a reason."""

    def check(value: object) -> Value:
        if not isinstance(value, str):
            raise ValueError("must be a single value, neither a list nor a map")  # noqa: TRY004 - pydantic handles no TypeError
        if not value.strip():
            raise ValueError("has no value")
        return convert(value)

    return PlainValidator(check)


def number(low: str, high: str, places: int) -> Callable[[str], Decimal]:
    """Returns a converter to an exact decimal in a range, both ends included."""

    def convert(text: str) -> Decimal:
        if not _DECIMAL.fullmatch(text):
            raise ValueError(f"{_quoted(text)} is not a decimal number such as 0.02")
        found = Decimal(text)
        if not Decimal(low) <= found <= Decimal(high):
            raise ValueError(f"{text} is not between {low} and {high}")
        if -int(found.normalize().as_tuple().exponent) > places:
            raise ValueError(f"{text} has more than {places} decimal places")
        return found

    return convert


def points(low: str, high: str) -> Callable[[str], int]:
    """Returns a converter of points with two places to hundredths."""
    exact = number(low, high, places=2)
    return lambda text: int(exact(text).scaleb(2))


def whole(low: int, high: int) -> Callable[[str], int]:
    """Returns a converter to an integer."""
    exact = number(str(low), str(high), places=0)
    return lambda text: int(exact(text))


def duration(low: timedelta, high: timedelta) -> Callable[[str], int]:
    """Returns a converter of an ISO 8601 duration (weeks, days, hours, minutes, seconds) to milliseconds."""

    def convert(text: str) -> int:
        found = _timedelta(text)
        if not low <= found <= high:
            raise ValueError(f"{text} is not between {in_iso(low)} and {in_iso(high)}")
        return found // _MILLISECOND

    return convert


def _timedelta(text: str) -> timedelta:
    if _CALENDAR.fullmatch(text):
        raise ValueError(f"{text}: months and years have no fixed length; give days, such as P365D")
    match = _DURATION.fullmatch(text)
    if not match or not any(match.groups()) or text.endswith("T"):
        raise ValueError(f"{_quoted(text)} is not an ISO 8601 duration such as P30D or PT15M")
    weeks, days, hours, minutes, seconds = (Decimal(part or 0) for part in match.groups())
    milliseconds = (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1_000
    if milliseconds > _LONGEST:
        raise ValueError(f"{text} is too long")
    return int(milliseconds) * _MILLISECOND


def in_iso(length: timedelta) -> str:
    """Returns the duration as ISO 8601, in days or in the largest smaller unit that gives a whole number."""
    seconds, rest = divmod(length // _MILLISECOND, 1_000)
    if rest:
        return f"PT{seconds}.{rest:03}".rstrip("0") + "S"
    if seconds % 86_400 == 0:
        return f"P{seconds // 86_400}D"
    for unit, size in (("H", 3600), ("M", 60)):
        if seconds % size == 0:
            return f"PT{seconds // size}{unit}"
    return f"PT{seconds}S"


def choice(allowed: Mapping[str, Value]) -> Callable[[str], Value]:
    """Returns a converter that allows these words only."""

    def convert(text: str) -> Value:
        if text not in allowed:
            raise ValueError(f"{_quoted(text)} is not known; allowed: {', '.join(allowed)}")
        return allowed[text]

    return convert


def member(words: type[Word]) -> Callable[[str], Word]:
    """Returns a converter to a member of an enumeration."""
    return choice({word.value: word for word in words})


def text(value: str) -> str:
    """Checks that the text is printable and not too long."""
    if len(value) > _LONGEST_TEXT or not value.isprintable() or value != value.strip():
        raise ValueError(f"{_quoted(value)} is not a text of at most {_LONGEST_TEXT} printable characters")
    return value


def day(text: str) -> date:
    """Converts YYYY-MM-DD to a date."""
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"{_quoted(text)} is not a day such as 2026-12-24")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 50 else text[:47] + "…")  # noqa: PLR2004 - enough to recognise it
