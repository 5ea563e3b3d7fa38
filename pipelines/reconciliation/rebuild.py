"""The rebuild: makes a new checkpoint of the loyalty query from the events.

It replaces a lost checkpoint, or a checkpoint of another release. It recomputes accounts in the order of their entries,
so sequence numbers continue. Then it processes the events without entries, and writes their records. It also writes
records that an interrupted micro-batch may not have written. Readers ignore duplicates, so a second rebuild changes
nothing. ``python -m pipelines.reconciliation.rebuild``, or ``loyalty rebuild``, runs it.
"""

import dataclasses
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import typer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.accounts.invoice_index import encode_waiting, index_memory
from pipelines.accounts.records import RECORD_TYPE, forwarded_row, kafka_records, writer_ids
from pipelines.checkpoints import lock
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.queries.loyalty import LOYALTY_QUERY, Seed, seeded
from pipelines.reconciliation import facts
from pipelines.reconciliation.context import Context, one_line, open_context
from pipelines.reconciliation.customers import by_customer
from pipelines.reconciliation.forwarding import not_forwarded
from pipelines.reconciliation.reconstruction import REBUILT, reconstruction
from pipelines.reconciliation.refusals import (
    check_archive,
    check_complete,
    check_ledger,
    check_receivers,
    sent_ids,
)
from pipelines.reconciliation.report import CustomerDifference, lines_of
from pipelines.reconciliation.snapshot import Read, Snapshot, take_snapshot
from pipelines.sinks.kafka import write_batch
from schemas import topics
from services.audit.extent import extent_of
from services.audit.facts import Source
from services.cli.audit import SHOWN, AcceptLostEventsOption, From, FromOption, ShowOption, WithoutLedgerOption
from services.cli.output import AsJson, report
from services.domain.invoice_index import MOST_WAITING, Returned
from services.errors import UserError
from services.settings import Settings
from services.start_up import local_folder, require_writable

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of the rebuild.

    Attributes:
        late: events without entries, which the rebuild has processed.
        aside: the new path of the previous checkpoint, None if there was none.
        differences: between the new accounts and what was served or recorded before.
    """

    accounts: int
    late: int
    checkpoint: str
    aside: str | None
    differences: list[CustomerDifference]
    notes: list[str]


def rebuild(
    context: Context, *, archive: bool, without_ledger: bool = False, accept_lost_events: bool = False
) -> Rebuilt:
    """Make a new checkpoint. It renames the previous one and never deletes it. No pipeline can start meanwhile.

    Raises:
        CheckpointInUseError: the pipeline runs on this machine.
        UserError: the pipeline runs elsewhere, events are missing, or a topic or the needed ledger cannot be read.
        CheckpointMismatchError: the settings do not fit the loyalty query.
        StartUpError: the checkpoint's folder is read-only.
    """
    settings, checkpoint = context.settings, LOYALTY_QUERY.checkpoint(context.settings)
    if folder := local_folder(checkpoint):
        require_writable(folder, "LOYALTY_CHECKPOINT_DIR")
    with lock.hold(checkpoint):
        _check_nothing_writes(CheckpointReader(context.spark, checkpoint), settings)
        snapshot = _snapshot(context, archive=archive, without_ledger=without_ledger)
        check_archive(snapshot, settings)
        if not without_ledger:
            check_ledger(snapshot)
        now = snapshot.coverage.now
        row_of = reconstruction(context.ids, context.programmes, now, accept_lost_events=accept_lost_events)
        # Keep the result on disk: several jobs use it, and ``_write`` makes the loyalty topic longer.
        accounts = by_customer(context, snapshot.facts, snapshot.coverage, row_of, REBUILT).localCheckpoint()
        check_complete(accounts, snapshot)
        check_receivers(accounts, snapshot)
        return _replace(context, checkpoint, snapshot, accounts)


def _replace(context: Context, checkpoint: str, snapshot: Snapshot, accounts: DataFrame) -> Rebuilt:
    """Write the records of these accounts, and make the new checkpoint. ``accounts`` has the rows of REBUILT."""
    reader = CheckpointReader(context.spark, checkpoint)
    numbers = _owners(accounts)
    returns = snapshot.returns.join(numbers, "original", "left").localCheckpoint()
    seed = Seed(
        accounts.where(F.col("account").isNotNull()).select("CustomerCardNo", "account"),
        _remembered(snapshot),
        {topic: extent.ends for topic, extent in snapshot.events.extents.items()},
        _index(context, numbers, returns, snapshot.coverage.now),
    )
    aside = None
    with reader.unfinished():
        _write(context, accounts, returns, snapshot)
        if reader.exists:
            aside = f"{checkpoint}-before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            reader.rename(aside)
            typer.echo(f"the previous checkpoint is now {aside}", err=True)  # also if the rebuild fails afterwards
        _start(context, reader, seed)
    (row,) = accounts.agg(F.count("account").alias("accounts"), F.sum("late").alias("late")).collect()
    differences = accounts.select("whose", F.explode("differences").alias("it")).select("whose", "it.*").collect()
    found = [CustomerDifference(*each) for each in [*snapshot.anomalies.collect(), *differences]]
    notes = [*snapshot.unreadable, *snapshot.notes]
    return Rebuilt(row.accounts, row.late or 0, checkpoint, aside, found, notes)


def _remembered(snapshot: Snapshot) -> DataFrame:
    """The identities in the topics and the archive: identity, timestamp.

    If an identity counts again (see ``repeats``), the query must remember its last generation.
    """
    records = snapshot.events.records.join(snapshot.repeated, "identity", "left")
    is_current = F.col("starts").isNull() | (F.col("append_time") >= F.element_at("starts", -1))
    return records.where(is_current).select("identity", F.timestamp_millis("append_time").alias("timestamp"))


def _owners(accounts: DataFrame) -> DataFrame:
    """The original and the owner of each number. If several customers bought with a number, the last one counts."""
    bought = accounts.select(F.col("CustomerCardNo").alias("owner"), F.explode("purchases").alias("it"))
    return bought.groupBy("it.original").agg(F.max_by("owner", "it.bought_time").alias("owner"))


def _index(context: Context, numbers: DataFrame, returns: DataFrame, now: int) -> DataFrame:
    """The index of invoices: invoice, owner, waiting.

    Args:
        numbers: the result of ``_owners``.
        returns: as ``Snapshot.returns``, with the ``owner`` of the original, null if it is not known.
    """
    is_in_time = F.col("append_time") > now - index_memory(context.programmes)
    # Use a lambda: with the type hints of a function, Spark would expect a vectorised function.
    encode = F.udf(lambda rows: encode_waiting([Returned._make(row) for row in rows[:MOST_WAITING]]), "binary")
    waiting = (
        returns.where(F.col("owner").isNull() & is_in_time)
        .groupBy("original")
        .agg(F.sort_array(F.collect_list(F.struct("append_time", F.lit("").alias("card"), "event"))).alias("waiting"))
        .select(F.col("original").alias("invoice"), F.lit("").alias("owner"), encode("waiting").alias("waiting"))
    )
    known = numbers.select(F.col("original").alias("invoice"), "owner", F.lit(b"").alias("waiting"))
    return known.unionByName(waiting)


def _start(context: Context, reader: CheckpointReader, seed: Seed) -> None:
    """Run the query on the new checkpoint until it has read all records that exist now.

    The query starts again if a Python worker needs more than the ten seconds that Spark allows, as on a busy machine.
    """
    query = seeded(seed)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            query.start(context.spark, context.ids, context.settings, available_now=True).awaitTermination()
        except StreamingQueryException as error:
            if reader.batches("offsets"):
                # Readers may already have records of a planned micro-batch. Only a replay gives the same records.
                query = dataclasses.replace(query, check=lambda *_: None)
            else:
                reader.discard()
            if attempt == _ATTEMPTS:
                raise UserError(f"the loyalty query does not start: {one_line(error)}") from error
        else:
            return


def _check_nothing_writes(reader: CheckpointReader, settings: Settings) -> None:
    """Refuse if a query writes to a remote checkpoint, where no lock works.

    A running query commits a batch in each timer interval.
    """
    before = reader.batches("offsets"), reader.batches()
    if local_folder(LOYALTY_QUERY.checkpoint(settings)) is not None or not before[0]:
        return
    deadline = time.monotonic() + 2.5 * settings.timer_interval.total_seconds()
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if (reader.batches("offsets"), reader.batches()) != before:
            raise UserError(f"a query is running on {LOYALTY_QUERY.checkpoint(settings)}: stop the pipeline first")


def _snapshot(context: Context, *, archive: bool, without_ledger: bool) -> Snapshot:
    settings = context.settings
    changelog = extent_of(topics.LOYALTY_BALANCES, settings, 0)
    reads: dict[Source, Read] = {
        Source.LEDGER: lambda: facts.ledger(context),
        Source.BALANCE: lambda: facts.balances(context, changelog),
    }
    if without_ledger:
        del reads[Source.LEDGER]
    return take_snapshot(context, reads, None, archive=archive)


def _write(context: Context, accounts: DataFrame, returns: DataFrame, snapshot: Snapshot) -> None:
    """Write the records of the newly processed events, and those that the last micro-batch may not have written."""
    of_accounts = accounts.select(F.posexplode("records").alias("position", "record")).select("position", "record.*")
    forwarded = _forwarded(context, accounts, returns, snapshot.events.records).withColumn("position", F.lit(0))
    is_command = F.col("topic") == topics.LOYALTY_COMMANDS.name
    commands = of_accounts.where(is_command).unionByName(forwarded)
    # Write commands first. After the entry of a transfer is in the topic, no rebuild sends its credit again.
    for rows in (_unsent(commands, sent_ids(snapshot)), of_accounts.where(~is_command)):
        write_batch(kafka_records(rows.select(*RECORD_TYPE.names), context.settings), context.settings)


def _unsent(commands: DataFrame, sent: DataFrame) -> DataFrame:
    """The commands that are not sent, each key in the order of ``position``.

    The parts of an account must reach the other card in their order, before later events. The join loses this order.
    """
    return commands.join(sent, "id", "left_anti").repartition("key").sortWithinPartitions("key", "position")


def _forwarded(context: Context, accounts: DataFrame, returns: DataFrame, records: DataFrame) -> DataFrame:
    """The commands that forward returns to the accounts that bought, as rows of RECORD_TYPE."""
    ids = writer_ids(context.ids)
    command = F.udf(lambda owner, time, event: forwarded_row(owner, Returned(time, "", bytes(event)), ids), RECORD_TYPE)
    customers = accounts.select("pseudonym", "CustomerCardNo", "purchases", "returns")
    rows = not_forwarded(customers, returns, records)
    return rows.select(command("CustomerCardNo", "append_time", "event").alias("record")).select("record.*")


def main(
    *,
    source: FromOption = From.TOPICS,
    without_ledger: WithoutLedgerOption = False,
    accept_lost_events: AcceptLostEventsOption = False,
    show: ShowOption = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Make a new checkpoint of the loyalty query, with accounts that are recomputed from their events.

    Stop the pipeline first. The previous checkpoint is renamed and kept. The output names cards.
    """
    with open_context("loyalty-rebuild") as context:
        rebuilt = rebuild(
            context,
            archive=source is From.PARQUET,
            without_ledger=without_ledger,
            accept_lost_events=accept_lost_events,
        )
    summary = f"{rebuilt.checkpoint}: {rebuilt.accounts:,} accounts; {rebuilt.late:,} events newly processed"
    differences = lines_of(rebuilt.differences, show)
    notes = (f"note: {note}" for note in rebuilt.notes)
    report(dataclasses.asdict(rebuilt), summary, *differences, *notes, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
