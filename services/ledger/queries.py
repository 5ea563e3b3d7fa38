"""Reads the ledger. All functions block, so call them in a thread."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

import structlog
from sqlalchemy import ColumnElement, Connection, Row, func, select
from sqlalchemy.exc import ProgrammingError

from services.domain.entries import AccountVersion, Entry, Kind
from services.domain.formats import to_milliseconds
from services.domain.programme import DAY
from services.ledger.database import AWAY, reading_engine
from services.ledger.records import Undecodable, storable
from services.ledger.tables import AccountRow, EntryRow, GapRow, UndecodableRow

log = structlog.get_logger(__name__)

_PAGE = 1_000


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
            yield EntryRow.kind.in_([kind.value for kind in self.kinds])
        if self.start is not None:
            yield EntryRow.time >= self.start
        if self.end is not None:
            yield EntryRow.time < self.end


@dataclass(frozen=True, slots=True)
class Page:
    """A page of entries, the newest first. ``next`` is None on the last page."""

    entries: Sequence[Entry]
    next: AccountVersion | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A customer's entries of a period, the oldest first, and the totals before and after it in hundredths.

    ``closing`` is ``opening`` plus the points of the entries, even if the ledger lacks older entries.
    """

    opening: int
    closing: int
    entries: Iterator[Entry] = field(repr=False)


@dataclass(frozen=True, slots=True)
class KnownAccount:
    """An account of the ledger. ``card`` is None after the erasure."""

    id: int
    card: str | None
    pseudonym: str
    opened_time: int
    last_sequence: int
    erased_time: int | None


class MissingEntries(NamedTuple):
    """A range of missing sequence numbers of an account. Both ends are missing too."""

    account: KnownAccount
    first: int
    last: int


class LedgerQueries:
    """Reads one ledger. Every method raises LedgerUnavailableError if it does not answer."""

    def __init__(self, url: str) -> None:
        self._engine = reading_engine(url)

    def close(self) -> None:
        self._engine.dispose()

    def page(self, card: str, entry_filter: EntryFilter, limit: int, before: AccountVersion | None = None) -> Page:
        """A page of a customer's entries below the version ``before``. Raises UnknownCustomerError."""
        found: list[Entry] = []
        with self._connected() as connection:
            for account in reversed(_accounts_of(connection, card)):
                wanted = [EntryRow.account_id == account.id, *entry_filter.conditions()]
                if before:
                    if account.opened_time > before.opened_time:
                        continue
                    if account.opened_time == before.opened_time:
                        wanted.append(EntryRow.sequence < before.sequence)
                rows = select(EntryRow.__table__).where(*wanted).order_by(EntryRow.sequence.desc())
                limited = rows.limit(limit + 1 - len(found))
                found += [_entry(account, row) for row in connection.execute(limited)]
                if len(found) > limit:
                    return Page(found[:limit], found[limit - 1].version)
        return Page(found, None)

    def statement(self, card: str, entry_filter: EntryFilter) -> Statement:
        """A customer's statement. Its iterator reads the entries in pages. Raises UnknownCustomerError."""
        with self._connected() as connection:
            accounts = _accounts_of(connection, card)
            total = sum(_total(connection, account) for account in accounts)
            since = sum(_points_since(connection, account, entry_filter.start) for account in accounts)
            after = 0
            if entry_filter.end is not None:
                after = sum(_points_since(connection, account, entry_filter.end) for account in accounts)
        entries = (each for account in accounts for each in self._entries(account, entry_filter))
        return Statement(total - since, total - after, entries)

    def accounts(self) -> Iterator[KnownAccount]:
        """All accounts, in the order of their ids."""
        last = -1
        while True:
            with self._connected() as connection:
                page = select(AccountRow.__table__).where(AccountRow.id > last).order_by(AccountRow.id).limit(_PAGE)
                accounts = [_account(row) for row in connection.execute(page)]
            if not accounts:
                return
            yield from accounts
            last = accounts[-1].id

    def entries_of(self, account: KnownAccount) -> Iterator[Entry]:
        """All entries of an account, the oldest first."""
        return self._entries(account, EntryFilter())

    def gaps(self) -> list[MissingEntries]:
        """The gaps of all accounts."""
        statement = (
            select(AccountRow.__table__, GapRow.first_sequence.label("first"), GapRow.last_sequence.label("last"))
            .join(GapRow, GapRow.account_id == AccountRow.id)
            .order_by(AccountRow.id, GapRow.first_sequence)
        )
        with self._connected() as connection:
            return [MissingEntries(_account(row), row.first, row.last) for row in connection.execute(statement)]

    def undecodable(self) -> list[Undecodable]:
        """Records of the topic that are not entries."""
        table = UndecodableRow.__table__
        with self._connected() as connection:
            rows = connection.execute(select(table).order_by(UndecodableRow.partition, UndecodableRow.record_offset))
            return [Undecodable(row.partition, row.record_offset, row.append_time, row.reason) for row in rows]

    def _entries(self, account: KnownAccount, entry_filter: EntryFilter) -> Iterator[Entry]:
        """The entries up to the last sequence number of ``account``. Each page has a transaction of its own."""
        last = 0
        while True:
            with self._connected() as connection:
                between = (EntryRow.sequence > last, EntryRow.sequence <= account.last_sequence)
                wanted = (EntryRow.account_id == account.id, *between, *entry_filter.conditions())
                page = select(EntryRow.__table__).where(*wanted).order_by(EntryRow.sequence).limit(_PAGE)
                entries = [_entry(account, row) for row in connection.execute(page)]
            yield from entries
            if len(entries) < _PAGE:
                return
            last = entries[-1].sequence

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        # A ProgrammingError means that the tables do not exist yet. The ledger process creates them.
        except (*AWAY, ProgrammingError) as error:
            log.warning("the database of the ledger does not answer", error=str(error).partition("\n")[0])
            raise LedgerUnavailableError("the ledger does not answer") from error


def _accounts_of(connection: Connection, card: str) -> list[KnownAccount]:
    """The accounts of a card, the oldest first. There is more than one while an erasure has not been appended yet."""
    statement = select(AccountRow.__table__).where(AccountRow.card == storable(card)).order_by(AccountRow.opened_time)
    if not (accounts := [_account(row) for row in connection.execute(statement)]):
        raise UnknownCustomerError
    return accounts


def _total(connection: Connection, account: KnownAccount) -> int:
    """The total after the latest entry. A sum of all entries could lack entries before the start of the ledger."""
    latest = (EntryRow.account_id == account.id, EntryRow.sequence == account.last_sequence)
    return connection.execute(select(EntryRow.total).where(*latest)).scalar_one()


def _points_since(connection: Connection, account: KnownAccount, start: int | None) -> int:
    wanted = [EntryRow.account_id == account.id, EntryRow.sequence <= account.last_sequence]
    if start is not None:
        wanted.append(EntryRow.time >= start)
    return int(connection.execute(select(func.coalesce(func.sum(EntryRow.points), 0)).where(*wanted)).scalar_one())


def _account(row: Row[Any]) -> KnownAccount:
    return KnownAccount(row.id, row.card, row.pseudonym, row.opened_time, row.last_sequence, row.erased_time)


def _entry(account: KnownAccount, row: Row[Any]) -> Entry:
    return Entry(
        sequence=row.sequence,
        opened_time=account.opened_time,
        kind=Kind(row.kind),
        points=row.points,
        total=row.total,
        available=row.available,
        pending=row.pending,
        reserved=row.reserved,
        time=row.time,
        programme_version=row.programme_version,
        tier=row.tier,
        event_id=row.event_id,
        invoice_number=row.invoice_number,
        total_amount=Decimal(repr(row.total_amount)),
        expires_time=row.expires_time,
        reason=row.reason,
        actor=row.actor,
        counterparty=row.counterparty or "",
    )


def _start_of(day: date) -> int:
    return to_milliseconds(datetime.combine(day, time.min, UTC))
