"""The snapshot: all facts about accounts. The order of the reads ensures that no fact is missing."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.checkpoints.reader import Positions
from pipelines.deduplication.stream import event_id
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.reconciliation import facts
from pipelines.reconciliation.context import Context, one_line
from pipelines.reconciliation.events import Events, is_before, read_events
from pipelines.reconciliation.repeats import counted_twice, effective_events, repeated_identities
from schemas import topics
from services import clock
from services.audit.comparison import Coverage
from services.audit.extent import TopicExtent, extent_of
from services.audit.facts import Source
from services.audit.sources import UnreadableError
from services.domain.formats import seconds_text
from services.programmes.file import ProgrammeError
from services.programmes.topic import load_programmes

Read = Callable[[], DataFrame]

CREATED_AGAIN = "pos-invoices or loyalty-commands was deleted and created again, so its older events are gone"
"""Why events are missing, although retention has deleted none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data that was read.

    Attributes:
        facts: rows of FACT_TYPE, of all customers.
        coverage: how complete the facts are.
        events: the events from which accounts are recomputed.
        repeated: the identities that count again, see ``repeated_identities``.
        returns: the processed events that name an original, also those without a card.
        anomalies: errors that do not belong to one customer: the customer or record, the place, and the error.
        unreadable: the sources that could not be read, and why.
        notes: what retention has deleted, in words.
    """

    facts: DataFrame
    coverage: Coverage
    events: Events
    repeated: DataFrame
    returns: DataFrame
    anomalies: DataFrame
    unreadable: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the loyalty query.

    Attributes:
        positions: every event before these positions must have its entries.
        timers_until: all timers up to this time must have been processed, milliseconds since the epoch.
    """

    positions: Positions
    timers_until: int


def take_snapshot(
    context: Context, reads: Mapping[Source, Read], progress: Progress | None, *, archive: bool
) -> Snapshot:
    """Read these sources, then the loyalty topic, and the events last. So every entry has its event.

    Spark keeps copies of the rows on disk. ``context.spark.catalog.clearCache()`` deletes them.

    Args:
        progress: events after it are omitted if they have no entry. None: no event is omitted.

    Raises:
        UserError: a topic cannot be read.
        ProgrammeError: the programme has changed.
        CheckpointMismatchError: a setting or a schema differs from the checkpoint, so points would differ, too.
    """
    settings = context.settings
    LOYALTY_QUERY.check_settings(context.spark, context.ids, settings)
    found: dict[Source, DataFrame] = {}
    unreadable = []
    for source, read in reads.items():
        try:
            found[source] = read()
        except (UnreadableError, PySparkException) as error:
            unreadable.append(one_line(error))
    now = clock.now()
    loyalty = extent_of(topics.LOYALTY, settings, now)
    # Several jobs use these rows. Without a copy each job would read and decode the topics again.
    entries = facts.with_event_ids(facts.entries(context, loyalty), context).persist(StorageLevel.DISK_ONLY)
    recorded = entries
    if ledger := found.get(Source.LEDGER):
        recorded = recorded.unionByName(facts.with_event_ids(ledger, context).persist(StorageLevel.DISK_ONLY))
    events = read_events(context, now, archive=archive)
    # The pipeline can decide these events by a version that was published after the command had loaded the programme.
    if load_programmes(settings) != context.programmes:
        raise ProgrammeError("the programme changed while this command ran: run the command again")
    events.records.persist(StorageLevel.DISK_ONLY)
    of_events = recorded.where(F.col("event_id").isNotNull()).select("pseudonym", "event_id", "entry_time")
    repeated = repeated_identities(events.records, of_events, settings).persist(StorageLevel.DISK_ONLY)
    effective = effective_events(events.records, of_events, repeated).persist(StorageLevel.DISK_ONLY)
    processed = effective.where(F.col("is_recorded") | is_before(progress.positions)) if progress else effective
    of_customers = processed.where(F.col("pseudonym").isNotNull())
    all_facts = facts.of_events(of_customers).union(entries.where("is_readable").select(*facts.FACT_TYPE.names))
    for rows in found.values():
        all_facts = all_facts.union(rows)
    notes = list(events.notes)
    if loyalty.complete_from:
        effect = "are compared in the ledger alone" if Source.LEDGER in found else "are gone, and so is their order"
        before = seconds_text(loyalty.complete_from)
        notes.append(f"{settings.name_of(topics.LOYALTY)}: entries of before {before} {effect}")
    coverage = _coverage(found, loyalty, events, progress, now)
    returns = processed.where(F.col("original").isNotNull())
    anomalies = _anomalies(context, entries, effective)
    return Snapshot(all_facts, coverage, events, repeated, returns, anomalies, unreadable, notes)


def _coverage(
    found: Collection[Source], loyalty: TopicExtent, events: Events, progress: Progress | None, now: int
) -> Coverage:
    return Coverage(
        compared=frozenset({Source.LOYALTY, *found} | ({Source.EVENT} if progress else set())),
        events_from=events.complete_from,
        record_from=0 if Source.LEDGER in found else loyalty.complete_from,
        topic_from=loyalty.complete_from,
        now=now,
        timers_until=progress.timers_until if progress else 0,
        first_invoice=events.extents[topics.POS_INVOICES].first_time,
        first_command=events.extents[topics.LOYALTY_COMMANDS].first_time,
        first_entry=loyalty.first_time,
    )


def _anomalies(context: Context, entries: DataFrame, events: DataFrame) -> DataFrame:
    """Records of the loyalty topic that are not entries, and numbers that count for several customers."""
    topic = context.settings.name_of(topics.LOYALTY)
    unreadable = entries.where(~F.coalesce("is_readable", F.lit(False))).select(
        F.coalesce("card", F.lit("?")).alias("whose"),
        F.lit(str(Source.LOYALTY)).alias("where"),
        F.lit(f"a record of {topic} cannot be read").alias("what"),
    )
    twice = counted_twice(events, context.settings).select(
        F.explode("pseudonyms").alias("whose"),
        F.lit(str(Source.EVENT)).alias("where"),
        F.concat(F.lit("counted for several customers: "), event_id()).alias("what"),
    )
    return unreadable.union(twice)
