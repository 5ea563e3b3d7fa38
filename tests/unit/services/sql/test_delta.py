"""Delta tables without Spark: reading, maintenance. tests/integration/test_delta_export.py writes them with Spark."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from services.cli import app
from services.errors import UserError
from services.settings import Settings
from services.sql import files, maintenance
from services.sql.database import Database
from services.sql.maintenance import maintain
from tests.support.kafka import NOBODY
from tests.support.waiting import DEADLINE_SECONDS


def write(folder: Path, *numbers: int, without: str = "LineKind") -> None:
    """Append lines as the export of an older release did, which did not know a column."""
    schema = pa.schema([field for field in files.SCHEMA if field.name != without])
    lines = [{"InvoiceNumber": str(number), "TotalValue": number / 2} for number in numbers]
    day = schema.field("date").with_type(pa.date32())
    rows = pa.Table.from_pylist(lines, schema.remove(schema.get_field_index("date")))
    write_deltalake(folder, rows.append_column(day, pa.array([20_000] * len(lines), pa.date32())), mode="append")


def found(settings: Settings) -> list[tuple[str, float, str | None]]:
    with closing(Database(settings)) as database:
        rows = database.run("SELECT InvoiceNumber, TotalValue, LineKind FROM line_items ORDER BY 1").to_pylist()
    return [tuple(row.values()) for row in rows]


def test_a_table_of_an_older_release_is_read(tmp_path: Path) -> None:
    """A column that the table does not have is null."""
    write(tmp_path, 1, 2)
    assert [("1", 0.5, None), ("2", 1.0, None)] == found(Settings(export_dir=str(tmp_path)))


def test_two_runs_of_the_maintenance_keep_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta accepts two compactions of the same files, and the table then has their rows twice."""
    settings = Settings(export_dir=str(tmp_path))
    for number in range(5):
        write(tmp_path, number)
    before = found(settings)
    both, loaded = Barrier(2), maintenance.delta_table

    def load_together(settings: Settings) -> DeltaTable | None:
        table = loaded(settings)
        both.wait(DEADLINE_SECONDS)
        return table

    monkeypatch.setattr(maintenance, "delta_table", load_together)
    with ThreadPoolExecutor() as threads:
        results = [*threads.map(lambda _: maintain(settings), range(2))]
    assert [(0, 0, 0), (5, 1, 0)] == sorted(results)
    assert before == found(settings)


def test_maintenance_keeps_all_rows_and_the_checkpoint(tmp_path: Path) -> None:
    """Replaced files are deleted when nobody can need them any more, and not before."""
    settings = Settings(export_dir=str(tmp_path))
    for number in range(5):
        write(tmp_path, number)
    (tmp_path / "_checkpoint" / "commits").mkdir(parents=True)
    (tmp_path / "_checkpoint" / "commits" / "0").write_text("v1\n{}")
    before = found(settings)

    assert (5, 1, 0) == maintain(settings)
    assert 6 == len(list(tmp_path.glob("*.parquet")))
    assert (0, 0, 5) == maintain(settings, keep_hours=0)

    assert 1 == len(list(tmp_path.glob("*.parquet")))
    assert (tmp_path / "_checkpoint" / "commits" / "0").exists()
    assert 5 == len(before)
    assert before == found(settings)


def test_maintenance_keeps_the_files_that_are_not_of_the_table(tmp_path: Path) -> None:
    """An operator can keep an archive or a checkpoint in the folder."""
    write(tmp_path, 1)
    (tmp_path / "archive").mkdir()
    for file in (tmp_path / "other.parquet", tmp_path / "archive" / "0.parquet"):
        file.touch()
        os.utime(file, (0, 0))
    assert (0, 0, 0) == maintain(Settings(export_dir=str(tmp_path)))
    assert (tmp_path / "other.parquet").exists()
    assert (tmp_path / "archive" / "0.parquet").exists()


def test_the_command_reports_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a table is one clear error. Without Kafka the line for the audit trail is on stderr."""
    monkeypatch.setenv("LOYALTY_KAFKA_BOOTSTRAP_SERVERS", NOBODY)
    write(tmp_path / "table", 1)
    write(tmp_path / "table", 2)
    runner = CliRunner()
    done = runner.invoke(app, ["export", "maintain", "--to", str(tmp_path / "table")])
    assert (0, f"{tmp_path / 'table'}: merged 2 files into 1, deleted 0 old files\n") == (done.exit_code, done.stdout)
    assert '"action":"loyalty export maintain"' in done.stderr
    refused = runner.invoke(app, ["export", "maintain", "--to", str(tmp_path)])
    assert 1 == refused.exit_code
    assert "is not a Delta table" in refused.stderr
    with pytest.raises(UserError, match="is not a Delta table"):
        maintain(Settings(export_dir=str(tmp_path)))
    assert 2 == DeltaTable(tmp_path / "table").version()


def test_a_damaged_table_stops_only_statements_that_need_it(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{")
    with closing(Database(Settings(export_dir=str(tmp_path)))) as database:
        assert [{"a": 1}] == database.run("SELECT 1 AS a").to_pylist()
        with pytest.raises(UserError, match="cannot be read"):
            database.run("FROM invoices")
