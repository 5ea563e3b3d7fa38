"""Reads the ledger. All functions block, so call them in a thread."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, Row, func, select
from sqlalchemy.exc import DBAPIError

from services.domain.entries import AccountVersion, Entry, Kind
from services.domain.formats import to_milliseconds
from services.domain.programme import DAY
from services.ledger.database import AWAY, READ_SECONDS
from services.ledger.positions import own_ledger
from services.ledger.records import Undecodable, storable, stored_entry
from services.ledger.tables import ACCOUNT, ENTRY, GAP, HAS_INVOICE, UNDECODABLE
from services.settings import Settings

log = structlog.get_logger(__name__)

_PAGE = 1_000
_MOST_CUSTOMERS = 100
"""The most customers in a response. An invoice has few customers, but a till can use a number again and again."""


class LedgerUnavailableError(RuntimeError):
    """The database of the ledger does not answer, or has no tables yet."""


class UnknownCustomerError(LookupError):
    """The ledger has no account with this card."""


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Selects entries by kind and day.

    Attributes:
        kinds: an empty collection selects all kinds.
        first_day, last_day: days in UTC, both included; None for no limit.
    """

    kinds: Collection[Kind] = ()
    first_day: date | None = None
    last_day: date | None = None

    @property
    def start(self) -> int | None:
        """The first time that is selected, in milliseconds since the epoch."""
        return None if self.first_day is None else _start_of(self.first_day)

    @property
    def end(self) -> int | None:
        """The first time that is no longer selected, in milliseconds since the epoch."""
        return None if self.last_day is None else _start_of(self.last_day) + DAY

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        if self.kinds:
            yield ENTRY.c.kind.in_([kind.value for kind in self.kinds])
        if self.start is not None:
            yield ENTRY.c.time >= self.start
        if self.end is not None:
            yield ENTRY.c.time < self.end


@dataclass(frozen=True, slots=True)
class Page:
    """A page of entries, the newest first. ``next`` is None on the last page."""

    entries: Sequence[Entry]
    next: AccountVersion | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A customer's entries of a period, the oldest first, and the totals before and after the period in hundredths.

    If an entry has an earlier time than the previous entry, it belongs to the day of the previous entry. So each
    balance is a total that the account had. ``closing`` is ``opening`` plus the points of the entries, unless an entry
    between them is missing.
    """

    opening: int
    closing: int
    entries: Iterator[Entry] = field(repr=False)


class LedgerQueries:
    """Reads one ledger.

    Every method raises LedgerUnavailableError if the ledger does not answer, and LedgerError if it has another topic.
    ``seconds`` is the argument of ``reading_engine``.
    """

    def __init__(self, settings: Settings, *, seconds: int = READ_SECONDS) -> None:
        self._engine = own_ledger(settings, seconds=seconds)

    def close(self) -> None:
        self._engine.dispose()

    def page(self, card: str, entry_filter: EntryFilter, limit: int, before: AccountVersion | None = None) -> Page:
        """A page of a customer's entries below the version ``before``. Raises UnknownCustomerError."""
        with self._connected() as connection:
            account = _account_of(connection, card)
            wanted = [ENTRY.c.account_id == account.id, *entry_filter.conditions()]
            if before:
                if before.opened_time != account.opened_time:
                    return Page([], None)
                wanted.append(ENTRY.c.sequence < before.sequence)
            rows = select(ENTRY).where(*wanted).order_by(ENTRY.c.sequence.desc()).limit(limit + 1)
            found = [stored_entry(row, account.opened_time) for row in connection.execute(rows).mappings()]
        return Page(found[:limit], found[limit - 1].version if len(found) > limit else None)

    def statement(self, card: str, entry_filter: EntryFilter) -> Statement:
        """A customer's statement of all kinds. Its iterator reads the entries in pages. Raises UnknownCustomerError."""
        with self._connected() as connection:
            account = _account_of(connection, card)
            first = _first_since(connection, account, entry_filter.start)
            after = account.last_sequence + 1
            end = after if entry_filter.end is None else _first_since(connection, account, entry_filter.end)
            opening, closing = (_total_before(connection, account, number) for number in (first, end))
        return Statement(opening, closing, self._entries(account, first, end))

    def customers_of_invoice(self, number: str, only: str | None) -> list[str]:
        """Up to 100 cards with an entry of an invoice, sorted, without erased customers.

        Args:
            only: the only card that the result may contain; None for all cards.
        """
        visible = ACCOUNT.c.card.is_not(None) if only is None else ACCOUNT.c.card == storable(only)
        wanted = (HAS_INVOICE, ENTRY.c.invoice_number == storable(number), visible)
        statement = select(ACCOUNT.c.card).distinct().join(ENTRY).where(*wanted).order_by(ACCOUNT.c.card)
        with self._connected() as connection:
            return list(connection.execute(statement.limit(_MOST_CUSTOMERS)).scalars())

    def gaps(self) -> Sequence[Row[Any, Any, Any, Any, Any]]:
        """The missing entries of all accounts: card, pseudonym, opened_time, first_sequence and last_sequence."""
        columns = (ACCOUNT.c.card, ACCOUNT.c.pseudonym, ACCOUNT.c.opened_time)
        statement = select(*columns, GAP.c.first_sequence, GAP.c.last_sequence).join(GAP)
        with self._connected() as connection:
            return connection.execute(statement.order_by(ACCOUNT.c.id, GAP.c.first_sequence)).all()

    def undecodable(self) -> list[Undecodable]:
        """Records of the topic that are not entries."""
        statement = select(UNDECODABLE).order_by(UNDECODABLE.c.partition, UNDECODABLE.c.record_offset)
        with self._connected() as connection:
            rows = connection.execute(statement)
            return [Undecodable(row.partition, row.record_offset, row.append_time, row.reason) for row in rows]

    def _entries(self, account: Row[Any], first: int, end: int) -> Iterator[Entry]:
        """The entries with these sequence numbers, without ``end``. Each page has its own transaction."""
        while True:
            with self._connected() as connection:
                wanted = (ENTRY.c.account_id == account.id, ENTRY.c.sequence >= first, ENTRY.c.sequence < end)
                page = select(ENTRY).where(*wanted).order_by(ENTRY.c.sequence).limit(_PAGE)
                entries = [stored_entry(row, account.opened_time) for row in connection.execute(page).mappings()]
            yield from entries
            if len(entries) < _PAGE:
                return
            first = entries[-1].sequence + 1

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        # A ProgrammingError means that the tables do not exist yet. A DatabaseError means that a file is no database.
        except (*AWAY, DBAPIError) as error:
            log.warning("the database of the ledger does not answer", error=str(error).partition("\n")[0])
            raise LedgerUnavailableError("the ledger does not answer") from error


def _account_of(connection: Connection, card: str) -> Row[Any]:
    """The newest account of a card. An older one is erased, but an earlier release can have missed its erasure."""
    statement = select(ACCOUNT).where(ACCOUNT.c.card == storable(card)).order_by(ACCOUNT.c.opened_time.desc())
    if not (account := connection.execute(statement).first()):
        raise UnknownCustomerError
    return account


def _first_since(connection: Connection, account: Row[Any], time: int | None) -> int:
    """The sequence number of the first entry at or after this time; the next sequence number if there is none."""
    wanted = [ENTRY.c.account_id == account.id, ENTRY.c.sequence <= account.last_sequence]
    if time is not None:
        wanted.append(ENTRY.c.time >= time)
    first = func.coalesce(func.min(ENTRY.c.sequence), account.last_sequence + 1)
    return int(connection.execute(select(first).where(*wanted)).scalar_one())


def _total_before(connection: Connection, account: Row[Any], number: int) -> int:
    """The total before this sequence number. A sum of points would lack the entries that the ledger does not have."""
    entries = select(ENTRY.c.total, ENTRY.c.points).where(ENTRY.c.account_id == account.id)
    earlier = entries.where(ENTRY.c.sequence < number).order_by(ENTRY.c.sequence.desc()).limit(1)
    if latest := connection.execute(earlier).first():
        return int(latest.total)
    first = connection.execute(entries.order_by(ENTRY.c.sequence).limit(1)).one()
    return int(first.total - first.points)


def _start_of(day: date) -> int:
    return to_milliseconds(datetime.combine(day, time.min, UTC))
