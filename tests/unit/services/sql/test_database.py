"""Statements: their time zone, what they reach, how they end, and what a missing source says."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from services.errors import UserError
from services.ledger.database import LedgerError
from services.ledger.queries import LedgerUnavailableError
from services.settings import Settings
from services.sql import database as database_module
from services.sql.database import Database, SqlError
from tests.unit.services.sql.rows import rows


@pytest.fixture
def machine_in_kiritimati() -> Iterator[None]:
    """The zone of this process is 14 hours before UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("machine_in_kiritimati")
def test_statements_are_in_utc_on_every_machine(opened: Callable[..., Database]) -> None:
    """`now()` and the times of the tables are comparable. A time with a zone becomes a text and a day in UTC."""
    database = opened()
    ((now, today),) = rows(database, "SELECT now()::TIMESTAMP, current_date")
    assert timedelta(minutes=5) > abs(datetime.now(UTC).replace(tzinfo=None) - now)
    assert now.date() == today
    statement = "SELECT strftime(t, '%m-%d %H'), t::DATE FROM (SELECT TIMESTAMPTZ '2026-11-30 20:00+00' AS t)"
    assert [("11-30 20", date(2026, 11, 30))] == rows(database, statement)


@pytest.mark.usefixtures("ledger")
def test_ctrl_c_stops_a_statement(tmp_path: Path) -> None:
    """DuckDB stops its work, and the database answers the next statement."""
    settings = Settings(ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}", export_dir=str(tmp_path / "export"))
    with closing(Database(settings, lambda _: os.kill(os.getpid(), signal.SIGINT))) as database:
        with pytest.raises(KeyboardInterrupt):
            database.run("SELECT sum(sqrt(range)) FROM range(1_000_000_000_000), (SELECT count(*) FROM ledger_entry)")
        assert [(1,)] == rows(database, "SELECT 1")


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT * FROM nothing", "nothing does not exist"),
        ("INSTALL httpfs", "disabled by configuration"),
        ("LOAD httpfs", "disabled"),
        ("SELECT * FROM 'https://127.0.0.1:1/a.parquet'", "disabled by configuration"),
        ("SELECT * FROM 's3://bucket/a.parquet'", "disabled by configuration"),
        ("ATTACH '/etc/passwd'", "disabled by configuration"),
        ("SELECT * FROM read_text('/etc/hostname')", "disabled by configuration"),
        ("SET enable_external_access = true", "configuration has been locked"),
        ("SELECT * FROM settings", "settings does not exist"),
    ],
)
def test_a_statement_reaches_only_its_tables(database: Database, statement: str, error: str) -> None:
    """It reaches no extension, no network, no file outside of the working directory, and no variable of Python."""
    settings = "a Python variable"
    assert settings
    with pytest.raises(SqlError, match=error):
        database.run(statement)


def test_files_of_the_working_directory_can_be_joined(
    opened: Callable[..., Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analyst's own CSV is a table too, and COPY writes one."""
    monkeypatch.chdir(tmp_path)
    database = opened()
    database.run("COPY (SELECT 1 AS a UNION ALL SELECT 2) TO 'mine.csv'")
    assert [(3,)] == rows(database, "SELECT sum(a)::INTEGER FROM 'mine.csv'")


def test_only_its_owner_can_read_what_does_not_fit_into_memory(
    opened: Callable[..., Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files can have cards. The working directory gets no file, and the database deletes its files at its end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setitem(database_module._CONFIGURATION, "memory_limit", "20MB")
    database = opened()
    database.run("CREATE TABLE t AS SELECT md5(range::VARCHAR) AS a FROM range(1_000_000)")
    (folder,) = (tmp_path / "temporary").iterdir()
    assert list(folder.iterdir())
    assert "0o700" == oct(folder.stat().st_mode & 0o777)
    database.close()
    assert ["temporary"] == [each.name for each in tmp_path.iterdir()]
    assert [] == list((tmp_path / "temporary").iterdir())


def test_a_failed_transaction_ends_with_rollback(opened: Callable[..., Database]) -> None:
    database = opened()
    database.run("BEGIN")
    with pytest.raises(SqlError, match="Could not convert"):
        database.run("SELECT 'x'::INTEGER")
    with pytest.raises(SqlError, match="ROLLBACK"):
        database.run("SELECT 1")
    database.run("ROLLBACK")
    assert [(1,)] == rows(database, "SELECT 1")


@pytest.mark.usefixtures("ledger")
def test_the_ledger_of_another_deployment_is_not_read(opened: Callable[..., Database]) -> None:
    database = opened(topic_prefix="staging-")
    for table in ("ledger_gap", "liability"):
        with pytest.raises(LedgerError, match="another topic: loyalty, and the settings say staging-loyalty"):
            database.run(f"FROM {table}")


def test_a_missing_source_says_what_to_do(opened: Callable[..., Database]) -> None:
    """The error is that of the source, and only statements that read the source fail."""
    database = opened()
    with pytest.raises(UserError, match="has no exported files: wait"):
        database.run("SELECT count(*) FROM invoices")
    with pytest.raises(LedgerUnavailableError):
        database.run("SELECT count(*) FROM liability")
    tables: list[str] = []
    with closing(Database(database._settings, tables.append)) as other, pytest.raises(LedgerUnavailableError):
        other.run("FROM ledger_entry UNION ALL FROM ledger_entry UNION ALL FROM ledger_entry")
    assert ["ledger_entry"] == tables
    with pytest.raises(UserError, match="from local folders only"):
        opened(export_dir="hdfs://name-node/export").run("FROM line_items")
    assert [(1, 2)] == rows(database, "SELECT 1 AS a, 2 AS a")
    assert ["a", "a_1"] == database.run("SELECT 1 AS a, 2 AS a").column_names
    assert ["a", "a_2", "a_1", "a_3"] == database.run("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a").column_names
