"""Everything there is about accounts at one time, gathered in the order in which nothing can be missing."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.checkpoints.reader import Positions
from pipelines.reconciliation import facts, inputs
from pipelines.reconciliation.facts import first_line
from pipelines.reconciliation.inputs import Context, Inputs, in_words
from schemas import topics
from services.audit.comparison import Coverage
from services.audit.extent import extent_of
from services.audit.facts import Source
from services.audit.sources import UnreadableError

Read = Callable[[], DataFrame]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was found.

    Attributes:
        facts: rows of FACT_TYPE, of all customers.
        coverage: how much of everything that is.
        happened: the inputs that it is recomputed from.
        anomalies: what is wrong without being one customer's: whose (or which record's), where, and what.
        unreadable: what could not be read, and why.
        notes: what retention has taken, in words.
    """

    facts: DataFrame
    coverage: Coverage
    happened: Inputs
    anomalies: DataFrame
    unreadable: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Processed:
    """How far the loyalty query has come.

    Attributes:
        positions: up to where all that happened must have its entries.
        timers_until: the time up to which time must have done its part, milliseconds since the epoch.
    """

    positions: Positions
    timers_until: int


def gather(context: Context, reads: Mapping[Source, Read], processed: Processed | None, *, archive: bool) -> Snapshot:
    """Read these sources, the loyalty topic, and at last what happened: so whatever has an entry is among it.

    Args:
        processed: what happened later and has no entries is left out; None: nothing is.

    Raises:
        NoTopicError, PublishError: a topic cannot be read.
    """
    settings = context.settings
    there: dict[Source, DataFrame] = {}
    unreadable = []
    for source, read in reads.items():
        try:
            there[source] = read()
        except (UnreadableError, PySparkException) as error:
            unreadable.append(first_line(error))
    now = time.time_ns() // 1_000_000
    topic = extent_of(topics.LOYALTY, settings, now)
    entries = facts.readable(facts.entries(context, topic), context)
    recorded = entries
    if Source.LEDGER in there:
        recorded = recorded.unionByName(facts.readable(there[Source.LEDGER], context))
    happened = inputs.read(context, now, archive=archive)
    event_ids = recorded.where(F.col("event_id").isNotNull()).select("pseudonym", "event_id")
    once = inputs.once(happened.records, event_ids, settings)
    counted = once
    if processed:
        counted = once.where(F.col("is_recorded") | ~inputs.beyond(processed.positions))
    everything = facts.events(counted).union(entries.where("is_readable").select(*facts.FACT_TYPE.names))
    for found in there.values():
        everything = everything.union(found)
    coverage = Coverage(
        compared=frozenset({Source.LOYALTY, *there} | ({Source.EVENT} if processed else set())),
        events_from=happened.complete_from,
        record_from=0 if Source.LEDGER in there else topic.complete_from,
        topic_from=topic.complete_from,
        now=now,
        timers_until=processed.timers_until if processed else 0,
    )
    notes = list(happened.notes)
    if topic.complete_from:
        where = "are compared in the ledger alone" if Source.LEDGER in there else "are gone, and so is their order"
        notes.append(f"{settings.name_of(topics.LOYALTY)}: entries of before {in_words(topic.complete_from)} {where}")
    return Snapshot(everything, coverage, happened, _anomalies(context, entries, once), unreadable, notes)


def _anomalies(context: Context, entries: DataFrame, once: DataFrame) -> DataFrame:
    """Records of the loyalty topic that are no entries, and numbers that count for several customers."""
    topic = context.settings.name_of(topics.LOYALTY)
    unreadable = entries.where(~F.coalesce("is_readable", F.lit(False))).select(
        F.coalesce("card", F.lit("?")).alias("whose"),
        F.lit(str(Source.LOYALTY)).alias("where"),
        F.lit(f"a record of {topic} cannot be read").alias("what"),
    )
    twice = inputs.counted_twice(once, context.settings).select(
        F.array_join("pseudonyms", ", ").alias("whose"),
        F.lit(str(Source.EVENT)).alias("where"),
        F.concat(F.lit("counted for several customers: "), F.substring("identity", 2, 2**31 - 1)).alias("what"),
    )
    return unreadable.union(twice)
