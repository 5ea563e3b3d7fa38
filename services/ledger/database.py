"""Connections to the ledger's database, and its schema."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

AWAY = (OperationalError, InterfaceError, PoolTimeoutError)
"""Errors of a database that is away, busy or full: the same statement may work later."""

_CONNECT_SECONDS = 3
_WRITE_SECONDS = 60
BUSY_MILLISECONDS = _WRITE_SECONDS * 1000
"""How long a writer of SQLite waits for another."""
_READ_SECONDS = 5
_LOCK = 0x10A17
"""Any number, as long as nothing else in the database locks the same one."""


class LedgerError(RuntimeError):
    """The ledger's database cannot be used as it is; trying again does not help, and the message says what would."""


def parse_url(url: str) -> URL:
    """The URL of a database that the ledger can use; raises LedgerError."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError("LOYALTY_LEDGER_URL is no URL of a database, as sqlite:///var/ledger.sqlite") from None
    if parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise LedgerError(f"LOYALTY_LEDGER_URL: {parsed.drivername} is neither sqlite:///file nor postgresql://…")


def writing_engine(url: str) -> Engine:
    """For the ledger process. SQLite takes its lock as a transaction begins: nothing is read that others change."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _postgresql(parsed, _WRITE_SECONDS, pool_size=1)
    Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = _engine(parsed, connect_args={"timeout": _WRITE_SECONDS})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself
        for pragma in (
            "journal_mode = WAL",
            # A commit that a power cut undoes takes its offsets with it, and is read again.
            "synchronous = NORMAL",
            "foreign_keys = ON",
            # What an erasure overwrites must not stay on free pages.
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def reading_engine(url: str) -> Engine:
    """For whoever answers from the ledger: it writes nothing, makes no file, and gives up soon."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _postgresql(parsed, _READ_SECONDS, pool_size=5, pool_timeout=_READ_SECONDS)
    uri = parsed.set(database=f"file:{quote(str(parsed.database))}", query={"mode": "ro", "uri": "true"})
    # A file that was made anew must be seen, and opening one costs little.
    return _engine(uri, connect_args={"timeout": _READ_SECONDS}, poolclass=NullPool)


def _postgresql(url: URL, seconds: int, **options: Any) -> Engine:
    timeouts = {
        "connect_timeout": _CONNECT_SECONDS,
        "options": f"-c statement_timeout={seconds}s -c idle_in_transaction_session_timeout={seconds}s",
        "tcp_user_timeout": seconds * 1000,
    }
    return _engine(url, pool_pre_ping=True, connect_args=timeouts, **options)


def _engine(url: URL, **options: Any) -> Engine:
    # Parameters hold card numbers, and errors go to logs.
    return create_engine(url, hide_parameters=True, **options)


def _check_encoding(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        encoding = connection.scalar(text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise LedgerError(f"the ledger's database has the encoding {encoding}: UTF8 is needed")


def lock(connection: Connection) -> None:
    """Let no other process set up the ledger until the end of this transaction; SQLite's transactions do so anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def migrate(engine: Engine) -> None:
    """Bring the schema to what this code expects, in one transaction; several processes may do so at once.

    Raises LedgerError where the schema is of a later version, or where texts of all languages cannot be stored.
    """
    config = Config()
    config.set_main_option("script_location", "services.ledger:migrations")
    with engine.begin() as connection:
        _check_encoding(connection)
        lock(connection)
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise LedgerError(f"the ledger's schema is not one that this version knows: {error}") from error
