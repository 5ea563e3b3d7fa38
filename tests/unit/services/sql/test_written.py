"""The tables for analysts as files. tests/integration has those that read topics."""

import json
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from typer.testing import CliRunner

from services.cli import app
from services.clock import now
from services.domain.entries import Kind
from services.errors import SettingsError, UserError
from services.settings import Settings
from services.sql import written
from services.sql.catalogue import TABLES
from services.sql.database import Database
from services.sql.topics import TopicSource
from services.sql.written import Written, default_tables, require_own_folders
from tests.support.builders import CARD, OPENED, entry
from tests.support.ledger import Ledger
from tests.support.scan import files_with
from tests.unit.services.sql.rows import export, line

BOTH_FORMATS = pytest.mark.parametrize("export_format", ["parquet", "delta"])
DAY = date(2026, 9, 21)
WITHOUT_TOPICS = (
    *("invoices", "customer_line_items", "loyalty_entries", "balances_by_day"),
    *("liability", "liability_by_month"),
)


@pytest.fixture
def export_format() -> Literal["parquet", "delta"]:
    return "parquet"


@pytest.fixture
def settings(database_url: str, tmp_path: Path, export_format: Literal["parquet", "delta"]) -> Settings:
    """Line items of two invoices, and a ledger with their customer."""
    lines = [{"InvoiceNumber": f"INV{number}", "ItemCode": "A", "TotalValue": 1.5} for number in (1, 2)]
    folder = tmp_path / "export" / f"date={DAY}" / "batch=0"
    folder.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(lines), folder / "part-0.parquet")
    return Settings(
        ledger_url=database_url,
        export_dir=str(tmp_path / "export"),
        export_format=export_format,
        tables_dir=str(tmp_path / "tables"),
        customer_key_file=tmp_path / "customer.key",
    )


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    ledger.append((CARD, entry(1)), (CARD, entry(2, reason=f"for {CARD}")))
    return ledger


Write = Callable[[str, Settings], Written]


@pytest.fixture
def write(keyed: Database) -> Write:
    """Writes a table from the files and the ledger of this test."""
    return lambda name, settings: written.write(name, keyed, settings)


def read(name: str, settings: Settings) -> list[dict[str, Any]]:
    folder = Path(settings.tables_dir, name)
    if settings.export_format == "delta":
        return DeltaTable(folder).to_pyarrow_table().to_pylist()
    return parquet.ParquetDataset(folder).read().to_pylist()


def with_format(settings: Settings, export_format: str) -> Settings:
    return settings.model_copy(update={"export_format": export_format})


@BOTH_FORMATS
@pytest.mark.usefixtures("ledger")
def test_files_have_the_rows_of_the_table(
    keyed: Database, write: Write, settings: Settings, export_format: str
) -> None:
    """All columns, once, also after a second write, which changes no file. pandas reads them too."""
    tables = {name: keyed.run(f"FROM {name}").to_pylist() for name in WITHOUT_TOPICS}
    firsts = [write(name, settings) for name in tables]
    times = _times_of_files(settings)
    assert not any(write(name, settings).changed for name in tables)
    assert times == _times_of_files(settings)
    for (name, expected), first in zip(tables.items(), firsts, strict=True):
        assert (True, len(expected)) == (first.changed, first.rows)
        found = read(name, settings)
        columns = next(table.columns for table in TABLES if table.name == name)
        assert [column.name for column in columns] == list(found[0])
        naive = [{key: _without_zone(value) for key, value in row.items()} for row in found]
        assert sorted(map(str, expected)) == sorted(map(str, naive))
    files = Path(settings.tables_dir, "invoices")
    by_pandas = DeltaTable(files).to_pandas() if export_format == "delta" else pd.read_parquet(files)
    assert {"INV1", "INV2"} == set(by_pandas["InvoiceNumber"])


def _times_of_files(settings: Settings) -> dict[Path, int]:
    return {each: each.stat().st_mtime_ns for each in Path(settings.tables_dir).rglob("*.parquet")}


def _without_zone(value: Any) -> Any:
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


@BOTH_FORMATS
def test_files_forget_an_erased_customer(write: Write, settings: Settings, ledger: Ledger) -> None:
    """No file has a card. After an erasure and the next write, no file has the customer's key either."""
    folder = Path(settings.tables_dir)
    names = [name for name in default_tables(settings) if name not in ("dead_letters_by_reason", "sales_by_minute")]
    for name in names:
        write(name, settings)
    key = next(row["CustomerKey"] for row in read("customer_line_items", settings))
    assert key
    assert files_with(folder, key), "the scan finds what is there"
    assert [] == files_with(folder, CARD)
    planted = pa.table({"note": [f"call {CARD}"]})
    parquet.write_table(planted, folder / "planted.parquet", compression="zstd")
    write_deltalake(folder / "planted", planted)
    assert len(files_with(folder, CARD)) >= 2, "the scan finds a planted card in each format"
    (folder / "planted.parquet").unlink()
    for each in (folder / "planted").rglob("*.*"):
        each.unlink()

    ledger.append((CARD, entry(3, -200, kind=Kind.ERASED, total=0, time=now())))
    for name in names:
        write(name, settings)

    assert [None, None] == [row["CustomerKey"] for row in read("customer_line_items", settings)]
    assert [] == files_with(folder, key) == files_with(folder, CARD)
    assert files_with(folder, "INV1")


@BOTH_FORMATS
@pytest.mark.usefixtures("ledger")
def test_a_run_deletes_what_dead_runs_have_left(write: Write, settings: Settings, export_format: str) -> None:
    """The files of a run that ended early can have keys of erased customers. They are deleted even if the rows do not
    change.
    """
    folder = Path(write("customer_line_items", settings).folder)
    if export_format == "delta":  # this run died after its commit
        write_deltalake(folder, DeltaTable(folder).to_pyarrow_table(), mode="overwrite")
    unfinished = folder / ("part-9.parquet" if export_format == "delta" else ".part-0.parquet.new")
    unfinished.write_bytes(b"a run that died before its last step")

    assert not write("customer_line_items", settings).changed

    assert 1 == len(list(folder.glob("*part-*")))


class Source:
    """A database whose tables are the rows of a test."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        names = ("Day", "OriginTopic", "Reason", "Records")
        self._rows = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])

    def run(self, _: str) -> pa.Table:
        return self._rows


@BOTH_FORMATS
def test_rows_stay_when_their_topic_forgets_them(settings: Settings) -> None:
    """The beginning of a day can leave the topic before its end. So the larger count of a key is the complete one."""
    letters: Callable[..., Any] = Source
    old, new = date(2026, 9, 1), date(2026, 9, 30)
    written.write("dead_letters_by_reason", letters((old, "t", "a", 5), (new, "t", "b", 1)), settings)
    done = written.write("dead_letters_by_reason", letters((old, "t", "a", 2), (new, "t", "b", 3)), settings)
    assert (2, True) == (done.rows, done.changed)
    again = written.write("dead_letters_by_reason", letters((new, "t", "b", 3)), settings)
    assert (2, False) == (again.rows, again.changed)
    found = {(row["Day"], row["Records"]) for row in read("dead_letters_by_reason", settings)}
    assert {(old, 5), (new, 3)} == found


def test_a_file_keeps_its_rights_and_a_failed_write_leaves_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has allowed a group to read the file, and nobody else. Half a file could have keys of customers."""
    file, rows = tmp_path / "part-0.parquet", pa.table({"x": [1]})
    written.replace_parquet(rows, file)
    file.chmod(0o640)
    written.replace_parquet(rows, file)
    monkeypatch.setattr(Path, "rename", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        written.replace_parquet(rows, file)
    assert ([file], 0o640) == ([*tmp_path.iterdir()], stat.S_IMODE(file.stat().st_mode))


def test_of_two_rows_with_the_same_count_the_new_one_stays() -> None:
    """Its record is newer. A file of an older release can have its columns in another order."""
    before, now = ([{"StoreID": "S1", "Minute": DAY, "Invoices": 2, "Net": net}] for net in (3, 5))
    before = [dict(reversed(before[0].items()))]
    table = written.BY_NAME["sales_by_minute"]
    merged = written._merged(pa.Table.from_pylist(now), pa.Table.from_pylist(before), table)
    assert now == merged.to_pylist()


def test_times_have_a_time_zone() -> None:
    """Most readers of Delta refuse times without one, or show them in their own zone."""
    rows = written._with_time_zone(pa.table({"time": pa.array([0], pa.timestamp("ms")), "number": [1]}))
    assert [pa.timestamp("us", "UTC"), pa.int64()] == rows.schema.types


def test_customer_keys_are_written_only_if_there_is_a_key(tmp_path: Path) -> None:
    """Without the setting the command would fail. The streaming export writes the line items."""
    without, with_key = default_tables(Settings()), default_tables(Settings(customer_key_file=tmp_path / "key"))
    assert {"customer_line_items"} == {*with_key} - {*without}
    assert "line_items" not in with_key


def test_a_lost_row_without_a_day_is_no_lost_day() -> None:
    """A till without a clock sends invoices without a time."""
    rows, before = (pa.table({"Day": pa.array(days, pa.date32())}) for days in ([DAY], [DAY, None]))
    table: Any = SimpleNamespace(day="Day", source="line_items")
    written._require_days(rows, before, table, "folder", date.min)


@pytest.mark.usefixtures("ledger")
def test_files_stay_when_their_sources_lose_days(settings: Settings, tmp_path: Path) -> None:
    """Line items and a ledger are lost, and newer ones come, one of them with the date of a wrong clock. Only a table
    of the present changes, until the option says that nobody needs the lost days.
    """
    runner, variables = CliRunner(), _variables(settings)
    command = ["export", "write", *WITHOUT_TOPICS]
    assert 0 == runner.invoke(app, command, env=variables).exit_code
    before = {name: read(name, settings) for name in WITHOUT_TOPICS}
    shutil.rmtree(settings.export_dir)
    for number, day in enumerate((date(1970, 1, 1), date(2026, 9, 29), date(2026, 9, 30))):
        export(Path(settings.export_dir), line(f"NEW{number}", "A", 1.0), day=day)
    variables["LOYALTY_LEDGER_URL"] = f"sqlite:///{tmp_path / 'new.sqlite'}"
    later = OPENED + 90 * 86_400_000
    Ledger(variables["LOYALTY_LEDGER_URL"]).append(
        *((CARD, entry(each, opened_time=later, time=later + each)) for each in (1, 2, 3))
    )

    refused = runner.invoke(app, command, env=variables)

    with_days = [name for name in WITHOUT_TOPICS if name != "liability"]
    assert 1 == refused.exit_code
    assert f"error: not written: {', '.join(with_days)}. Correct" in refused.stderr
    lost = f"invoices has rows of days that its source (line_items) has lost: 1 between {DAY} and {DAY}. A write"
    assert lost in refused.stderr
    changed = [name for name in WITHOUT_TOPICS if read(name, settings) != before[name]]
    assert ["liability"] == changed

    option = "--accept-lost-days-before"
    assert 1 == runner.invoke(app, [*command, option, f"{DAY}"], env=variables).exit_code
    accepted = runner.invoke(app, [*command, option, "2100-01-01"], env=variables)
    assert 0 == accepted.exit_code, accepted.stderr
    assert {"NEW0", "NEW1", "NEW2"} == {row["InvoiceNumber"] for row in read("invoices", settings)}
    assert 3 == len(read("loyalty_entries", settings))


def _variables(settings: Settings) -> dict[str, str]:
    """The environment of a command. No broker answers it."""
    changed = settings.model_dump(exclude_defaults=True).items()
    variables = {f"LOYALTY_{name.upper()}": str(value) for name, value in changed}
    return {**variables, "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


@pytest.mark.usefixtures("ledger")
def test_another_format_is_refused(write: Write, settings: Settings) -> None:
    """Otherwise a folder would have two tables, and one of them would never forget erased customers."""
    write("invoices", settings)
    with pytest.raises(UserError, match="choose another LOYALTY_TABLES_DIR"):
        write("invoices", with_format(settings, "delta"))
    write("liability", with_format(settings, "delta"))
    with pytest.raises(UserError, match="choose another LOYALTY_TABLES_DIR"):
        write("liability", settings)


@BOTH_FORMATS
def test_the_folder_of_another_deployment_is_refused(settings: Settings, export_format: str) -> None:
    """Otherwise its rows would stay among the own rows for ever. A folder without a topic gets that of the settings."""
    letters: Any = Source((DAY, "t", "a", 5))
    more: Any = Source((DAY, "t", "a", 6))
    folder = Path(settings.tables_dir, "dead_letters_by_reason")
    rows = letters.run("")
    if export_format == "delta":
        write_deltalake(folder, rows)
    else:
        folder.mkdir(parents=True)
        parquet.write_table(rows, folder / "part-0.parquet")
    assert [True, False] == [written.write(folder.name, letters, settings).changed for _ in range(2)]

    other = settings.model_copy(update={"topic_prefix": "staging-"})
    with pytest.raises(SettingsError, match="another topic: loyalty, and the settings say staging-loyalty; correct"):
        written.write(folder.name, letters, other)

    changed = written.write(folder.name, more, settings)
    assert (1, True) == (changed.rows, changed.changed)
    with pytest.raises(SettingsError, match="another topic"):
        written.write(folder.name, letters, other)


@BOTH_FORMATS
def test_an_unfinished_write_changes_nothing(
    write: Write, settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends before the last step leaves the old rows. The next write succeeds."""
    write("loyalty_entries", settings)
    before = read("loyalty_entries", settings)
    ledger.append((CARD, entry(3)))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        patched.setattr("deltalake.write_deltalake", killed)
        with pytest.raises(KeyboardInterrupt):
            write("loyalty_entries", settings)
    assert before == read("loyalty_entries", settings)
    assert write("loyalty_entries", settings).changed
    assert 3 == len(read("loyalty_entries", settings))


@pytest.mark.usefixtures("ledger")
def test_two_writers_take_turns(settings: Settings) -> None:
    """Without the lock, one of them would delete the files of the other."""
    settings = with_format(settings, "delta")

    def write() -> None:
        with closing(Database(settings)) as database:
            written.write("invoices", database, settings)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert 2 == len(read("invoices", settings))
    written_and_marked = 1
    assert written_and_marked == DeltaTable(f"{settings.tables_dir}/invoices").version()


@pytest.mark.parametrize(
    ("tables", "exported"),
    [
        ("var/tables", "var/parquet"),
        ("var", "var/parquet"),
        ("var/parquet-tables", "var/parquet"),
        ("s3://bucket/tables", "s3a://bucket/line_items"),
        ("s3://one/lake/tables", "s3://two/lake"),
    ],
)
def test_tables_are_written_beside_the_line_items(tables: str, exported: str) -> None:
    """No table is refused for these pairs of folders."""
    refused = []
    for name in ("liability", "invoices"):
        try:
            require_own_folders([name], Settings(tables_dir=tables, export_dir=exported))
        except SettingsError as error:
            refused.append(str(error))
    assert [] == refused


@pytest.mark.parametrize(
    ("tables", "exported"),
    [
        ("var/parquet", "file:{}/var/parquet/"),
        ("link/tables", "var/parquet"),
        ("file://{}/var/parquet/tables", "var/parquet"),
        ("var", "var/invoices/parquet"),
        ("s3://bucket/lake/tables", "s3a://bucket/lake/"),
    ],
)
def test_tables_are_not_written_among_the_line_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: str, exported: str
) -> None:
    """They would become line items, or the vacuum of a table would delete the line items."""
    monkeypatch.chdir(tmp_path)
    Path("var/parquet").mkdir(parents=True)
    Path("link").symlink_to("var/parquet")
    folders = {"LOYALTY_TABLES_DIR": tables.format(tmp_path), "LOYALTY_EXPORT_DIR": exported.format(tmp_path)}

    refused = CliRunner().invoke(app, ["export", "write"], env=folders)

    assert (2, "") == (refused.exit_code, refused.stdout)
    assert "one of the two folders is in the other" in refused.stderr
    assert "Set LOYALTY_TABLES_DIR to a folder beside LOYALTY_EXPORT_DIR" in refused.stderr


@pytest.mark.parametrize(
    ("before", "are_equal"),
    [
        (["a", "b", "a"], True),
        (["a", "b", "b"], False),
        (["a", "b"], False),
        (["a", "b", "a", "b"], False),
        (["a", "b", "c"], False),
        ([None, "a", "b"], False),
    ],
)
def test_rows_are_equal_if_each_is_there_equally_often(before: list[str | None], *, are_equal: bool) -> None:
    """Their order does not count. A table can have equal rows."""
    rows, others = pa.table({"x": ["a", "a", "b"]}), pa.table({"x": pa.array(before, pa.string())})
    assert are_equal == written._are_equal(rows, others)
    assert not written._are_equal(rows, others.rename_columns(["y"]))
    assert not written._are_equal(rows, others.replace_schema_metadata({"loyalty.topic": "loyalty"}))


@pytest.mark.parametrize("scheme", ["file:", "file://"])
@pytest.mark.usefixtures("ledger")
def test_the_folder_of_the_tables_can_be_a_uri(write: Write, settings: Settings, scheme: str) -> None:
    uri = f"{scheme}{settings.tables_dir}"
    done = write("liability", settings.model_copy(update={"tables_dir": uri}))
    assert f"{settings.tables_dir}/liability" == done.folder


@pytest.mark.usefixtures("ledger")
def test_the_command_writes_all_tables_that_it_can(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no broker answers, only the tables of topics are missing, and the status says so. The command waits for the
    broker once. The audit trail has the names.
    """
    monkeypatch.setattr(TopicSource, "read", lambda _: iter(()))
    runner, variables = CliRunner(), _variables(settings)
    done = runner.invoke(app, ["export", "write", "--json"], env=variables)
    assert 1 == done.exit_code
    assert 2 == done.stderr.count("error: no Kafka broker answers")
    assert "error: not written: dead_letters_by_reason, sales_by_minute. Correct" in done.stderr
    found = [each["table"] for each in json.loads(done.stdout)["tables"]]
    assert [*WITHOUT_TOPICS] == found
    some = runner.invoke(app, ["export", "backfill", "liability", "invoices"], env=variables)
    assert (0, 2) == (some.exit_code, some.stdout.count("unchanged"))
    assert '"action":"loyalty export write","tables":"liability, invoices"' in some.stderr
    for arguments, error in (
        (["write", "nothing"], "no table to write: nothing; choose from invoices"),
        (["write", "line_items"], "`loyalty export run` writes it"),
        (["maintain", "liability"], "maintain does not take tables: use write or backfill"),
        (["run", "--accept-lost-days-before", "2026-01-01"], "run does not take --accept-lost-days-before"),
        (["write", "--continuous"], "write does not take --continuous: use run"),
    ):
        refused = runner.invoke(app, ["export", *arguments], env=variables)
        assert (2, "") == (refused.exit_code, refused.stdout)
        assert error in refused.stderr
