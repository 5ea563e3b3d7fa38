"""What is served and what the ledger has, read for the audit without Spark."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from schemas.topics import LOYALTY
from services.audit.facts import Source
from services.codecs.records import notification_record
from services.domain.entries import Entry, Kind
from services.messaging.avro import encoder
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings
from services.state_stores.catalogue import BALANCES

_PAGE = 1_000
_SECONDS = 40.0
"""For one page: an instance waits for the others before it says that its answer is partial."""
_ASK_AGAIN = 0.5


class UnreadableError(RuntimeError):
    """A source could not be read; the message says why."""

    def __init__(self, source: Source, reason: str) -> None:
        super().__init__(f"{source}: {' '.join(reason.split())}")
        self.source = source


class Fact(NamedTuple):
    """A fact with whose it is: the card, or where that is not known any more, its pseudonym."""

    card: str | None
    pseudonym: str | None
    value: bytes


def served_balances(url: str) -> Iterator[Fact]:
    """Every balance that the API at this URL serves, page by page; raises UnreadableError."""
    # A proxy of the environment is for other machines' addresses; the API is where the settings say.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    cursor = None
    while True:
        after = f"&cursor={cursor}" if cursor else ""
        page = _page(opener, f"{url.rstrip('/')}/v1/stores/{BALANCES}/all?limit={_PAGE}{after}")
        yield from (Fact(entry["key"], None, orjson.dumps(entry["value"])) for entry in page["entries"])
        cursor = page["next"]
        if cursor is None:
            return


def _page(opener: urllib.request.OpenerDirector, url: str) -> dict[str, Any]:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            with opener.open(url, timeout=_SECONDS) as answer:
                page: dict[str, Any] = json.load(answer)
            if not page["partial"]:
                return page
            reason = f"partitions {page['missingPartitions']} are missing"
        except (OSError, ValueError, KeyError) as error:
            reason = str(error)
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:  # noqa: PLR2004 - asking again is no use
                raise UnreadableError(Source.BALANCE, f"{url}: {reason}") from error
        if time.monotonic() > deadline:
            raise UnreadableError(Source.BALANCE, f"{url}: {reason}")
        time.sleep(_ASK_AGAIN)


def ledger_entries(settings: Settings, ids: SchemaIds) -> Iterator[Fact]:
    """Every entry of the ledger as a Notification, in one snapshot; raises UnreadableError."""
    try:
        from sqlalchemy import select, text  # noqa: PLC0415 - where there is no ledger, its library need not be
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

        from services.ledger.database import LedgerError, reading_engine  # noqa: PLC0415
        from services.ledger.tables import AccountRow, EntryRow  # noqa: PLC0415
    except ImportError as error:
        raise UnreadableError(Source.LEDGER, f"{error}: install the extra `ledger`") from error
    encode = encoder(LOYALTY, ids)
    accounts, entries = AccountRow.__table__, EntryRow.__table__
    statement = select(accounts.c.card, accounts.c.pseudonym, accounts.c.opened_time, *entries.c).join(entries)
    try:
        engine = reading_engine(settings.ledger_url)
        try:
            with engine.connect() as connection:
                if engine.dialect.name == "postgresql":  # whoever answers a request must give up soon; not this
                    connection.execute(text("SET statement_timeout = 0"))
                    connection.execute(text("SET idle_in_transaction_session_timeout = 0"))
                rows = connection.execution_options(yield_per=_PAGE).execute(statement)
                for row in rows.mappings():
                    card = row["card"]
                    yield Fact(card, row["pseudonym"], encode(notification_record(card or "", _entry(row))))
        finally:
            engine.dispose()
    except (SQLAlchemyError, LedgerError) as error:
        # SQLAlchemy's own words name its documentation; the database's name the cause.
        raise UnreadableError(Source.LEDGER, str(getattr(error, "orig", None) or error)) from error


def _entry(row: Any) -> Entry:
    fields = {name: row[name] for name in Entry.__dataclass_fields__}
    return Entry(**fields | {"kind": Kind(row["kind"]), "counterparty": row["counterparty"] or ""})
