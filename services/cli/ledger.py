"""`loyalty ledger`: run the process that appends entries, migrate its database, and report about it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import typer

from schemas.topics import LOYALTY
from services.cli.output import AsJson, announce_or_warn, clear_errors, read_settings, report, stop, table
from services.cli.processes import AsJsonLines, replace_process
from services.domain.formats import clamped_time_text, seconds_text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from services.ledger.queries import LedgerQueries

# The image of the pipeline has this command but no SQLAlchemy, so each function imports it when it needs it.
# ruff: noqa: PLC0415

app = typer.Typer(no_args_is_help=True, help="The ledger: all entries of all accounts in an SQL database.")


@app.command("run")
def run(*, as_json: AsJsonLines = False) -> None:
    """Append the records of the topic loyalty to the database. Several processes append each entry once."""
    replace_process("services.ledger", [], log_json=as_json)


@app.command("migrate")
def migrate(*, as_json: AsJson = False) -> None:
    """Upgrade the tables of the database. `run` does the same at its start."""
    from services.ledger import database

    with _writing() as engine:
        database.migrate(engine)
    report({"migrated": True}, "the tables are up to date", as_json=as_json)


@app.command("gaps")
def gaps(*, as_json: AsJson = False) -> None:
    """Show missing sequence numbers of accounts. With --json also the card numbers."""
    with _reading() as queries:
        found = queries.gaps()
    value = [dict(zip(("card", "pseudonym", "opened_time", "first", "last"), gap, strict=True)) for gap in found]
    rows = ((pseudonym, clamped_time_text(opened), first, last) for _, pseudonym, opened, first, last in found)
    columns = ("account (pseudonym)", "opened", "first missing", "last missing")
    report({"gaps": value}, table(*columns, rows=rows, title=f"{len(found)} gaps"), as_json=as_json)


@app.command("undecodable")
def undecodable(*, as_json: AsJson = False) -> None:
    """Show records of the topic loyalty that cannot be decoded, and the reasons."""
    with _reading() as queries:
        found = queries.undecodable()
    value = [
        {"partition": each.partition, "offset": each.offset, "time": each.append_time, "reason": each.reason}
        for each in found
    ]
    rows = ((f"{each.partition}:{each.offset}", seconds_text(each.append_time), each.reason) for each in found)
    shown = table("position", "time", "reason", rows=rows, title=f"{len(found)} records")
    report({"undecodable": value}, shown, as_json=as_json)


@app.command("reread")
def reread(*, as_json: AsJson = False) -> None:
    """Let the ledger read the whole topic again, for example after an upgrade that can decode more records.

    Existing entries stay, and none is appended twice. A running process begins at once.
    """
    from services.ledger.positions import forget_positions, require_same

    announce_or_warn("loyalty ledger reread", settings := read_settings())
    with _writing() as engine, engine.begin() as connection:
        require_same(connection, {"topic": settings.name_of(LOYALTY)})
        partitions = forget_positions(connection)
    report({"partitions": partitions}, f"the ledger reads {partitions} partitions again", as_json=as_json)


@contextmanager
def _clear_errors() -> Iterator[None]:
    from sqlalchemy.exc import DBAPIError

    from services.ledger.queries import LedgerUnavailableError

    try:
        with clear_errors():
            yield
    except LedgerUnavailableError:
        stop(
            "cannot read the ledger: check LOYALTY_LEDGER_URL, and start `loyalty ledger run` once to create the tables"
        )
    except DBAPIError as error:
        stop(f"the database of the ledger failed: {error.orig}; remove the cause, and run the command again")


@contextmanager
def _reading() -> "Iterator[LedgerQueries]":
    from services.ledger.queries import LedgerQueries

    with _clear_errors(), closing(LedgerQueries(read_settings(), seconds=0)) as queries:
        yield queries


@contextmanager
def _writing() -> "Iterator[Engine]":
    from services.ledger.database import writing_engine

    with _clear_errors():
        engine = writing_engine(read_settings().ledger_url)
        try:
            yield engine
        finally:
            engine.dispose()
