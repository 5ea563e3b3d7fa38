"""Appends entries to the ledger. One transaction stores the entries of a batch and the new positions."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.dialects import postgresql, sqlite

from services.domain.entries import Kind
from services.ledger import erasure, positions
from services.ledger.accounts import AccountKey, Accounts
from services.ledger.database import BUSY_MILLISECONDS, lock, migrate
from services.ledger.positions import Span
from services.ledger.records import CardEntry, Undecodable, storable
from services.ledger.tables import ENTRY, GAP, UNDECODABLE
from services.pseudonyms import Pseudonyms

log = structlog.get_logger(__name__)

_FIELDS = [column.name for column in ENTRY.columns if column.name != "account_id"]
"""The fields of an entry that are columns."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of the topic: the entries, the undecodable records, and the offsets of both by partition."""

    entries: Sequence[CardEntry]
    undecodable: Sequence[Undecodable]
    spans: Mapping[int, Span]


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of a batch.

    Attributes:
        entries: the number of new rows. The other entries were in the ledger already.
        erased: the number of accounts whose card was deleted.
        gaps: the change of the number of gaps.
        gaps_opened: the number of new gaps. An entry that fills a part of a gap opens none.
    """

    entries: int = 0
    erased: int = 0
    gaps: int = 0
    gaps_opened: int = 0


class Appender:
    """The only writer of the ledger. If a method raises an error, its transaction is rolled back."""

    def __init__(self, engine: Engine, pseudonyms: Pseudonyms, topic: str) -> None:
        self._engine = engine
        self._pseudonyms = pseudonyms
        self._topic = topic
        self._topic_id = ""
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._insert = sqlite.insert if self._is_sqlite else postgresql.insert
        # The former process may have left erased data in the write-ahead log.
        self._erased_data_in_log = True

    def set_up(self) -> None:
        """Create or migrate the tables, and tie the ledger to this topic and this pseudonym key.

        Raises LedgerError if the ledger cannot use the database, or is tied to others.
        """
        migrate(self._engine)
        with self._engine.begin() as connection:
            lock(connection)
            positions.bind(connection, {"topic": self._topic, "pseudonym key": self._pseudonyms.key_id})

    def stored_offsets(self) -> dict[int, int]:
        """The stored position of each partition."""
        with self._engine.connect() as connection:
            return positions.stored_offsets(connection)

    def open(
        self, topic_id: str, partitions: Mapping[int, tuple[int, int]], before: Mapping[int, int]
    ) -> dict[int, int]:
        """The offset to continue from, by partition. See ``positions.open_positions`` for the arguments."""
        with self._engine.begin() as connection:
            lock(connection)
            starts = positions.open_positions(connection, topic_id, partitions, before)
        self._topic_id = topic_id
        return starts

    def count_gaps(self) -> int:
        with self._engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(GAP)).scalar_one()

    def check(self, starts: Mapping[int, int]) -> None:
        """Raise PositionMovedError if the ledger has other positions, or a database error if it is not available."""
        with self._engine.connect() as connection:
            positions.check(connection, self._topic_id, starts)

    def append(self, batch: Batch) -> Appended:
        """Append a batch. Raises PositionMovedError if another process has appended these offsets."""
        with self._engine.begin() as connection:
            # Only one process may append at a time. Otherwise a process could write an entry that names a card while
            # another process erases this card, and the card would stay.
            lock(connection)
            positions.claim(connection, self._topic_id, batch.spans)
            self._insert_undecodable(connection, batch.undecodable)
            appended = self._append(connection, batch.entries) if batch.entries else Appended()
        self._erased_data_in_log = self._erased_data_in_log or appended.erased > 0
        return appended

    def checkpoint_after_erasure(self) -> None:
        """Truncate SQLite's write-ahead log if it can contain erased data.

        If a reader or a full disk prevents this, the next call does it.
        """
        if not (self._is_sqlite and self._erased_data_in_log):
            return
        with closing(self._engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
            try:
                ((busy, *_),) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.OperationalError as error:
                log.warning("cannot truncate the write-ahead log; the ledger tries again", error=str(error))
                return
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        self._erased_data_in_log = bool(busy)

    def _append(self, connection: Connection, entries: Sequence[CardEntry]) -> Appended:
        cards = {card for each in entries for card in {each.card, *erasure.named_cards(each.entry)}}
        pseudonyms = {card: self._pseudonyms.of(card) for card in cards}
        keyed = [(AccountKey(pseudonyms[each.card], each.entry.opened_time), each) for each in entries]
        erasures = {key: (each.card, each.entry.time) for key, each in keyed if each.entry.kind is Kind.ERASED}
        accounts = Accounts(connection, pseudonyms.values())
        # A card that this batch erases is never written.
        accounts.open({key: None if key in erasures else storable(each.card) for key, each in keyed})
        missed = _missed_erasures(keyed, accounts)
        erased = 0
        for key, (card, time) in (*erasures.items(), *sorted(missed.items())):  # each account gets its own time
            # Entries after a missed erasure can name the next customer of the card.
            latest = None if key in erasures else time
            for account in accounts.erase(key, time):
                erasure.hide_in_table(connection, account.id, card, key.pseudonym, latest)
                erased += 1
        rows = [_row(key, each, accounts, pseudonyms) for key, each in keyed]
        insert = self._insert(ENTRY).on_conflict_do_nothing()
        new = connection.execute(insert.execution_options(preserve_rowcount=True), rows).rowcount
        sequences: defaultdict[AccountKey, list[int]] = defaultdict(list)
        for key, each in keyed:
            sequences[key].append(each.entry.sequence)
        gaps, gaps_opened = accounts.append(sequences)
        return Appended(new, erased, gaps, gaps_opened)

    def _insert_undecodable(self, connection: Connection, records: Sequence[Undecodable]) -> None:
        rows = [
            {
                "topic_id": self._topic_id,
                "partition": record.partition,
                "record_offset": record.offset,
                "append_time": record.append_time,
                "reason": storable(record.reason),
            }
            for record in records
        ]
        if rows:
            connection.execute(self._insert(UNDECODABLE).on_conflict_do_nothing(), rows)


def _missed_erasures(
    keyed: Sequence[tuple[AccountKey, CardEntry]], accounts: Accounts
) -> dict[AccountKey, tuple[str, int]]:
    """For each account that has a later account: its card, and the latest time at which the erasure can have happened.

    A card gets an account with a later OpenedTime only after an erasure. The ledger can have missed the erasure. It can
    also learn of the older account only now, from a notification that was sent again.
    """
    opened = {pseudonym: accounts.opened_times(pseudonym) for pseudonym in {key.pseudonym for key, _ in keyed}}
    missed = {}
    for key, each in keyed:
        # An entry after the opening of another account proves that its account was not erased before. Release 0.1
        # could give the next customer of a card an earlier OpenedTime.
        times = [time for time in opened[key.pseudonym] if time <= key.opened_time or time > each.entry.time]
        for first, following in pairwise(times):
            missed[AccountKey(key.pseudonym, first)] = each.card, following - 1
    return missed


def _row(key: AccountKey, each: CardEntry, accounts: Accounts, pseudonyms: Mapping[str, str]) -> dict[str, Any]:
    """The columns of an entry, without the data of erased customers."""
    entry, account = each.entry, accounts[key]
    values = ((name, getattr(entry, name)) for name in _FIELDS)
    row = {name: storable(value) if isinstance(value, str) else value for name, value in values} | {
        "account_id": account.id,
        "kind": entry.kind.value,
        "total_amount": float(entry.total_amount),
        "counterparty": storable(entry.counterparty) or None,
    }
    if account.erased_time is not None:
        erasure.hide_in_row(row, each.card, key.pseudonym)
    for named in erasure.named_cards(entry) - {each.card}:
        if accounts.is_erased(pseudonyms[named], entry.time):
            erasure.hide_in_row(row, named, pseudonyms[named])
    return row
