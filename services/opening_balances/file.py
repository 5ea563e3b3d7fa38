"""Reads opening balances from files: CSV with a header, or JSON Lines. Points are hundredths.

A row has the members ``card``, ``points`` (above 0, at most two decimals) and ``expires``. ``expires`` is a date (the
points expire at its end), a time in ISO 8601 with its offset, or empty for points that never expire. A card may have
many rows.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from os.path import realpath
from pathlib import Path
from typing import Any

from services.domain.events import SentLot
from services.domain.formats import LAST_TIME, to_milliseconds
from services.domain.local_time import end_of_date
from services.domain.validation import BLANKS, LONGEST_TEXT, MOST_LINE_ITEMS, is_pseudonym

COLUMNS = ("card", "points", "expires")
_NO_TEXT = re.compile("[\ud800-\udfff\N{REPLACEMENT CHARACTER}]")
"""Finds characters that no card has: half of a surrogate pair, which an escape in JSON can produce, and the replacement
for bytes that are not UTF-8.
"""

LARGEST_POINTS = Decimal("9999999999.99")
"""The most points of one card. A command of the API has the same limit."""


@dataclass(slots=True)
class OpeningBalances:
    """The rows of all files.

    Attributes:
        cards: for each card, points by the time at which they expire (milliseconds since the epoch; 0: never).
        errors: one line for each wrong row, with the file, the number of its line and what is wrong.
    """

    rows: int = 0
    cards: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    errors: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        return sum(sum(lots.values()) for lots in self.cards.values())

    def lots_of(self, card: str) -> tuple[SentLot, ...]:
        return tuple(SentLot(points, expires) for expires, points in sorted(self.cards[card].items()))


class _RowError(ValueError):
    """A row is not valid. The message says what is wrong."""


_Row = Mapping[str, Any] | _RowError
"""A row, or why it cannot be read."""
_NO_OBJECT = 'is not a JSON object, such as {"card":"9265846829","points":"12.50","expires":"2027-12-31"}'


def read_files(files: Iterable[Path], zone: str, now: int) -> OpeningBalances:
    """Reads all rows, and each file once. Raises OSError if a file cannot be opened.

    Args:
        zone: the time zone in which a day ends, for example ``Europe/Berlin``.
        now: milliseconds since the epoch. Points that have expired by then are errors.
    """
    found = OpeningBalances()
    # A list such as *.csv old.csv names a file twice. A second read would double its points, because rows add up.
    for file in {realpath(each): each for each in files}.values():
        for number, row in _rows(file):
            found.rows += 1
            try:
                if isinstance(row, _RowError):
                    raise row
                _add(found, row, zone, now)
            except _RowError as error:
                found.errors.append(f"{file}, line {number}: {error}")
    return found


def _rows(file: Path) -> Iterator[tuple[int, _Row]]:
    """The rows of a file with the numbers of their lines."""
    number = 0
    for number, row in _read_rows(file):
        yield number, row
    if not number:
        yield 1, _RowError("has no rows")


def _read_rows(file: Path) -> Iterator[tuple[int, _Row]]:
    # "replace", because bytes that are not UTF-8 must be an error of their row only.
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        yield from _csv_rows(lines) if file.suffix.lower() == ".csv" else _json_rows(lines)


def _csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, _Row]]:
    reader = csv.DictReader(_whole_lines(lines), strict=True)
    try:
        columns = [name.strip(BLANKS) for name in reader.fieldnames or ()]
    except (csv.Error, _RowError) as error:
        # Without a header, no row of the file has a meaning.
        yield 1, _not_csv(error)
        return
    # No message repeats a text of the file, because it can be a card: a file can lack its header or mix up its columns.
    if len({*columns}) < len(columns):
        yield 1, _RowError("is not CSV: the header names a column more than once")
        return
    if missing := [name for name in ("card", "points") if name not in columns]:
        names = ", ".join(missing)
        yield 1, _RowError(f"is not CSV: the header does not name {names}: write {','.join(COLUMNS)}")
        return
    reader.fieldnames = columns
    yield from _rows_of(reader)


def _json_rows(lines: Iterable[str]) -> Iterator[tuple[int, _Row]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=_without_repeats)
                yield number, row if isinstance(row, Mapping) else _RowError(_NO_OBJECT)
            except _RowError as error:
                yield number, error
            except (ValueError, RecursionError):
                yield number, _RowError(_NO_OBJECT)
            except InvalidOperation:
                yield number, _RowError("has a number whose exponent is too large")


def _whole_lines(lines: Iterable[str]) -> Iterator[str]:
    # If the file was cut off within a field, the rest can look complete: 41 of 417.04, or an empty date of expiry.
    for line in lines:
        if not line.endswith(("\n", "\r")):
            raise _RowError("does not end with a line break: is the file complete?")
        yield line


def _rows_of(reader: "csv.DictReader[str]") -> Iterator[tuple[int, _Row]]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except (csv.Error, _RowError) as error:
            yield reader.line_num + 1, _not_csv(error)
            # DictReader counts only the lines of the rows that it returns.
            reader.line_num = reader.reader.line_num
            continue
        if None in row.values():
            yield reader.line_num, _RowError("has fewer fields than the header: is the file complete?")
        elif None in row:
            yield (
                reader.line_num,
                _RowError("has more fields than the header: quote a field with a comma, or remove a comma"),
            )
        else:
            yield reader.line_num, row


def _without_repeats(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise _RowError("has a name more than once")
    return found


def _not_csv(error: csv.Error | _RowError) -> _RowError:
    return error if isinstance(error, _RowError) else _RowError(f"is not CSV: {error}")


def _add(found: OpeningBalances, row: Mapping[str, Any], zone: str, now: int) -> None:
    if unknown := set(row) - set(COLUMNS):
        raise _RowError(f"has {len(unknown)} unknown columns; the columns are {', '.join(COLUMNS)}")
    card, points, expires = _card(row.get("card")), _points(row.get("points")), _expires(row.get("expires"), zone, now)
    lots = found.cards.get(card, {})
    if sum(lots.values()) + points > LARGEST_POINTS * 100:
        raise _RowError(f"the card gets more than {LARGEST_POINTS} points in all its rows")
    if expires not in lots and len(lots) >= MOST_LINE_ITEMS:
        raise _RowError(f"the card has more than {MOST_LINE_ITEMS} times of expiry in all its rows")
    found.cards[card][expires] = lots.get(expires, 0) + points


def _card(value: Any) -> str:
    if not isinstance(value, str) or not value.strip(BLANKS):
        raise _RowError("card is missing; it is a text")
    if value != value.strip(BLANKS):
        raise _RowError("card has blanks around it: remove them")
    if is_pseudonym(value):
        raise _RowError("card is a pseudonym: write the card of the customer")
    if len(value) > LONGEST_TEXT or _NO_TEXT.search(value):
        raise _RowError(f"card is longer than {LONGEST_TEXT} characters, or is not UTF-8")
    return value


def _points(value: Any) -> int:
    # Decimal also accepts 1_000 and the digits of other scripts.
    is_number = isinstance(value, Decimal) or (isinstance(value, str) and value.isascii() and "_" not in value)
    try:
        points = Decimal(value) if is_number else Decimal("nan")
    except InvalidOperation:
        points = Decimal("nan")
    if not points.is_finite() or not 0 < points <= LARGEST_POINTS or points != round(points, 2):
        raise _RowError("points are not a number above 0 with at most two decimals, such as 12.50")
    return int(points.scaleb(2))


def _expires(value: Any, zone: str, now: int) -> int:
    if value is None or value == "":
        return 0
    try:
        expires = _expiry_time(value, zone)
    except OverflowError:  # 9999-12-31 has no next day
        expires = LAST_TIME + 1
    except (ValueError, TypeError):
        wanted = "a date such as 2027-12-31, or a time such as 2027-12-31T22:00:00Z"
        raise _RowError(f"expires is not {wanted}") from None
    if expires > LAST_TIME:
        reason = "points cannot expire after the year 9999. Leave it empty if they never expire"
        raise _RowError(f"expires: {reason}")
    if expires <= now:
        raise _RowError("expires: the points have expired already. Remove the row")
    return expires


def _expiry_time(text: str, zone: str) -> int:
    if "T" not in text:
        return end_of_date(date.fromisoformat(text), zone)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no offset")
    return to_milliseconds(moment)
