"""What has happened to a customer's points, from the ledger. Any instance answers: the ledger is one for all."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import chain, islice
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, BeforeValidator, Field

from api.http import problems
from services.domain.entries import AccountVersion, Entry, Kind
from services.domain.formats import clamped_time_text, points_text
from services.ledger.queries import (
    EntryFilter,
    LedgerQueries,
    LedgerUnavailableError,
    Page,
    UnknownCustomerError,
)
from services.ledger.statement import csv_lines

router = APIRouter(prefix="/v1/customers", tags=["customers"])

LONGEST_PAGE = 1_000

_HEADERS = {"Cache-Control": "private, no-store"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CURSOR = re.compile(r"(\d{1,19})\.(\d{1,19})")
Points = Annotated[str, Field(pattern=r"^-?\d+\.\d{2}$")]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def _iso_date(value: object) -> object:
    # Pydantic alone would take numbers of seconds too.
    if isinstance(value, str) and not _DATE.fullmatch(value):
        raise ValueError("should be a date as 2026-01-31")
    return value


Card = Annotated[str, Path(min_length=1, max_length=128, description="CustomerCardNo", examples=["9265846829"])]
Day = Annotated[date, BeforeValidator(_iso_date)]
FirstDay = Annotated[Day | None, Query(alias="from", description="First day, in UTC; itself included.")]
LastDay = Annotated[Day | None, Query(alias="to", description="Last day, in UTC; itself included.")]


class LedgerEntry(BaseModel):
    """One entry, in the words of the record Notification; points are exact, so they are strings."""

    Sequence: int = Field(ge=1, description="Counts the entries of the account.")
    OpenedTime: Time = Field(description="When the account was opened.")
    UpdatedTime: Time = Field(description="When it happened; UTC.")
    Kind: str = Field(examples=["earned"])
    EarnedLoyaltyPoints: Points = Field(description="How the entry changes the total.", examples=["-10.00"])
    TotalLoyaltyPoints: Points = Field(description="After the entry.")
    AvailableLoyaltyPoints: Points
    PendingLoyaltyPoints: Points
    ReservedLoyaltyPoints: Points
    Tier: str
    ProgrammeVersion: int
    EventID: str = Field(description="Of what caused it; empty where time did.")
    InvoiceNumber: str = Field(description="Empty where no invoice is behind it.")
    TotalAmount: float = Field(description="Of the invoice.")
    ExpiresTime: Time | None = Field(description="When these points expire, or the reservation.")
    Reason: str
    Actor: str
    Counterparty: str = Field(description="The other card of a transfer; a pseudonym once that customer is erased.")


class EntryPage(BaseModel):
    """Entries, the newest first."""

    entries: list[LedgerEntry]
    next: str | None = Field(description="The cursor of the next page, as in the header Link; null: no more.")


async def ledger_of(request: Request) -> LedgerQueries:
    """The app's ledger; a problem if it has none."""
    ledger: LedgerQueries | None = getattr(request.app.state, "ledger", None)
    if ledger is None:
        raise problems.LedgerUnavailable
    return ledger


async def between(first: FirstDay = None, last: LastDay = None) -> EntryFilter:
    """The days of the request."""
    if first and last and first > last:
        raise problems.InvalidParameters.in_query("from", "should not be after to")
    return EntryFilter((), first, last)


async def cursor_of(
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before.")] = None,
) -> AccountVersion | None:
    if cursor is None:
        return None
    try:
        found = _CURSOR.fullmatch(urlsafe_b64decode(cursor.encode("ascii")).decode("ascii"))
        place = AccountVersion(*map(int, found.groups())) if found else None
    except ValueError:
        place = None
    if place is None or max(place) >= 2**63:
        raise problems.InvalidParameters.in_query("cursor", "is none of this service")
    return place


Ledger = Annotated[LedgerQueries, Depends(ledger_of)]
Days = Annotated[EntryFilter, Depends(between)]
_PROBLEMS = problems.responses(problems.NoLedgerEntries, problems.InvalidParameters, problems.LedgerUnavailable)


# Not async: the database is asked in a thread of the pool, and the event loop goes on answering.
@router.get(
    "/{card}/entries",
    summary="What has happened to a customer's points",
    response_model=EntryPage,
    responses={
        200: {"headers": {"Link": {"description": "rel=next: the next page.", "schema": {"type": "string"}}}},
        **_PROBLEMS,
    },
)
def entries(  # noqa: PLR0913, PLR0917 - one parameter a parameter of the request
    request: Request,
    card: Card,
    ledger: Ledger,
    days: Days,
    before: Annotated[AccountVersion | None, Depends(cursor_of)],
    kind: Annotated[list[Kind] | None, Query(max_length=len(Kind), description="Only these kinds.")] = None,
    limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="Entries a page.")] = 100,
) -> Response:
    """The entries of a customer's account, the newest first; behind the balance by a second or so.

    Pages stay what they are while entries are added. Nothing is found of an account that has been erased.
    """
    entry_filter = EntryFilter(frozenset(kind or ()), days.first_day, days.last_day)
    try:
        page = ledger.page(card, entry_filter, limit, before)
    except UnknownCustomerError as error:
        raise problems.NoLedgerEntries from error
    except LedgerUnavailableError as error:
        raise problems.LedgerUnavailable from error
    body, headers = _page(page), dict(_HEADERS)
    if body["next"]:
        url = request.url.include_query_params(cursor=body["next"])
        headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return Response(orjson.dumps(body), headers=headers, media_type="application/json")


@router.get(
    "/{card}/statement",
    summary="A customer's statement",
    response_class=Response,
    responses={
        200: {"description": "The statement.", "content": {"text/csv": {"schema": {"type": "string"}}}},
        **_PROBLEMS,
    },
)
def statement(card: Card, ledger: Ledger, days: Days) -> Response:
    """The opening balance, the entries of these days, the oldest first, and the closing balance, as CSV.

    A cell of somebody's words that a spreadsheet would calculate has an apostrophe before it. An answer without the
    line `closing-balance` has been cut off.
    """
    try:
        lines = csv_lines(ledger.statement(card, days), days)
        start = "".join(islice(lines, _CHUNK))
    except UnknownCustomerError as error:
        raise problems.NoLedgerEntries from error
    except LedgerUnavailableError as error:
        raise problems.LedgerUnavailable from error
    headers = {**_HEADERS, "Content-Disposition": 'attachment; filename="statement.csv"'}
    return StreamingResponse(chain([start], _chunks(lines)), headers=headers, media_type="text/csv; charset=utf-8")


_CHUNK = 1_000
"""Lines. Most statements are shorter, and so fail with a problem rather than in the middle."""


def _chunks(lines: Iterator[str]) -> Iterator[str]:
    """Lines together: each piece of an answer costs a turn of a thread."""
    while chunk := "".join(islice(lines, _CHUNK)):
        yield chunk


def _page(page: Page) -> Mapping[str, Any]:
    cursor = page.next and urlsafe_b64encode(f"{page.next.opened_time}.{page.next.sequence}".encode()).decode()
    return {"entries": [_json(entry) for entry in page.entries], "next": cursor}


def _json(entry: Entry) -> dict[str, Any]:
    return {
        "Sequence": entry.sequence,
        "OpenedTime": clamped_time_text(entry.opened_time),
        "UpdatedTime": clamped_time_text(entry.time),
        "Kind": entry.kind.value,
        "EarnedLoyaltyPoints": points_text(entry.points),
        "TotalLoyaltyPoints": points_text(entry.total),
        "AvailableLoyaltyPoints": points_text(entry.available),
        "PendingLoyaltyPoints": points_text(entry.pending),
        "ReservedLoyaltyPoints": points_text(entry.reserved),
        "Tier": entry.tier,
        "ProgrammeVersion": entry.programme_version,
        "EventID": entry.event_id,
        "InvoiceNumber": entry.invoice_number,
        "TotalAmount": float(entry.total_amount),
        "ExpiresTime": clamped_time_text(entry.expires_time) if entry.expires_time else None,
        "Reason": entry.reason,
        "Actor": entry.actor,
        "Counterparty": entry.counterparty,
    }
