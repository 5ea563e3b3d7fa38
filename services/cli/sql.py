"""`loyalty sql`: answer questions from the exported files, the ledger and the topics."""

import base64
import csv
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from services.audit_trail import announce
from services.cli.output import (
    INTERRUPTED,
    MISUSED,
    AsJson,
    announce_or_warn,
    clear_errors,
    print_json,
    read_settings,
    report,
    stdout,
    stop,
    table,
    warn_of_skipped,
)
from services.cli.processes import install_command

if TYPE_CHECKING:
    import pyarrow as pa

    from services.settings import Settings
    from services.sql.database import Database

# The packages of the extra `sql` can be missing, so each function imports them when it needs them.
# ruff: noqa: PLC0415

_SHOWN_ROWS = 500

_A_NAME = re.compile(r"[a-z]+([-_][a-z]+)*")
"""The form of the names of ready questions and tables. A statement that reads a table has several words."""


def sql(  # noqa: PLR0913  # one argument for each option
    statement: Annotated[
        str | None, typer.Argument(help="A statement, or the name of a ready question. Without one: a shell, or stdin.")
    ] = None,
    *,
    list_questions: Annotated[bool, typer.Option("--list", help="List the ready questions.")] = False,
    list_tables: Annotated[bool, typer.Option("--tables", help="List the tables and their columns.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the matching records of one topic as they arrive, as JSON lines.")
    ] = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV (RFC 4180) with a line of names.")] = False,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result to a Parquet file.")] = None,
) -> None:
    """Run an SQL statement on the exported files, the ledger and the topics as they are now.

    The command reads a source only if the statement names it. It connects only to Kafka, the Schema Registry, the
    database of the ledger and the object store of the exported files.
    """
    if as_json + as_csv + (parquet is not None) > 1:
        stop("choose one of --json, --csv and --parquet", MISUSED)
    if follow and (as_csv or parquet or statement is None):
        stop("--follow needs a statement, and prints JSON lines only", MISUSED)
    with _clear_interrupt(), clear_source_errors():
        from services.sql.database import Database
        from services.sql.questions import QUESTIONS

        if list_questions:
            rows = [(question.name, question.asks) for question in QUESTIONS]
            value = [{"name": each.name, "asks": each.asks, "sql": " ".join(each.sql.split())} for each in QUESTIONS]
            report({"questions": value}, table("name", "question", rows=rows), as_json=as_json)
            return
        settings = read_settings()
        with closing(Database(settings, partial(_record, settings))) as database:
            if list_tables:
                _report_tables(database, as_json=as_json)
                return
            if statement is None and sys.stdin.isatty():
                from services.cli.sql_shell import run_shell

                typer.echo("A statement ends with a semicolon. `SHOW TABLES;` lists the tables, `quit` ends the shell.")
                run_shell(database, lambda text: _answer(database, text))
                return
            asked = _statement(sys.stdin.read() if statement is None else statement, database)
            if follow:
                _follow(database, asked)
            elif parquet:
                _write(database.run(asked), parquet)
            else:
                _print(database.run(asked), database.skipped, as_json=as_json, as_csv=as_csv)
            warn_of_skipped(database.skipped)


def _record(settings: "Settings", table: str) -> None:
    """Record in the audit trail that a table is read, without the statement, because it can contain card numbers."""
    from services.sql.topics import is_topic

    # A table of a topic needs Kafka anyway, so the command stops if Kafka does not take the record.
    announce_table = announce if is_topic(table) else announce_or_warn
    announce_table("loyalty sql", settings, table=table)


def _statement(text: str, database: "Database") -> str:
    """The statement of the ready question with this name, or else the text itself."""
    from services.sql.questions import BY_NAME

    text = text.strip().rstrip(";").rstrip()
    if not text:
        stop("there is no statement: give one, for example `loyalty sql liability`", MISUSED)
    if text in BY_NAME:
        return BY_NAME[text].sql
    if _A_NAME.fullmatch(text):
        is_table = text in database.columns()
        stop(
            f'{text} is a table: ask "FROM {text}"'
            if is_table
            else f"no ready question has the name {text}: `loyalty sql --list` shows all of them",
            MISUSED,
        )
    return text


def _answer(database: "Database", text: str) -> None:
    """Answer one statement of the shell. An error or Ctrl-C does not end the shell."""
    with suppress(typer.Exit), _clear_interrupt(), clear_source_errors():
        _print(database.run(_statement(text, database)), {})
        warn_of_skipped(database.skipped)


def _report_tables(database: "Database", *, as_json: bool) -> None:
    found = database.columns()
    value = {name: [{"name": column, "type": kind} for column, kind in columns] for name, columns in found.items()}
    rows = ((name, ", ".join(column for column, _ in columns)) for name, columns in found.items())
    report({"tables": value}, table("table", "columns", rows=rows), as_json=as_json)


def _print(result: "pa.Table", skipped: object, *, as_json: bool = False, as_csv: bool = False) -> None:
    if as_json:
        rows = [dict(zip(result.column_names, row, strict=True)) for row in _rows(result)]
        print_json({"rows": [_plain(row) for row in rows], "skipped": skipped})
    elif as_csv:
        with stdout() as file:
            writer = csv.writer(file)
            writer.writerow(result.column_names)
            writer.writerows(map(_cell, row) for row in _rows(result))
    elif result.num_columns:
        shown = table(*result.column_names, rows=(map(_cell, row) for row in _rows(result.slice(0, _SHOWN_ROWS))))
        hidden = result.num_rows - _SHOWN_ROWS
        more = [f"{hidden} more rows: use --csv, --json or --parquet to get all"] if hidden > 0 else []
        report(None, shown, *more, as_json=False)


def _rows(result: "pa.Table") -> Iterable[tuple[Any, ...]]:
    try:
        columns = [column.to_pylist() for column in result.columns]
    except OverflowError:
        stop("the result has a time outside of the years 1 to 9999: select it as a text, for example `Time::VARCHAR`")
    return zip(*columns, strict=True)


def _cell(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    plain = _plain(value)
    return orjson.dumps(plain, default=str).decode() if isinstance(plain, dict | list) else plain


def _plain(value: Any) -> Any:
    """The value for JSON. Bytes become base 64, an interval becomes a text, and a map becomes pairs."""
    match value:
        case (months, days, nanoseconds) if hasattr(value, "nanoseconds"):
            from services.sql.database import interval_text

            return interval_text(months, days, nanoseconds)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value


def _write(result: "pa.Table", file: Path) -> None:
    from pyarrow import ArrowException, parquet

    from services.sql.written import replace_parquet

    try:
        if file.exists() and not file.is_file():  # for example a pipe: nothing can replace it
            with file.open("wb") as opened:
                parquet.write_table(result, opened, compression="zstd")
            return
        replace_parquet(result, Path(os.path.realpath(file)))
    except ArrowException as error:
        stop(f"Parquet cannot keep this result: select the column as another type, for example `a::VARCHAR` ({error})")
    report(None, f"{file}: {result.num_rows} rows", as_json=False)


def _follow(database: "Database", statement: str) -> None:
    with suppress(KeyboardInterrupt):
        for number, result in enumerate(database.follow(statement)):
            if number == 0:
                typer.echo("following the topic; Ctrl-C ends it", err=True)
            for row in _rows(result):
                print_json(_plain(dict(zip(result.column_names, row, strict=True))))


@contextmanager
def _clear_interrupt() -> Iterator[None]:
    """End the command with one line after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        stop("the statement was interrupted", INTERRUPTED)


@contextmanager
def clear_source_errors() -> Iterator[None]:
    """Print errors of the sources that the user can solve as one line."""
    try:
        from sqlalchemy.exc import DBAPIError

        from services.ledger.queries import LedgerUnavailableError
        from services.sql import written  # noqa: F401  # it imports all packages of the extra
    except ModuleNotFoundError as error:
        stop(f"{error.name} is not installed: run {install_command('sql')}")
    try:
        with clear_errors():
            yield
    except (LedgerUnavailableError, DBAPIError) as error:
        stop(f"cannot read the ledger: check LOYALTY_LEDGER_URL, and start `loyalty ledger run` once ({error})")
