"""The audit: recompute every account, and compare it with all that is recorded, served and stored.

It may run beside the pipeline: where the places that are compared have not come equally far, those customers are looked
at again, until they agree or stand still.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.checkpoints.reader import Progress
from pipelines.reconciliation import facts
from pipelines.reconciliation.facts import FactRow, by_customer, pseudonymize
from pipelines.reconciliation.inputs import Context
from pipelines.reconciliation.snapshot import Processed, Read, Snapshot, gather
from pipelines.runtime.query_table import LOYALTY
from services.audit.comparison import Coverage, compare
from services.audit.facts import COMPARED, FactsReader, Source
from services.audit.sources import ledger_entries, served_balances
from services.messaging.schema_ids import schema_ids

ROUNDS = 6
"""How often customers are looked at whose places have not come equally far."""

_BETWEEN_ROUNDS = 5.0
_DIFFERENT, _UNREADABLE = 1, 2

_DIFFERENCE = T.StructType(
    [
        T.StructField("where", T.StringType()),
        T.StructField("what", T.StringType()),
        T.StructField("settles", T.BooleanType()),
    ]
)
VERDICT = T.StructType(
    [
        T.StructField("pseudonym", T.StringType()),
        T.StructField("card", T.StringType()),
        T.StructField("entries", T.LongType()),
        T.StructField("recomputed", T.BooleanType()),
        T.StructField("version", T.StringType()),
        *(T.StructField(source.name, T.LongType()) for source in COMPARED),
        T.StructField("differences", T.ArrayType(_DIFFERENCE)),
    ]
)
"""What the audit finds of one customer: see Verdict; by source how many facts were compared."""


@dataclass(frozen=True, slots=True)
class Found:
    """A difference; ``whose``: the card, or the pseudonym where nobody knows the card any more."""

    whose: str
    where: str
    what: str


@dataclass(slots=True)
class Report:
    """What the audit has found.

    Attributes:
        compared: by source how many there were: entries, balances, accounts.
        not_recomputed: accounts of which retention has taken events; they were compared with each other alone.
        unreadable: what could not be read or compared, and why.
        notes: what retention has taken, in words.
    """

    accounts: int = 0
    entries: int = 0
    not_recomputed: int = 0
    compared: dict[str, int] = field(default_factory=dict)
    differences: list[Found] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """Of the process."""
        if self.differences:
            return _DIFFERENT
        return _UNREADABLE if self.unreadable or self.not_recomputed else 0


_Waiting = dict[str, tuple[str, list[Found]]]
"""Customers whose places have not come equally far: the last entry, and what differs."""


def audit(context: Context, api: str, left_out: Collection[Source], *, archive: bool) -> Report:
    """Audit all accounts.

    Args:
        api: URL that serves balances.
        left_out: what is not to be compared.
        archive: take from there what the topics have lost.

    Raises:
        NoTopicError, PublishError: not even the topics can be read.
    """
    report = Report()
    waiting = _round(context, api, left_out, report, archive=archive)
    last: _Waiting = {}
    for _ in range(ROUNDS - 1):
        # What has stood still from one round to the next will not move in a third.
        if not waiting or waiting == last:
            break
        time.sleep(_BETWEEN_ROUNDS)
        last, waiting = waiting, _round(context, api, left_out, report, waiting, archive=archive)
    for pseudonym, (_, found) in waiting.items():
        if last.get(pseudonym) == waiting[pseudonym]:
            report.differences += found
        else:
            report.unreadable.append(f"{found[0].whose} changes faster than it can be compared")
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
    """Look at all customers, or at these. Those that may settle are returned, the others are in the report."""
    gathered = _gather(context, api, left_out, archive=archive)
    report.unreadable += [each for each in gathered.unreadable if each not in report.unreadable]
    about = gathered.facts if only is None else gathered.facts.where(F.col("pseudonym").isin(list(only)))
    verdicts = by_customer(about, examination(context, gathered.coverage), VERDICT).persist()
    try:
        if only is None:
            _describe(report, gathered, verdicts)
        rows = verdicts.where(F.size("differences") > 0).collect()
    finally:
        verdicts.unpersist()
    waiting: _Waiting = {}
    for row in rows:
        found = [Found(row.card or row.pseudonym, each["where"], each["what"]) for each in row.differences]
        if any(each["settles"] for each in row.differences):
            waiting[row.pseudonym] = row.version, found
        else:
            report.differences += found
    return waiting


def _gather(context: Context, api: str, left_out: Collection[Source], *, archive: bool) -> Snapshot:
    settings = context.settings
    checkpoint = LOYALTY.checkpoint(settings)
    # Before anything else is read: whatever has been committed by now must have its entries.
    progress = Progress(context.spark, checkpoint)
    # Timers are rounded up to the interval, and one that is set for a time that has passed fires a batch later.
    late = 3 * int(settings.timer_interval.total_seconds() * 1000)
    processed = Processed(progress.positions(), progress.batch_time() - late)
    reads: dict[Source, Read] = {
        Source.LEDGER: lambda: facts.collected(context, Source.LEDGER, ledger_entries(settings, context.ids)),
        Source.BALANCE: lambda: facts.collected(context, Source.BALANCE, served_balances(api)),
        Source.STATE: lambda: facts.state(context, checkpoint),
    }
    wanted = {source: read for source, read in reads.items() if source not in left_out}
    return gather(context, wanted, processed, archive=archive)


def examination(context: Context, coverage: Coverage) -> Callable[[], facts.Decide]:
    """A function that makes one which gives the VERDICT of each customer."""
    settings, programmes, pseudonyms = context.settings, context.programmes, context.pseudonyms

    def make() -> facts.Decide:
        read = FactsReader(schema_ids(settings)).read
        pseudonym_of = pseudonymize(pseudonyms)

        def decide(pseudonym: str, card: str | None, rows: Iterable[FactRow]) -> Iterator[tuple[object, ...]]:
            known = read(rows, card, pseudonym)
            seen, _ = compare(card or pseudonym, known, programmes, coverage, pseudonym_of)
            differences = [each._asdict() for each in seen.differences]
            counts = (known.count(source) for source in COMPARED)
            yield pseudonym, card, seen.entries, seen.recomputed, str(seen.version), *counts, differences

        return decide

    return make


def _describe(report: Report, gathered: Snapshot, verdicts: DataFrame) -> None:
    sums = (F.coalesce(F.sum(source.name), F.lit(0)).alias(source.name) for source in COMPARED)
    (row,) = verdicts.agg(
        F.count("*").alias("accounts"),
        F.coalesce(F.sum("entries"), F.lit(0)).alias("entries"),
        F.count_if(~F.col("recomputed")).alias("not_recomputed"),
        *sums,
    ).collect()
    report.accounts, report.entries, report.not_recomputed = row.accounts, row.entries, row.not_recomputed
    report.compared = {str(each): row[each.name] for each in COMPARED if each in gathered.coverage.compared}
    report.notes += gathered.notes
    report.differences += [Found(*anomaly) for anomaly in gathered.anomalies.collect()]
