"""The audit: recomputes every account and compares it with all entries, served balances and stored accounts.

It may run beside the pipeline. If the sources have not progressed equally far for a customer, the audit compares that
customer again until the sources agree or no longer change. ``python -m pipelines.reconciliation.audit``, or
``loyalty audit``, runs it.
"""

import dataclasses
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import typer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.checkpoints.reader import CheckpointReader
from pipelines.columns.types import struct
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.reconciliation import facts
from pipelines.reconciliation.context import Context, open_context
from pipelines.reconciliation.customers import Customer, by_customer
from pipelines.reconciliation.facts import pseudonymize
from pipelines.reconciliation.forwarding import RETURNABLE, returnables, with_differences
from pipelines.reconciliation.report import UNREADABLE, CustomerDifference, Report, texts_of
from pipelines.reconciliation.snapshot import CREATED_AGAIN, Progress, Read, Snapshot, take_snapshot
from services.audit.comparison import Coverage
from services.audit.facts import COMPARED, Source
from services.audit.runs import publish_run
from services.audit.sources import served_balances
from services.cli import output
from services.cli.audit import PARTS, SHOWN, From, FromOption, ShowOption, WithoutOption
from services.cli.output import AsJson
from services.cli.status import ApiUrl
from services.clock import now
from services.domain.account.model import Outcome
from services.domain.programme import Programmes
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.tls import client_context

ROUNDS = 6
"""The number of comparisons of customers whose sources have not progressed equally far."""

_SECONDS_BETWEEN_ROUNDS = 5.0

_DIFFERENCE = struct(where="string", what="string", settles="boolean")
_RESULT = struct(
    pseudonym="string",
    card="string",
    entries="long",
    recomputed="boolean",
    lacks_entries="boolean",
    version="string",
    **dict.fromkeys((source.name for source in COMPARED), "long"),
    differences=T.ArrayType(_DIFFERENCE),
    purchases=T.ArrayType(RETURNABLE),
    returns=T.ArrayType(T.StringType()),
    commands=T.ArrayType(T.StringType()),
)
"""The result for one customer (see CustomerResult), with the number of compared facts by source.

``purchases`` and ``returns`` are those of the recomputed account, and ``commands`` are the ids of the commands that it
has sent to other accounts. They are for ``with_differences``.
"""

_Waiting = dict[str, tuple[str, list[CustomerDifference]]]
"""By pseudonym, the customers whose sources have not progressed equally far: the version of the account, and the
differences.
"""


def audit(context: Context, api: str, left_out: Collection[Source], *, archive: bool) -> Report:
    """Audit all accounts.

    Args:
        api: URL that serves balances.
        left_out: sources that are not compared.
        archive: read the records that the topics have deleted from the archive.

    Raises:
        UserError: the topics cannot be read.
    """
    report = Report()
    waiting = _round(context, api, left_out, report, archive=archive)
    last: _Waiting = {}
    for _ in range(ROUNDS - 1):
        # A customer who has not changed between two rounds needs no third round.
        if not waiting or waiting == last:
            break
        time.sleep(_SECONDS_BETWEEN_ROUNDS)
        last, waiting = waiting, _round(context, api, left_out, report, waiting, archive=archive)
    for pseudonym, (_, found) in waiting.items():
        if last.get(pseudonym) == waiting[pseudonym]:
            report.differences += found
        else:
            report.changing.append(found[0].whose)
    return report


def _round(
    context: Context,
    api: str,
    left_out: Collection[Source],
    report: Report,
    only: _Waiting | None = None,
    *,
    archive: bool,
) -> _Waiting:
    """Compare all customers, or only these, and add their differences to the report.

    Returns the customers whose differences may still disappear. Their differences are not in the report.
    """
    snapshot = _snapshot(context, api, left_out, archive=archive)
    report.unreadable += [each for each in snapshot.unreadable if each not in report.unreadable]
    selected = snapshot.facts if only is None else of_customers(snapshot.facts, only)
    examination = _examination(context.programmes, snapshot.coverage)
    results = by_customer(context, selected, snapshot.coverage, examination, _RESULT).persist()
    try:
        if only is None:
            _summarize(report, snapshot, results)
        rows = with_differences(results, snapshot.returns, snapshot.events.records).collect()
    finally:
        context.spark.catalog.clearCache()
    waiting: _Waiting = {}
    for row in rows:
        found = [CustomerDifference(row.card or row.pseudonym, each["where"], each["what"]) for each in row.differences]
        if any(each["settles"] for each in row.differences):
            waiting[row.pseudonym] = row.version, found
        else:
            report.differences += found
    return waiting


def of_customers(facts: DataFrame, only: Collection[str]) -> DataFrame:
    """The facts of these customers.

    They are many if the ledger was stopped. So a join selects them: Spark needs more than a minute to plan a condition
    with 100,000 pseudonyms.
    """
    names = facts.sparkSession.createDataFrame([(each,) for each in only], "pseudonym STRING")
    return facts.join(names, "pseudonym", "left_semi")


def _snapshot(context: Context, api: str, left_out: Collection[Source], *, archive: bool) -> Snapshot:
    settings = context.settings
    checkpoint = LOYALTY_QUERY.checkpoint(settings)
    # Read the progress first. Every event that is committed now must have its entries.
    reader = CheckpointReader(context.spark, checkpoint)
    # Timers are rounded up to the interval, and a timer that is set for the past fires one batch later.
    delay = 3 * (settings.timer_interval // timedelta(milliseconds=1))
    progress = Progress(reader.positions(), max(0, reader.clock_time() - delay))
    reads: dict[Source, Read] = {
        Source.LEDGER: lambda: facts.ledger(context),
        Source.BALANCE: lambda: facts.from_python(
            context, Source.BALANCE, served_balances(api, settings.api_key_file, client_context(settings))
        ),
        Source.STATE: lambda: facts.state(context, checkpoint),
    }
    reads = {source: read for source, read in reads.items() if source not in left_out}
    return take_snapshot(context, reads, progress, archive=archive)


def _examination(programmes: Programmes, coverage: Coverage) -> Callable[[Customer], dict[str, Any]]:
    """Returns a function for ``by_customer`` that gives a row of _RESULT."""
    # The topic can have deleted older commands. Without older entries, the order of the events is a guess.
    since = max(coverage.events_from, coverage.record_from)

    def row_of(customer: Customer) -> dict[str, Any]:
        result = customer.result
        settled = customer.recomputed.settled if result.recomputed else Outcome(None)
        account = settled.account
        return {
            "pseudonym": customer.pseudonym,
            "card": customer.card,
            "entries": result.entries,
            "recomputed": result.recomputed,
            "lacks_entries": result.lacks_entries,
            "version": str(result.version),
            **{source.name: customer.facts.count(source) for source in COMPARED},
            "differences": [each._asdict() for each in result.differences],
            "purchases": [*returnables(account, programmes, account.updated_time)] if account else [],
            "returns": [*account.returns] if account else [],
            "commands": settled.sent if all(entry.time >= since for entry in settled.entries) else [],
        }

    return row_of


def _summarize(report: Report, snapshot: Snapshot, results: DataFrame) -> None:
    sums = (F.coalesce(F.sum(source.name), F.lit(0)).alias(source.name) for source in COMPARED)
    # A card has no account if its only events are returns that reached no account.
    has_account = (F.col("entries") > 0) | ~F.col("recomputed")
    for each in COMPARED:
        has_account |= F.col(each.name) > 0
    (row,) = results.agg(
        F.count_if(has_account).alias("accounts"),
        F.coalesce(F.sum("entries"), F.lit(0)).alias("entries"),
        F.count_if(~F.col("recomputed")).alias("not_recomputed"),
        F.count_if("lacks_entries").alias("lacking_entries"),
        *sums,
    ).collect()
    report.accounts, report.entries, report.not_recomputed = row.accounts, row.entries, row.not_recomputed
    report.compared = {str(each): row[each.name] for each in COMPARED if each in snapshot.coverage.compared}
    report.notes += snapshot.notes
    if row.lacking_entries:
        report.notes.append(
            f"entries of {row.lacking_entries:,} accounts are missing in the topic loyalty and in the ledger. "
            "`loyalty ledger gaps` shows those before later entries"
        )
    if row.not_recomputed > row.lacking_entries and not snapshot.coverage.events_from:
        report.notes.append(CREATED_AGAIN)
    report.differences += [CustomerDifference(*anomaly) for anomaly in snapshot.anomalies.collect()]


def main(
    *,
    source: FromOption = From.TOPICS,
    api: ApiUrl = None,
    without: WithoutOption = None,
    show: ShowOption = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Recompute every account and compare it with the loyalty topic, the ledger, served balances and Spark's state.

    The exit status is 0 if all agree, 1 if anything differs, 2 if something could not be read. The output names cards.
    """
    left_out = [PARTS[part] for part in without or ()]
    started_time = now()
    with open_context("loyalty-audit", UNREADABLE) as context:
        settings = context.settings
        found = audit(context, api or settings.advertised_url, left_out, archive=source is From.PARQUET)
        try:
            publish_run(found.run(started_time, pseudonymize(context.pseudonyms)), settings)
        except (PublishError, SchemaRegistryUnavailableError) as error:
            typer.echo(f"warning: the console does not show this run, because it is not in Kafka: {error}", err=True)
    output.report(dataclasses.asdict(found), *texts_of(found, show), as_json=as_json)
    raise typer.Exit(found.status)


if __name__ == "__main__":
    typer.run(main)
