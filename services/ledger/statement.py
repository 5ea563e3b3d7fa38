"""Writes a statement as CSV (RFC 4180): opening balance, entries, closing balance."""

import csv
import io
import re
from collections.abc import Iterator, Sequence

from services.domain.entries import Entry
from services.domain.formats import clamped_time_text, points_text
from services.ledger.queries import EntryFilter, Statement

COLUMNS = (
    *("Time", "Kind", "Points", "TotalPoints", "InvoiceNumber", "TotalAmount", "EventID"),
    *("Reason", "Actor", "Counterparty", "Tier", "ExpiresTime"),
)

_FORMULA = re.compile("(?<![^;\t\r\n])(?=[=+@\uff1d\uff0b\uff0d\uff20-])")
"""The start of a text that a spreadsheet evaluates as a formula (OWASP, CSV Injection). Some spreadsheets begin a new
cell after a semicolon or a tab, and a new line after a line break.
"""


def csv_lines(statement: Statement, entry_filter: EntryFilter) -> Iterator[str]:
    """The lines of the file. Can raise LedgerUnavailableError after some lines; then the last line is missing."""
    yield _line(COLUMNS)
    yield _balance(entry_filter.first_day, "opening-balance", statement.opening)
    for entry in statement.entries:
        yield _line(_cells(entry))
    yield _balance(entry_filter.last_day, "closing-balance", statement.closing)


def _balance(day: object, name: str, points: int) -> str:
    return _line(["" if day is None else str(day), name, "", points_text(points), *[""] * (len(COLUMNS) - 4)])


def _cells(entry: Entry) -> list[str]:
    has_invoice = bool(entry.invoice_number)
    return [
        clamped_time_text(entry.time),
        entry.kind.value,
        points_text(entry.points),
        points_text(entry.total),
        _text(entry.invoice_number),
        str(entry.total_amount) if has_invoice else "",
        _text(entry.event_id),
        _text(entry.reason),
        _text(entry.actor),
        _text(entry.counterparty),
        _text(entry.tier),
        clamped_time_text(entry.expires_time) if entry.expires_time else "",
    ]


def _text(text: str) -> str:
    """The text, with an apostrophe before each part that a spreadsheet would evaluate as a formula."""
    return _FORMULA.sub("'", text)


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
