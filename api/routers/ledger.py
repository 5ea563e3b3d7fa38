"""The entries of a customer's account, from the ledger database. Every instance reads the same database."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from itertools import chain, islice
from typing import Annotated, Any
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.datastructures import URL

from api.dependencies import LedgerDep
from api.http import problems
from api.http.parameters import Card, Limit
from api.http.responses import json_response
from api.schemas.fields import must_match
from api.schemas.ledger import InvoiceCustomers, LedgerPage
from api.security.caller import Caller
from api.security.permissions import caller_of, needs
from services.api_keys.keys import Scope
from services.domain.entries import AccountVersion, Entry, Kind
from services.domain.formats import clamped_time_text, points_text
from services.domain.validation import LONGEST_TEXT
from services.ledger.database import LedgerError
from services.ledger.queries import EntryFilter, LedgerUnavailableError, UnknownCustomerError
from services.ledger.statement import csv_lines

log = structlog.get_logger(__name__)

router = APIRouter(prefix="/v1/customers", tags=["customers"], dependencies=[needs(Scope.LEDGER_READ)])

_CACHING = "private, no-store"
_CURSOR = re.compile(r"(\d{1,19})\.(\d{1,19})")
_CHUNK_LINES = 1_000
"""The lines of each part of a statement. The first part is read before the response begins, so an error in it becomes a
problem, and not a truncated response. Most statements have only one part.
"""


# Pydantic alone accepts a number of seconds.
Day = Annotated[date, must_match(r"\d{4}-\d{2}-\d{2}", "must be a date, for example 2026-01-31")]
FirstDay = Annotated[Day | None, Query(alias="from", description="The first day in UTC, inclusive.")]
LastDay = Annotated[Day | None, Query(alias="to", description="The last day in UTC, inclusive.")]


class NoLedgerEntries(problems.NotFound, code="unknown-customer", title="No such customer"):
    """The ledger has no entry of this card. Entries appear about a second after the balance. Check the card number."""


class LedgerUnavailable(
    problems.Unavailable, code="ledger-unavailable", title="The ledger is unavailable", retry_after=5
):
    """The API cannot reach the database of the ledger, or no ledger process has created it, or it has the entries of
    another deployment. Repeat the request later. Balances do not need the ledger.
    """


async def days_of_request(first: FirstDay = None, last: LastDay = None) -> EntryFilter:
    if first and last and first > last:
        raise problems.InvalidParameters.in_query("from", "must not be after to")
    return EntryFilter((), first, last)


async def cursor_of_request(
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the previous page.")] = None,
) -> AccountVersion | None:
    if cursor is None:
        return None
    try:
        match = _CURSOR.fullmatch(urlsafe_b64decode(cursor.encode("ascii")).decode("ascii"))
        found = AccountVersion(*map(int, match.groups())) if match else None
    except ValueError:
        found = None
    if found is None or max(found) >= 2**63:
        raise problems.InvalidParameters.in_query("cursor", "is not a cursor: use next of a response")
    return found


Days = Annotated[EntryFilter, Depends(days_of_request)]
_PROBLEMS = problems.responses(NoLedgerEntries, problems.InvalidParameters, LedgerUnavailable)


@contextmanager
def _ledger_problems() -> Iterator[None]:
    """Turn the errors of the ledger into problems."""
    try:
        yield
    except UnknownCustomerError as error:
        raise NoLedgerEntries from error
    except LedgerUnavailableError as error:
        raise LedgerUnavailable from error
    except LedgerError as error:
        log.error("the ledger is refused", error=str(error))  # noqa: TRY400 - an operator can solve it
        raise LedgerUnavailable from error


# The routes are plain functions, so that FastAPI runs them in threads, because the calls of the database block.
@router.get(
    "/{card}/entries",
    summary="The entries of a customer's account",
    response_model=LedgerPage,
    responses={
        200: {"headers": {"Link": {"description": "rel=next: the next page.", "schema": {"type": "string"}}}},
        **_PROBLEMS,
    },
)
def entries(  # noqa: PLR0913, PLR0917 - each parameter of the request is a parameter
    request: Request,
    card: Card,
    ledger: LedgerDep,
    days: Days,
    before: Annotated[AccountVersion | None, Depends(cursor_of_request)],
    kind: Annotated[list[Kind] | None, Query(max_length=len(Kind), description="Only these kinds.")] = None,
    limit: Limit = 100,
) -> Response:
    """The entries of a customer's account, newest first. They appear about one second after the balance.

    New entries do not change older pages. There are no entries of an erased account.
    """
    entry_filter = EntryFilter(frozenset(kind or ()), days.first_day, days.last_day)
    with _ledger_problems():
        page = ledger.page(card, entry_filter, limit, before)
    headers, cursor = {}, None
    if page.next:
        cursor = urlsafe_b64encode(f"{page.next.opened_time}.{page.next.sequence}".encode()).decode()
        # Take the path as the client sent it. In the decoded path, a ? or # of the card would end the path of the link.
        path, query = quote(request.scope["raw_path"], safe="/%"), request.scope["query_string"].decode("latin-1")
        headers["Link"] = f'<{URL(path=path, query=query).include_query_params(cursor=cursor)}>; rel="next"'
    body = {"entries": [_body(_visible(caller_of(request), entry)) for entry in page.entries], "next": cursor}
    return json_response(body, caching=_CACHING, headers=headers)


@router.get(
    "/{card}/statement",
    summary="A customer's statement",
    response_class=Response,
    responses={
        200: {"description": "The statement.", "content": {"text/csv": {"schema": {"type": "string"}}}},
        **_PROBLEMS,
    },
)
def statement(request: Request, card: Card, ledger: LedgerDep, days: Days) -> Response:
    """The opening balance, the entries of these days from the oldest to the newest, and the closing balance, as CSV.

    In a cell with free text, an apostrophe is before each part that a spreadsheet would run as a formula. Such a part
    can also begin after a semicolon, a tab or a line break. A response without the line `closing-balance` is
    incomplete.
    """
    with _ledger_problems():
        found, caller = ledger.statement(card, days), caller_of(request)
        lines = csv_lines(replace(found, entries=(_visible(caller, entry) for entry in found.entries)), days)
        start = "".join(islice(lines, _CHUNK_LINES))
    headers = {"Cache-Control": _CACHING, "Content-Disposition": 'attachment; filename="statement.csv"'}
    return StreamingResponse(chain([start], _chunks(lines)), headers=headers, media_type="text/csv; charset=utf-8")


invoices = APIRouter(prefix="/v1/invoices", tags=["customers"], dependencies=[needs(Scope.LEDGER_READ)])


@invoices.get(
    "/{invoice:path}/customers",
    summary="The customers of an invoice",
    response_model=InvoiceCustomers,
    responses=problems.responses(problems.InvalidParameters, LedgerUnavailable),
)
def customers_of_invoice(
    request: Request,
    invoice: Annotated[
        str, Path(min_length=1, max_length=LONGEST_TEXT, description="InvoiceNumber. May contain slashes.")
    ],
    ledger: LedgerDep,
) -> Response:
    """Up to 100 cards that have an entry of this invoice. A caller that is limited to one card sees no other card."""
    with _ledger_problems():
        cards = ledger.customers_of_invoice(invoice, caller_of(request).card)
    return json_response({"customers": cards}, caching=_CACHING)


def _chunks(lines: Iterator[str]) -> Iterator[str]:
    """Groups of lines, because Starlette calls a thread for each part of a response."""
    while chunk := "".join(islice(lines, _CHUNK_LINES)):
        yield chunk


def _visible(caller: Caller, entry: Entry) -> Entry:
    """The entry as the caller may see it.

    A caller that is limited to one card does not see where an account moved, and who sent a transfer to its customer.
    """
    if caller.card is None:
        return entry
    if entry.kind in {Kind.MOVED_OUT, Kind.FORWARDED}:
        return replace(entry, counterparty="")
    is_of_sender = entry.kind in {Kind.RECEIVED, Kind.REFUSED} and entry.counterparty
    return replace(entry, actor="") if is_of_sender else entry


def _body(entry: Entry) -> dict[str, Any]:
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
        "Tier": entry.tier or None,
        "ProgrammeVersion": entry.programme_version,
        "EventID": entry.event_id,
        "InvoiceNumber": entry.invoice_number,
        "TotalAmount": float(entry.total_amount),
        "ExpiresTime": clamped_time_text(entry.expires_time) if entry.expires_time else None,
        "Reason": entry.reason,
        "Actor": entry.actor,
        "Counterparty": entry.counterparty,
    }
