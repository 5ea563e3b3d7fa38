"""Connects to the ledger's database and migrates its schema."""

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

import stamina
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from services.errors import UserError
from services.start_up import require_writable

AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeoutError)
"""Errors of a database that is unreachable, busy, full or read-only. The same statement can succeed later."""

_CONNECT_SECONDS = 3
_WRITE_SECONDS = 60
BUSY_MILLISECONDS = _WRITE_SECONDS * 1000
"""How long a writer waits for another writer in SQLite."""
READ_SECONDS = 5
"""How long a reader that serves HTTP requests waits for the database."""
_SESSION_SECONDS = 60
"""How long the ledger uses a session of PostgreSQL. A session keeps the defaults that the database had when the session
began, for example ``default_transaction_read_only``.
"""
_LOCK = 0x10A17
"""The number of the advisory lock. Nothing else in the database uses it."""


class LedgerError(UserError):
    """The ledger cannot use its database, and a second attempt would fail too. The message says what to change."""

    exit_status = 2


def parse_url(url: str) -> URL:
    """Parse the URL of the database. Raises LedgerError if the ledger does not support the database."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # SQLAlchemy quotes a part of the URL, which can be a part of the password.
        raise LedgerError(
            "LOYALTY_LEDGER_URL is not the URL of a database; an example is sqlite:///var/ledger.sqlite. In a name or "
            "a password write %40 for @, %3A for : and %2F for /"
        ) from None
    if parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise LedgerError(
        f"LOYALTY_LEDGER_URL names {parsed.drivername}, which is neither sqlite:///file nor postgresql://…; the ledger "
        "supports these two"
    )


def writing_engine(url: str) -> Engine:
    """The engine of the ledger process.

    In SQLite each transaction starts with the lock of the writer, so that no other process changes what it reads.
    Raises LedgerError, and StartUpError if the folder of a SQLite file cannot be written.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _postgresql(parsed, _WRITE_SECONDS, pool_size=1)
    folder = Path(str(parsed.database)).parent
    require_writable(folder, "LOYALTY_LEDGER_URL")
    folder.mkdir(parents=True, exist_ok=True)
    engine = _engine(parsed, connect_args={"timeout": _WRITE_SECONDS})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver must not start transactions
        # If two processes change the mode of a new database, each can get the error "busy" at once, without a wait.
        for attempt in stamina.retry_context(on=_is_busy, attempts=None, timeout=_WRITE_SECONDS, wait_initial=0.01):
            with attempt:
                connection.execute("PRAGMA journal_mode = WAL")
        for pragma in (
            # A power failure can undo the last commit. It undoes entries and positions together.
            "synchronous = NORMAL",
            "foreign_keys = ON",
            # Erased data must not stay on free pages.
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def reading_engine(url: str, *, seconds: int = READ_SECONDS) -> Engine:
    """The engine of readers. It cannot write or create a file.

    Args:
        seconds: how long a statement of PostgreSQL may take, and how long a transaction may wait for the next statement
            of the reader; 0 for no limit.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _postgresql(parsed, seconds, pool_size=5, pool_timeout=READ_SECONDS)
    uri = parsed.set(database=f"file:{quote(str(parsed.database))}", query={"mode": "ro", "uri": "true"})
    # Use no pool: only a new connection sees a file that was created again, and a new connection is cheap.
    return _engine(uri, connect_args={"timeout": READ_SECONDS}, poolclass=NullPool)


def _postgresql(url: URL, seconds: int, **options: Any) -> Engine:
    timeouts = f"-c statement_timeout={seconds}s -c idle_in_transaction_session_timeout={seconds}s"
    silence = seconds or _WRITE_SECONDS
    arguments: dict[str, int | str] = {
        "connect_timeout": _CONNECT_SECONDS,
        # Without these three, a call waits for two hours for a host that died.
        "tcp_user_timeout": silence * 1000,
        "keepalives_idle": silence,
        "keepalives_interval": silence,
        # A default of the database must not change what the ledger stores or reads.
        "client_encoding": "utf8",
    }
    # An operator can set the same arguments in the query of the URL. ``connect_args`` would override them.
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    options_of_url = url.normalized_query.get("options", ())
    arguments["options"] = " ".join((timeouts, "-c extra_float_digits=1", *options_of_url))
    options |= {"pool_pre_ping": True, "pool_recycle": _SESSION_SECONDS, "connect_args": arguments}
    # A transaction must see what was committed while it waited for the lock. The database can have another default.
    return _engine(url, isolation_level="READ COMMITTED", **options)


def _engine(url: URL, **options: Any) -> Engine:
    # Parameters contain card numbers, and errors appear in logs.
    return create_engine(url, hide_parameters=True, **options)


def _check_encoding(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        encoding = connection.scalar(text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise LedgerError(f"the ledger's database has the encoding {encoding}; create one with the encoding UTF8")


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def lock(connection: Connection) -> None:
    """Prevent other processes from setting up the ledger and from appending until this transaction ends.

    In SQLite every transaction of a writer does that.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def migrate(engine: Engine) -> None:
    """Migrate the schema to the version of this code, in one transaction. Several processes may call this together.

    Raises LedgerError if the schema has a later version, or if the database cannot store texts of all languages.
    """
    # Readers of the ledger do not need Alembic, and its import takes 0.1 s.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "services.ledger:migrations")
    with engine.begin() as connection:
        _check_encoding(connection)
        lock(connection)
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise LedgerError(
                f"this version does not know the schema of the ledger; use the version that migrated it: {error}"
            ) from error
