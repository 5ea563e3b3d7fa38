"""Writes the tables for analysts to files, in Parquet or Delta. One step replaces all rows of a table."""

import os
from collections.abc import Iterable
from datetime import date
from pathlib import Path, PurePath, PurePosixPath
from shutil import copymode
from tempfile import TemporaryDirectory
from typing import NamedTuple

import duckdb
import pyarrow as pa
from pyarrow import parquet

from schemas.topics import LOYALTY
from services.errors import SettingsError, UserError
from services.settings import ExportFormat, Settings
from services.sql.catalogue import CUSTOMER_LINE_ITEMS, LINE_ITEMS, TABLES
from services.sql.database import Database
from services.sql.files import locked, open_delta
from services.sql.table import Table
from services.start_up import local_folder

BY_NAME = {table.name: table for table in TABLES if table is not LINE_ITEMS}
"""The tables that `loyalty export write` writes. The streaming export writes line_items."""

_FILE = "part-0.parquet"
# Write no statistics. Delta's log would keep the smallest and largest values of each column for a month, and they could
# be keys of erased customers.
_DELTA = {"delta.dataSkippingNumIndexedCols": "0"}
_TOPIC = "loyalty.topic"
"""The property of a table that names its deployment, in the metadata of a Parquet file or of a Delta table."""


class Written(NamedTuple):
    """What a write did: the number of rows of the table, and whether its files changed."""

    table: str
    folder: str
    rows: int
    changed: bool


def default_tables(settings: Settings) -> list[str]:
    """The names of all tables, without the one with customer keys if these are off."""
    return [name for name in BY_NAME if settings.customer_key_file or name != CUSTOMER_LINE_ITEMS.name]


def require_own_folders(names: Iterable[str], settings: Settings) -> None:
    """Raise SettingsError if the folder of one of these tables overlaps the folder of the line items."""
    exported = _place(settings.export_dir)
    for folder in (_folder(name, settings) for name in names):
        place = _place(folder)
        if place.is_relative_to(exported) or exported.is_relative_to(place):
            raise SettingsError(
                f"cannot write a table to {folder}: LOYALTY_EXPORT_DIR is {settings.export_dir}, and one of the two "
                "folders is in the other. Rows of the table could become line items, and files of line items could be "
                "deleted. Set LOYALTY_TABLES_DIR to a folder beside LOYALTY_EXPORT_DIR"
            )


def _folder(name: str, settings: Settings) -> str:
    return f"{local_folder(settings.tables_dir) or settings.tables_dir}/{name}"


def _place(uri: str) -> PurePath:
    """The folder in a form that can be compared with others."""
    folder = local_folder(uri)
    return folder.resolve() if folder else PurePosixPath(uri.replace("s3a://", "s3://"))


def write(name: str, database: Database, settings: Settings, *, keep_since: date = date.min) -> Written:
    """Compute a table from its sources, and replace its files if they differ.

    Readers see either the old rows or the new rows. Then it deletes all other files of the table, also files of a run
    that ended early, so that no erased customer remains in them. A row whose records have expired stays in the files
    (``Table.key``).

    The files belong to one deployment. A Delta table has no topic if the run that made it ended before its last step.
    It gets the topic of the settings.

    Args:
        keep_since: do not replace the files if the sources have lost all rows of a day (``Table.day``) since this one.

    Raises UserError if the folder has files of another format or days that the sources have lost, SettingsError if it
    has files of another deployment, SqlError, and the error of a source that cannot be read.
    """
    table, topic = BY_NAME[name], settings.name_of(LOYALTY)
    folder = _folder(name, settings)
    with locked(folder):
        before = _read(folder, settings.export_format)
        if before is not None and (found := _topic_of(before)) not in {None, topic}:
            raise SettingsError(
                f"{folder} was made with another topic: {found}, and the settings say {topic}; correct "
                "LOYALTY_TOPIC_PREFIX, or choose another LOYALTY_TABLES_DIR"
            )
        rows = _merged(_with_time_zone(database.run(f"FROM {name}")), before, table)
        if before is not None:
            _require_days(rows, before, table, folder, keep_since)
        rows = rows.replace_schema_metadata({_TOPIC: topic})
        changed = before is None or not _are_equal(rows, before)
        is_delta = settings.export_format == "delta"
        if changed and is_delta:
            _replace_delta(rows, folder)
        elif changed:
            replace_parquet(rows, Path(folder, _FILE))
        if is_delta:
            _clean_delta(folder)
        else:
            _temporary(Path(folder, _FILE)).unlink(missing_ok=True)  # left by a run that died before its rename
    return Written(name, folder, rows.num_rows, changed)


def _read(folder: str, export_format: ExportFormat) -> pa.Table | None:
    """The rows that the folder has, or None if it is new."""
    delta = open_delta(folder)
    file = Path(folder, _FILE)
    if (delta and export_format != "delta") or (file.exists() and export_format == "delta"):
        raise UserError(
            f"{folder} has files of another format: set LOYALTY_EXPORT_FORMAT as before, or choose another "
            "LOYALTY_TABLES_DIR"
        )
    if delta:
        return delta.to_pyarrow_table().replace_schema_metadata(delta.metadata().configuration)
    return parquet.ParquetFile(file).read() if file.exists() else None


def _topic_of(rows: pa.Table) -> str | None:
    """The topic of the deployment that wrote these rows. None if it ended before it set the topic."""
    topic = (rows.schema.metadata or {}).get(_TOPIC.encode())
    return topic.decode() if topic else None


def _temporary(file: Path) -> Path:
    """The file that is renamed to this file when it is complete."""
    return file.with_name(f".{file.name}.new")


def replace_parquet(rows: pa.Table, file: Path) -> None:
    """Write a Parquet file. If the write fails, the old content stays."""
    temporary = _temporary(file)
    try:
        with temporary.open("wb") as opened:
            parquet.write_table(rows, opened, compression="zstd")
            opened.flush()
            os.fsync(opened.fileno())
        if file.exists():
            copymode(file, temporary)
        temporary.rename(file)
    finally:
        temporary.unlink(missing_ok=True)


def _replace_delta(rows: pa.Table, folder: str) -> None:
    from deltalake import write_deltalake  # noqa: PLC0415  # its import takes 0.2 s

    write_deltalake(open_delta(folder) or folder, rows, mode="overwrite", schema_mode="overwrite", configuration=_DELTA)
    written, topic = open_delta(folder), _topic_of(rows)
    if written and topic and _TOPIC not in written.metadata().configuration:
        # write_deltalake refuses properties that are not Delta's. If this step fails, the next write does it.
        written.alter.set_table_properties({_TOPIC: topic}, raise_if_not_exists=False)


def _clean_delta(folder: str) -> None:
    """Delete all files that the table does not need."""
    if table := open_delta(folder):
        # Only a full vacuum finds the files of a run that died before its commit.
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def _with_time_zone(rows: pa.Table) -> pa.Table:
    """The same rows with the time zone UTC in their times. Most readers of Delta require a time zone."""
    types = [pa.timestamp("us", "UTC") if pa.types.is_timestamp(each) else each for each in rows.schema.types]
    return rows.cast(pa.schema(list(zip(rows.column_names, types, strict=True))))


def _merged(rows: pa.Table, before: pa.Table | None, table: Table) -> pa.Table:
    """The new rows, and old rows whose records have expired.

    If an old row and a new row have the same key, the row with the larger value in ``Table.counts`` stays.
    """
    if before is None or not table.key:
        return rows
    statement = f"""
        SELECT * EXCLUDE (age) FROM (SELECT 0 AS age, * FROM now UNION ALL BY NAME SELECT 1 AS age, * FROM before)
        QUALIFY row_number() OVER (PARTITION BY {", ".join(table.key)} ORDER BY {table.counts} DESC, age) = 1
        ORDER BY ALL
    """  # noqa: S608  # the names come from the catalogue
    return _query(statement, now=rows, before=before).cast(rows.schema)


def _require_days(rows: pa.Table, before: pa.Table, table: Table, folder: str, keep_since: date) -> None:
    """Raise UserError if a day of the old rows, since ``keep_since``, has no new row.

    The number of rows and the earliest day prove nothing: new rows replace lost ones, and a till with a wrong clock
    can give a new row any date.
    """
    lost = sorted(day for day in _days(before, table) - _days(rows, table) if day >= keep_since)
    if lost:
        raise UserError(
            f"{folder} has rows of days that its source ({table.source}) has lost: {len(lost)} between {lost[0]} and "
            f"{lost[-1]}. A write would delete these rows, so the files stay as they are. Restore what the source has "
            "lost. If nobody needs the days before a date, add --accept-lost-days-before YYYY-MM-DD"
        )


def _days(rows: pa.Table, table: Table) -> set[date]:
    if not table.day:
        return set()
    return {day for day in rows[table.day].cast(pa.date32()).unique().to_pylist() if day}


def _are_equal(rows: pa.Table, before: pa.Table) -> bool:
    return (
        _topic_of(rows) == _topic_of(before)
        and rows.num_rows == before.num_rows
        and rows.column_names == before.column_names
        and not _query("FROM now EXCEPT ALL FROM before", now=rows, before=before).num_rows
    )


def _query(statement: str, **tables: pa.Table) -> pa.Table:
    with (
        TemporaryDirectory(prefix="loyalty-sql-") as spilled,
        duckdb.connect(config={"python_enable_replacements": "false", "temp_directory": spilled}) as connection,
    ):
        for name, table in tables.items():
            connection.register(name, table)
        found: pa.Table = connection.sql(statement).to_arrow_table()
        return found
