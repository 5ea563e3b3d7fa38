"""The schema and its migrations: services.ledger.database."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import DBAPIError

from services.ledger.database import LedgerError, migrate, parse_url, reading_engine, writing_engine
from services.ledger.tables import METADATA, PROPERTY

SUM = 0.1 + 0.2


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = writing_engine(database_url)
    yield engine
    engine.dispose()


@pytest.mark.filterwarnings("ignore:.*expression-based index")  # SQLite does not show them
def test_migrations_give_the_tables_of_the_code(engine: Engine) -> None:
    """After all migrations the schema of the database equals the tables of the code."""
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": "ledger_version"})
        assert [] == compare_metadata(context, METADATA)


def test_migrating_again_changes_nothing(engine: Engine) -> None:
    """Each start migrates. Existing data stays."""
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(insert(PROPERTY).values(name="a", value="b"))
    migrate(engine)
    with engine.connect() as connection:
        assert [("a", "b")] == [tuple(row) for row in connection.execute(select(PROPERTY))]


def test_processes_may_migrate_at_once(database_url: str) -> None:
    """If several processes start with an empty database, one creates the tables."""

    def start() -> None:
        engine = writing_engine(database_url)
        try:
            migrate(engine)
        finally:
            engine.dispose()

    with ThreadPoolExecutor(4) as pool:
        assert [None] * 4 == [future.result() for future in [pool.submit(start) for _ in range(4)]]


def test_a_later_schema_is_refused(engine: Engine) -> None:
    """A process that does not know the schema raises an error and writes nothing."""
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE ledger_version SET version_num = '9999'"))
    with pytest.raises(LedgerError, match="9999"):
        migrate(engine)


def test_readers_of_a_file_cannot_write(tmp_path: Path) -> None:
    """A reader opens the file read-only, and creates no missing file."""
    url = f"sqlite:///{tmp_path / 'a ledger?.sqlite'}".replace("?", "%3F")
    engine, reader = writing_engine(url), reading_engine(url)
    with pytest.raises(DBAPIError, match="unable to open"), reader.connect() as connection:
        connection.execute(text("SELECT 1"))
    migrate(engine)
    with pytest.raises(DBAPIError, match="readonly"), reader.connect() as connection:
        connection.execute(insert(PROPERTY).values(name="a", value="b"))
    engine.dispose()


@pytest.mark.parametrize("engine_of", [writing_engine, reading_engine])
def test_no_error_shows_a_value(database_url: str, engine: Engine, engine_of: Callable[[str], Engine]) -> None:
    """Values have cards, and errors are in logs."""
    migrate(engine)
    other = engine_of(database_url)
    with pytest.raises(DBAPIError, match="nothing") as caught, other.connect() as connection:
        connection.execute(text("SELECT * FROM nothing WHERE card = :card"), {"card": "9265846829"})
    other.dispose()
    assert "9265846829" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "is not the URL"),
        ("mysql://root:secret@host/db", "neither sqlite"),
        ("postgresql://loyalty:p@secret:word@db/loyalty", "write %40 for @"),
        ("postgresql://loyalty:x@db:secret/loyalty", "write %40 for @"),
        ("sqlite://", "neither sqlite"),
        ("sqlite:///:memory:", "neither sqlite"),
    ],
)
def test_other_databases_are_refused(url: str, reason: str) -> None:
    """The message names the supported databases and shows no password."""
    with pytest.raises(LedgerError, match=reason) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_options_in_the_url_of_postgresql_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger adds its own options, and does not replace those of the URL."""
    seen: dict[str, object] = {}

    def connect(*_: object, **arguments: object) -> None:
        seen.update(arguments)
        raise psycopg.OperationalError

    monkeypatch.setattr(psycopg, "connect", connect)
    engine = reading_engine("postgresql://u@h/d?options=-csearch_path%3Dloyalty&connect_timeout=30")
    with pytest.raises(DBAPIError):
        engine.connect()

    assert "30" == seen["connect_timeout"]
    # Without these, a call waits for two hours for a host that died.
    assert [5_000, 5, 5] == [seen[name] for name in ("tcp_user_timeout", "keepalives_idle", "keepalives_interval")]
    assert "statement_timeout" in str(seen["options"])
    assert str(seen["options"]).endswith(" -csearch_path=loyalty")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_default_of_the_database_does_not_change_the_isolation(database_url: str) -> None:
    """With the isolation "repeatable read", a transaction would not see what was committed while it waited for the
    lock.
    """
    engine = writing_engine(f"{database_url}&options=-cdefault_transaction_isolation%3Dserializable")
    with engine.connect() as connection:
        assert "read committed" == connection.scalar(text("SHOW transaction_isolation"))
    engine.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("engine_of", [writing_engine, reading_engine])
def test_a_default_of_the_database_does_not_change_texts_and_amounts(
    database_url: str, engine_of: Callable[[str], Engine]
) -> None:
    """An old program can need another encoding of its session. An amount keeps all its digits."""
    set_default(database_url, "SET client_encoding = 'LATIN1'")
    set_default(database_url, "SET extra_float_digits = 0")
    engine = engine_of(database_url)
    with engine.connect() as connection:
        row = connection.execute(
            text("SELECT cast(:price AS text), cast(:sum AS float8)"), {"price": "5 €", "sum": SUM}
        )
        assert ("5 €", SUM) == tuple(row.one())
    engine.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_writer_continues_after_the_database_was_read_only(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session stays read-only for its whole life, so the writer starts a new one after some time."""
    monkeypatch.setattr("services.ledger.database._SESSION_SECONDS", 0)
    engine = writing_engine(database_url)
    migrate(engine)
    engine.dispose()
    set_default(database_url, "SET default_transaction_read_only = on")
    row = insert(PROPERTY).values(name="a", value="b")
    with pytest.raises(DBAPIError, match="read-only"), engine.begin() as connection:
        connection.execute(row)
    set_default(f"{database_url}&options=-cdefault_transaction_read_only%3Doff", "RESET default_transaction_read_only")
    with engine.begin() as connection:
        connection.execute(row)
    engine.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_limit_of_a_reader(database_url: str) -> None:
    """A statement may take as long as the reader says, and a reader without a limit may read as long as it needs."""
    engine = reading_engine(database_url, seconds=1)
    with pytest.raises(DBAPIError, match="statement timeout"), engine.connect() as connection:
        connection.execute(text("SELECT pg_sleep(60)"))
    engine.dispose()
    engine = reading_engine(database_url, seconds=0)
    with engine.connect() as connection:
        limits = "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')"
        assert ("0", "0") == tuple(connection.execute(text(limits)).one())
    engine.dispose()


def set_default(url: str, change: str) -> None:
    """Change a default for new sessions of this database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" {change}'.encode())


@pytest.mark.parametrize("url", ["postgresql://u:p@h/d", "postgresql+psycopg2://u:p@h/d"])
def test_one_driver_for_postgresql(url: str) -> None:
    """All URLs of PostgreSQL use psycopg 3."""
    assert "postgresql+psycopg" == parse_url(url).drivername
