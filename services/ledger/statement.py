"""A statement as CSV (RFC 4180): what it opened with, what happened, what it closed with."""

import csv
import io
from collections.abc import Iterator, Sequence

from services.domain.entries import Entry
from services.domain.formats import clamped_time_text, points_text
from services.ledger.queries import Selection, Statement

COLUMNS = (
    *("Time", "Kind", "Points", "TotalPoints", "InvoiceNumber", "TotalAmount", "EventID"),
    *("Reason", "Actor", "Counterparty", "Tier", "ExpiresTime"),
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Spreadsheets take a cell that begins with one of these for a formula (OWASP, CSV Injection); full-width ones too."""


def csv_lines(statement: Statement, selection: Selection) -> Iterator[str]:
    """The lines of the file. Raises LedgerUnavailableError in the middle: a file without its last line is none."""
    yield _line(COLUMNS)
    yield _balance(selection.first_day, "opening-balance", statement.opening)
    for entry in statement.entries:
        yield _line(_cells(entry))
    yield _balance(selection.last_day, "closing-balance", statement.closing)


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
    """What somebody else wrote: shown as it is, and never calculated."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
