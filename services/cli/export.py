"""`loyalty export`: write line items and other tables for analysts to files."""

from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated

import typer

from services.cli.output import (
    MISUSED,
    announce_or_warn,
    clear_errors,
    read_settings,
    report,
    stop,
    table,
    warn_of_skipped,
)
from services.cli.processes import AsJsonLines, announce_command, exit_status, program, replace_process
from services.cli.sql import clear_source_errors
from services.messaging.publishing import NoBrokerError
from services.settings import Settings
from services.start_up import local_folder, require_writable

# The packages of the extra `sql` can be missing, so each function imports them when it needs them.
# ruff: noqa: PLC0415

LINE_ITEMS = "line_items"


class ExportTask(StrEnum):
    """What `loyalty export` does."""

    RUN = "run"
    WRITE = "write"
    BACKFILL = "backfill"
    MAINTAIN = "maintain"


def export(
    task: Annotated[
        ExportTask,
        typer.Argument(
            help="run: export the line items of new records. write: compute the other tables and replace their files. "
            "backfill: write the whole history of the topics and the ledger, also line items that the files do not "
            "have. maintain: merge small files of the Delta table of line items, and delete files that the table has "
            "not needed for a week."
        ),
    ] = ExportTask.RUN,
    tables: Annotated[
        list[str] | None, typer.Argument(help="For write and backfill: only these tables, for example liability.")
    ] = None,
    *,
    to: Annotated[str | None, typer.Option(help="Folder of the exported line items. Any Hadoop URI.")] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="With run: export new records until Ctrl-C or SIGTERM.")
    ] = False,
    accept_lost_days_before: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="With write and backfill: replace a table also if its source has lost days before this date.",
        ),
    ] = None,
    as_json: AsJsonLines = False,
) -> None:
    """Export tables for analysts to Parquet files or to Delta tables (LOYALTY_EXPORT_FORMAT)."""
    settings = read_settings()
    settings = settings.model_copy(update={"export_dir": to or settings.export_dir})
    keep_since = accept_lost_days_before.date() if accept_lost_days_before else date.min
    if continuous and task is not ExportTask.RUN:
        stop(f"{task} does not take --continuous: use run", MISUSED)
    if task not in (ExportTask.WRITE, ExportTask.BACKFILL) and (tables or accept_lost_days_before):
        option = "tables" if tables else "--accept-lost-days-before"
        stop(f"{task} does not take {option}: use write or backfill", MISUSED)
    match task:
        case ExportTask.RUN:
            announce_command("export", to=settings.export_dir)
            replace_process("pipelines", _line_items(settings, continuous=continuous), log_json=as_json)
        case ExportTask.MAINTAIN:
            _maintain(settings, as_json=as_json)
        case ExportTask.WRITE:
            chosen = _writable_tables(tables, settings)
            _write(chosen, settings, keep_since=keep_since, as_json=as_json)
        case ExportTask.BACKFILL:
            _backfill(tables, settings, keep_since=keep_since, as_json=as_json)


def _line_items(settings: Settings, *options: str, continuous: bool = False) -> list[str]:
    until = [] if continuous else ["--available-now"]
    return ["--query", "export", "--to", settings.export_dir, *until, *options]


def _backfill(names: Sequence[str] | None, settings: Settings, *, keep_since: date, as_json: bool) -> None:
    others = [name for name in names or () if name != LINE_ITEMS]
    if names and LINE_ITEMS not in names:
        _write(_writable_tables(others, settings), settings, keep_since=keep_since, as_json=as_json)
        return
    # The other tables read the line items, so the command writes them afterwards. A backfill can take hours, so the
    # command checks the names and folders of the other tables first.
    chosen = _writable_tables(others, settings) if others or not names else []
    announce_command("export backfill", to=settings.export_dir)
    arguments = _line_items(settings, "--backfill")
    if not chosen:
        replace_process("pipelines", arguments, log_json=as_json)
    if status := exit_status(program("pipelines", arguments, log_json=as_json)):
        raise typer.Exit(status)
    _write(chosen, settings, keep_since=keep_since, as_json=as_json)


def _writable_tables(names: Sequence[str] | None, settings: Settings) -> Sequence[str]:
    """The tables to write, by default all. Stops with status 2 if a name is unknown or a folder is not usable."""
    with clear_source_errors():
        from services.sql.written import BY_NAME, default_tables, require_own_folders
    if unknown := [name for name in names or () if name not in BY_NAME]:
        hint = "`loyalty export run` writes it" if LINE_ITEMS in unknown else f"choose from {', '.join(BY_NAME)}"
        stop(f"no table to write: {', '.join(unknown)}; {hint}", MISUSED)
    chosen = names or default_tables(settings)
    with clear_errors():
        require_own_folders(chosen, settings)
        if folder := local_folder(settings.tables_dir):
            require_writable(folder, "LOYALTY_TABLES_DIR")
    return chosen


def _write(chosen: Sequence[str], settings: Settings, *, keep_since: date, as_json: bool) -> None:
    """Write each table. If a source cannot be read or has lost days, only the tables that need it fail."""
    with clear_source_errors():
        from services.sql.database import Database
        from services.sql.topics import is_topic
        from services.sql.written import write
    error = announce_or_warn("loyalty export write", settings, tables=", ".join(chosen), to=settings.tables_dir)

    def refuse_topics(table: str) -> None:
        if isinstance(error, NoBrokerError) and is_topic(table):
            raise error

    done = []
    for name in chosen:
        with suppress(typer.Exit), clear_source_errors(), closing(Database(settings, refuse_topics)) as database:
            done.append(write(name, database, settings, keep_since=keep_since))
            warn_of_skipped(database.skipped)
    rows = ((each.table, each.rows, "written" if each.changed else "unchanged", each.folder) for each in done)
    found = table("table", "rows", "files", "folder", rows=rows)
    report({"tables": [each._asdict() for each in done]}, *([found] if done else []), as_json=as_json)
    if missing := [name for name in chosen if name not in {each.table for each in done}]:
        stop(f"not written: {', '.join(missing)}. Correct the errors above, and run the command again")


def _maintain(settings: Settings, *, as_json: bool) -> None:
    with clear_source_errors():
        from services.sql.maintenance import maintain

        announce_or_warn("loyalty export maintain", settings, to=settings.export_dir)
        done = maintain(settings)
    text = f"{settings.export_dir}: merged {done.merged} files into {done.written}, deleted {done.deleted} old files"
    report(done._asdict(), text, as_json=as_json)
