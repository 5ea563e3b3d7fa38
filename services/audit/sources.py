"""Reads the served balances and the ledger for the audit, without Spark."""

import json
import time
import urllib.error
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from ssl import SSLContext
from typing import Any, NamedTuple
from urllib.request import OpenerDirector

import orjson

from schemas.topics import LOYALTY
from services.api_keys.client import opener
from services.audit.facts import Source
from services.codecs.records import notification_record
from services.errors import UserError
from services.messaging.avro import encoder
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings
from services.state_stores.catalogue import BALANCES

_PAGE = 1_000
_PAGE_SECONDS = 40.0
"""The timeout for one page. An instance waits for its peers before it returns a partial page."""
_RETRY_SECONDS = 0.5


class UnreadableError(UserError):
    """A source cannot be read. The message says why."""

    def __init__(self, source: Source, reason: str) -> None:
        super().__init__(f"{source}: {' '.join(reason.split())}")


class Fact(NamedTuple):
    """A fact of a customer. After an erasure in the ledger, ``card`` is None, and ``pseudonym`` names the customer."""

    card: str | None
    pseudonym: str | None
    value: bytes


def served_balances(url: str, key_file: Path | None = None, tls: SSLContext | None = None) -> Iterator[Fact]:
    """All balances that the API at this URL serves. Raises UnreadableError.

    Args:
        key_file: the file with the API key. Without a file that can be read, the requests have no credentials.
        tls: the TLS context. None: trust the authorities of the system.
    """
    api, cursor = opener(key_file, tls), None
    while True:
        after = f"&cursor={cursor}" if cursor else ""
        page = _page(api, f"{url.rstrip('/')}/v1/stores/{BALANCES}/all?limit={_PAGE}{after}")
        yield from (Fact(entry["key"], None, orjson.dumps(entry["value"])) for entry in page["entries"])
        cursor = page["next"]
        if cursor is None:
            return


def _page(api: OpenerDirector, url: str) -> dict[str, Any]:
    shown = url.partition("?")[0]  # without the cursor: it has a card, and the topic audit-runs keeps the error
    deadline = time.monotonic() + _PAGE_SECONDS
    while True:
        try:
            with api.open(url, timeout=_PAGE_SECONDS) as response:
                page: dict[str, Any] = json.load(response)
            if not page["partial"]:
                return page
            reason = f"partitions {page['missingPartitions']} are missing"
        except (OSError, HTTPException, ValueError, KeyError) as error:
            reason = str(error)
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                # Another attempt cannot succeed, unless the server failed or the audit sent too many requests.
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.TOO_MANY_REQUESTS:
                    raise UnreadableError(Source.BALANCE, f"{shown}: {reason}") from error
        if time.monotonic() > deadline:
            raise UnreadableError(Source.BALANCE, f"{shown}: {reason}")
        time.sleep(_RETRY_SECONDS)


def ledger_entries(settings: Settings, ids: SchemaIds, key_id: str) -> Iterator[Fact]:
    """All entries of the ledger as encoded Notifications, from one transaction.

    ``key_id`` identifies the key of all other pseudonyms (``Pseudonyms.key_id``). Raises UnreadableError, also if the
    ledger has another topic, or another key: each customer would be two customers.
    """
    try:
        from sqlalchemy import select  # noqa: PLC0415 - the extra `ledger` is optional
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

        from services.ledger.database import LedgerError  # noqa: PLC0415
        from services.ledger.positions import own_ledger, require_same  # noqa: PLC0415
        from services.ledger.records import stored_entry  # noqa: PLC0415
        from services.ledger.tables import ACCOUNT, ENTRY  # noqa: PLC0415
    except ImportError as error:
        raise UnreadableError(Source.LEDGER, f"{error}: install the extra `ledger`") from error
    encode = encoder(LOYALTY, ids)
    statement = select(ACCOUNT.c.card, ACCOUNT.c.pseudonym, ACCOUNT.c.opened_time, *ENTRY.c).join(ENTRY)
    try:
        engine = own_ledger(settings, seconds=0)
        try:
            with engine.connect() as connection:
                require_same(connection, {"pseudonym key": key_id})
                rows = connection.execution_options(yield_per=_PAGE).execute(statement)
                for row in rows.mappings():
                    entry = stored_entry(row, row["opened_time"])
                    yield Fact(row["card"], row["pseudonym"], encode(notification_record(row["card"] or "", entry)))
        finally:
            engine.dispose()
    except (SQLAlchemyError, LedgerError) as error:
        # Use the database's message. SQLAlchemy's message adds a link to its documentation.
        raise UnreadableError(Source.LEDGER, str(getattr(error, "orig", None) or error)) from error
