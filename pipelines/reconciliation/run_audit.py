"""``python -m pipelines.audit``, or ``loyalty audit``: recompute all accounts, compare, and report."""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from rich.table import Table

from pipelines.reconciliation.audit import Report, audit
from pipelines.reconciliation.facts import first_line
from pipelines.reconciliation.inputs import Context
from pipelines.runtime.session import spark_session
from services.audit.extent import NoTopicError
from services.audit.facts import COMPARED
from services.cli.audit import PARTS, SHOWN, ApiOption, From, FromOption, ShowOption, WithoutOption
from services.cli.output import MISUSED, AsJson, console, print_json, stop
from services.logging import configure_logging
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import schema_ids
from services.programmes.file import ProgrammeError
from services.programmes.topic import load_programmes
from services.pseudonyms import PseudonymKeyError, pseudonyms
from services.settings import SettingsError, read_settings


@contextmanager
def session(name: str) -> Iterator[Context]:
    """All that audit and rebuild need; ends the process with one line where there is no use in going on."""
    try:
        settings = read_settings()
    except SettingsError as error:
        stop(str(error), MISUSED)
    configure_logging(settings)
    for chatty in ("py4j", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        # What can be refused is refused before Spark starts.
        rules, names = load_programmes(settings), pseudonyms(settings.pseudonym_key_file)
        spark = spark_session(settings, name)
        try:
            yield Context(spark, settings, schema_ids(settings), rules, names)
        finally:
            spark.stop()
    except (NoTopicError, PublishError, ProgrammeError, PseudonymKeyError) as error:
        stop(str(error), MISUSED)
    except (PySparkException, Py4JJavaError) as error:
        stop(f"Spark: {first_line(error)}", MISUSED)


def main(
    *,
    source: FromOption = From.TOPICS,
    api: ApiOption = None,
    without: WithoutOption = None,
    show: ShowOption = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Recompute every account; compare with it the loyalty topic, the ledger, served balances and Spark's state.

    Ends with 0 if all agree, 1 if anything differs, 2 if something could not be read. The output names cards.
    """
    left_out = [PARTS[part] for part in without or ()]
    with session("loyalty-audit") as context:
        url = api or context.settings.advertised_url
        report = audit(context, url, left_out, archive=source is From.PARQUET)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        show_report(report, show)
    raise typer.Exit(report.status)


def show_report(report: Report, shown: int) -> None:
    """For people."""
    out = console()
    table = Table("", "")
    table.columns[1].justify = "right"
    table.add_row("accounts", f"{report.accounts:,}")
    table.add_row("entries recomputed", f"{report.entries:,}")
    for source in COMPARED:
        number = report.compared.get(source)
        table.add_row(f"compared: {source}", "not compared" if number is None else f"{number:,}")
    table.add_row("accounts not recomputed", f"{report.not_recomputed:,}")
    table.add_row("differences", f"{len(report.differences):,}")
    out.print(table)
    for found in report.differences[:shown]:
        out.print(f"{found.whose}: {found.where}: {found.what}", markup=False, highlight=False)
    if len(report.differences) > shown:
        out.print(f"… and {len(report.differences) - shown:,} more (--show)", highlight=False)
    for line in (*(f"not read: {line}" for line in report.unreadable), *(f"note: {line}" for line in report.notes)):
        out.print(line, markup=False, highlight=False)


if __name__ == "__main__":
    typer.run(main)
