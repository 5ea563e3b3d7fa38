"""A new checkpoint of the loyalty query, from what happened: for one that is lost, or of another release.

Accounts are recomputed in the order of the record, so their sequences go on. What had happened and was not processed is
taken last, and its records are written here; so are those that a batch which broke off may have left out. Readers
ignore what they have seen, so doing it twice changes nothing.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipelines.accounts.operator import RECORD_TYPE, rows_of, writer_ids
from pipelines.checkpoints import lock
from pipelines.checkpoints.reader import Progress
from pipelines.queries.loyalty import outgoing
from pipelines.reconciliation import facts
from pipelines.reconciliation.audit import Found
from pipelines.reconciliation.facts import FactRow, by_customer, first_line, pseudonymize
from pipelines.reconciliation.inputs import Context
from pipelines.reconciliation.snapshot import Snapshot, gather
from pipelines.runtime.query_table import LOYALTY, Seed
from pipelines.sinks.kafka import write_to_kafka
from schemas import topics
from schemas.topics import Topic
from services.audit.comparison import Coverage, compare, latest_version
from services.audit.extent import extent_of
from services.audit.facts import Facts, FactsReader, Source
from services.audit.sources import ledger_entries
from services.codecs.state import encode_account
from services.domain.account.model import EVENT_MEMORY, Account, Outcome
from services.domain.recomputation import Recomputed, is_from_timer
from services.messaging.schema_ids import schema_ids
from services.settings import Settings

_ATTEMPTS = 5

_DIFFERENCE = T.StructType([T.StructField("where", T.StringType()), T.StructField("what", T.StringType())])
_REBUILT = T.StructType(
    [
        T.StructField("whose", T.StringType()),
        T.StructField("CustomerCardNo", T.StringType()),
        T.StructField("account", T.BinaryType()),
        T.StructField("late", T.LongType()),
        T.StructField("problem", T.StringType()),
        T.StructField("differences", T.ArrayType(_DIFFERENCE)),
        T.StructField("records", T.ArrayType(RECORD_TYPE)),
    ]
)
"""One customer: the account (null: none any more), how many events were processed now, why it cannot be rebuilt."""


class RebuildError(RuntimeError):
    """There is no new checkpoint; the message says why."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was done.

    Attributes:
        late: events that had happened and were processed now.
        aside: where the checkpoint of before is; None: there was none.
        differences: what is not as it was served and recorded before.
    """

    accounts: int
    late: int
    checkpoint: str
    aside: str | None
    differences: list[Found]
    notes: list[str]


def rebuild(context: Context, *, archive: bool) -> Rebuilt:
    """Make a new checkpoint; the one of before is moved aside, never deleted. No pipeline can start meanwhile.

    Raises:
        RebuildError: the pipeline runs, or events are gone.
        NoTopicError, PublishError: a topic cannot be read.
        CheckpointMismatchError: the settings cannot be those of a loyalty query.
    """
    checkpoint = LOYALTY.checkpoint(context.settings)
    try:
        with lock.held(checkpoint):
            return _rebuild(context, checkpoint, archive=archive)
    except lock.CheckpointInUseError as error:
        raise RebuildError(f"{error}: stop the pipeline first") from error


def _rebuild(context: Context, checkpoint: str, *, archive: bool) -> Rebuilt:
    progress = Progress(context.spark, checkpoint)
    _check_nothing_writes(progress, context.settings)
    gathered = _gather(context, archive=archive)
    # On disk of the executors: it is used several times, and the record grows meanwhile.
    accounts = by_customer(gathered.facts, _reconstruction(context, gathered.coverage), _REBUILT).localCheckpoint()
    _check_whole(accounts, gathered)
    _write(context, accounts, gathered)
    aside = None
    if progress.exists:
        aside = f"{checkpoint}-before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        progress.move_aside(aside)
    seed = Seed(
        accounts.where(F.col("account").isNotNull()).select("CustomerCardNo", "account"),
        {topic: extent.ends for topic, extent in gathered.happened.cut.items()},
    )
    _begin(context, progress, seed)
    (row,) = accounts.agg(F.count("account").alias("accounts"), F.sum("late").alias("late")).collect()
    differences = accounts.select("whose", F.explode("differences").alias("it")).select("whose", "it.*").collect()
    found = [Found(*each) for each in [*gathered.anomalies.collect(), *differences]]
    notes = [*gathered.unreadable, *gathered.notes]
    return Rebuilt(row.accounts, row.late or 0, checkpoint, aside, found, notes)


def _begin(context: Context, progress: Progress, seed: Seed) -> None:
    """Run the query on the new checkpoint until it has all that is there now.

    A starved machine may not start a Python worker within the ten seconds that Spark gives it: then once more.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        query = LOYALTY.start(context.spark, context.ids, context.settings, available_now=True, seed=seed)
        try:
            with progress.unfinished():
                query.awaitTermination()
        except StreamingQueryException as error:
            progress.discard_unfinished()
            if attempt == _ATTEMPTS:
                raise RebuildError(f"the loyalty query does not start: {first_line(error)}") from error
        else:
            return


def _check_nothing_writes(progress: Progress, settings: Settings) -> None:
    """Where no lock reaches, a query on the checkpoint shows itself by a batch: the clock makes one every interval."""
    before = progress.batches("offsets"), progress.batches()
    if lock.local_folder(LOYALTY.checkpoint(settings)) is not None or not before[0]:
        return
    deadline = time.monotonic() + 2.5 * settings.timer_interval.total_seconds()
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if (progress.batches("offsets"), progress.batches()) != before:
            raise RebuildError(f"a query is running on {LOYALTY.checkpoint(settings)}: stop the pipeline first")


def _gather(context: Context, *, archive: bool) -> Snapshot:
    settings = context.settings
    changelog = extent_of(topics.LOYALTY_BALANCES, settings, 0)
    reads = {
        Source.LEDGER: lambda: facts.collected(context, Source.LEDGER, ledger_entries(settings, context.ids)),
        Source.BALANCE: lambda: facts.balances(context, changelog),
    }
    return gather(context, reads, None, archive=archive)


def _check_whole(accounts: DataFrame, gathered: Snapshot) -> None:
    problems = accounts.where(F.col("problem").isNotNull())
    if number := problems.count():
        because = "; ".join(sorted({row.problem for row in problems.select("problem").distinct().collect()}))
        notes = "".join(f"; {note}" for note in gathered.notes)
        raise RebuildError(f"{number} accounts cannot be recomputed: {because}{notes}")


def _write(context: Context, accounts: DataFrame, gathered: Snapshot) -> None:
    """The records of what was processed now, and those that are missing of what was processed before."""
    records = accounts.select(F.explode("records").alias("record")).select("record.*")
    is_credit = F.col("topic") == topics.LOYALTY_COMMANDS.name
    sent = gathered.happened.records.select(F.substring("identity", 2, 2**31 - 1).alias("id")).distinct()
    # Credits first: once an entry says that points were sent, nobody sends them again.
    for some in (records.where(is_credit).join(sent, "id", "left_anti"), records.where(~is_credit)):
        write_to_kafka(outgoing(some.select(*RECORD_TYPE.names), context.settings), context.settings)


def _reconstruction(context: Context, coverage: Coverage) -> Callable[[], facts.Decide]:
    """A function that makes one which gives the _REBUILT of each customer."""
    settings, programmes, pseudonyms = context.settings, context.programmes, context.pseudonyms
    ids = writer_ids(context.ids)

    def make() -> facts.Decide:
        read = FactsReader(schema_ids(settings)).read
        pseudonym_of = pseudonymize(pseudonyms)

        def decide(pseudonym: str, card: str | None, rows: Iterable[FactRow]) -> Iterator[tuple[object, ...]]:
            known = read(rows, card, pseudonym)
            seen, recomputed = compare(card or pseudonym, known, programmes, coverage, pseudonym_of)
            account = _going_on(recomputed.late.account, known)
            problem = _problem(card, recomputed, whole=seen.recomputed)
            records = [] if problem or not card else [*_records(card, recomputed, coverage.now, ids)]
            differences = [{"where": str(each.where), "what": each.what} for each in seen.differences]
            late = len({entry.event_id for entry in recomputed.late.entries if not is_from_timer(entry)})
            state = encode_account(account) if account and card else None
            yield card or pseudonym, card, state, late, problem, differences, records

        return decide

    return make


def _problem(card: str | None, recomputed: Recomputed, *, whole: bool) -> str | None:
    if not whole:
        return "events are gone"
    if card is None and recomputed.late.account is not None:
        return "nobody knows the card behind a pseudonym: neither loyalty, loyalty-balances nor the ledger"
    if any(facts.is_pseudonym(credit.to_card) for credit in recomputed.late.credits):
        return "points were sent to a card of which only the archive's pseudonym is left"
    return None


def _going_on(account: Account | None, known: Facts) -> Account | None:
    """Sequences stay above all that has been recorded or served, whatever became of the events behind them."""
    last = latest_version(known)
    if account is None or last is None or last <= (account.opened_time, account.sequence):
        return account
    return replace(account, opened_time=last[0], sequence=last[1])


def _records(card: str, recomputed: Recomputed, now: int, ids: Mapping[Topic, int]) -> Iterator[dict[str, object]]:
    """What was processed now, and decisions, credits and the balance of before, for whoever has not seen them."""
    settled, late = recomputed.settled, recomputed.late
    forgotten = {*settled.forgotten, *late.forgotten}
    decisions = [
        each for each in settled.decisions if each.command_id not in forgotten and each.time + EVENT_MEMORY > now
    ]
    again = Outcome(settled.account, settled.entries[-1:], decisions, settled.credits, settled.forgotten)
    seen = {topics.LOYALTY.name} | ({topics.LOYALTY_BALANCES.name} if late.entries else set())
    for row in rows_of(card, again, ids):
        if row.topic not in seen:
            yield row.asDict()
    for row in rows_of(card, late, ids):
        yield row.asDict()
