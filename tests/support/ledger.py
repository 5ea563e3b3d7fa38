"""A ledger without Kafka, and the contents of its database."""

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Engine, select, text

from services.domain.entries import Entry
from services.ledger.appender import Appended, Appender, Batch
from services.ledger.database import reading_engine, writing_engine
from services.ledger.positions import Span
from services.ledger.records import CardEntry, stored_entry
from services.ledger.tables import ACCOUNT, ENTRY, GAP, METADATA
from services.pseudonyms import Pseudonyms

PSEUDONYMS = Pseudonyms(b"k" * 32)
TOPIC_ID = "incarnation-1"
EVERYTHING = {0: (0, 1_000_000)}


class Ledger:
    """A ledger that appends the entries of a test as records of partition 0."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = writing_engine(url)
        self.appender = Appender(self.engine, PSEUDONYMS, "loyalty")
        self.appender.set_up()
        self.position = self.appender.open(TOPIC_ID, EVERYTHING, {})[0]

    def append(self, *entries: tuple[str, Entry]) -> Appended:
        """Append entries with their cards as the next records."""
        appended = self.appender.append(self.batch(*entries))
        self.position += len(entries)
        return appended

    def batch(self, *entries: tuple[str, Entry]) -> Batch:
        span = Span(self.position, self.position + len(entries))
        return Batch([CardEntry(card, each) for card, each in entries], [], {0: span})

    def gaps(self) -> list[tuple[int, int]]:
        with self.engine.connect() as connection:
            return sorted((row.first_sequence, row.last_sequence) for row in connection.execute(select(GAP)))

    def cards(self) -> list[str | None]:
        with self.engine.connect() as connection:
            return list(connection.scalars(select(ACCOUNT.c.card).order_by(ACCOUNT.c.id)))

    def close(self) -> None:
        self.engine.dispose()


def empty(url: str) -> None:
    """Delete all that earlier tests have left in PostgreSQL: sessions with their locks, rows and the next id."""
    engine = writing_engine(url)
    with engine.begin() as connection:
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute(text(others))
        connection.execute(text(f"TRUNCATE {', '.join(METADATA.tables)} RESTART IDENTITY"))
    engine.dispose()


def stored(engine: Engine) -> list[tuple[str, int, int, int]]:
    """The pseudonym, OpenedTime, sequence number and points of each entry."""
    columns = (ACCOUNT.c.pseudonym, ACCOUNT.c.opened_time, ENTRY.c.sequence, ENTRY.c.points)
    statement = select(*columns).join(ENTRY, ENTRY.c.account_id == ACCOUNT.c.id).order_by(*columns[:3])
    with engine.connect() as connection:
        return [(row[0], row[1], row[2], row[3]) for row in connection.execute(statement)]


def entries_in(url: str) -> list[tuple[str | None, str, Entry]]:
    """The card, the pseudonym and the entry of each row. Raises the errors of the database."""
    engine = reading_engine(url)
    try:
        statement = select(ACCOUNT.c.card, ACCOUNT.c.pseudonym, ACCOUNT.c.opened_time, *ENTRY.c).join(ENTRY)
        with engine.connect() as connection:
            rows = connection.execute(statement).mappings().all()
    finally:
        engine.dispose()
    return [(row["card"], row["pseudonym"], stored_entry(row, row["opened_time"])) for row in rows]


def expected(entries: Iterable[tuple[str, Entry]]) -> list[tuple[str, int, int, int]]:
    """The result of ``stored`` if the database has each of these entries once."""
    return sorted({(PSEUDONYMS.of(card), each.opened_time, each.sequence, each.points) for card, each in entries})


def texts(engine: Engine) -> str:
    """All values of accounts and entries, as text."""
    with engine.connect() as connection:
        tables = (ACCOUNT, ENTRY)
        return "\n".join(str(tuple(row)) for table in tables for row in connection.execute(select(table)))


def bytes_of(url: str) -> bytes:
    """All bytes of the files of SQLite, including deleted rows that are not overwritten yet."""
    file = Path(url.removeprefix("sqlite:///"))
    return b"".join(each.read_bytes() for each in file.parent.glob(f"{file.name}*"))
