"""Finds the records that count, if several records have the same identity.

The loyalty query drops duplicates as they arrive. So the record that it *read* first counts. Only the ledger and the
loyalty topic show which record that is: the record with an entry. If no record has an entry, the record that was
appended first counts. After some time the query forgets the identity. Then the next record with this identity counts,
too.
"""

from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipelines.deduplication.stream import event_id, longest_memory
from services.settings import Settings

_MILLISECOND = timedelta(milliseconds=1)


def repeated_identities(records: DataFrame, recorded: DataFrame, settings: Settings) -> DataFrame:
    """The identities that count again, because the queries have forgotten them meanwhile: identity, starts.

    ``starts`` are the append times of the copies that count, in order. Each begins a generation of copies. As in
    ``deduplicate``, the memory of an identity begins with the first copy of a generation. A copy with an entry begins a
    new generation if it is later than this first copy by more than the repeat horizon. A copy without an entry begins
    one if it is later by more than the longest memory.

    Args:
        recorded: see ``effective_events``.
    """
    horizon, memory = (each // _MILLISECOND for each in (settings.repeat_horizon, longest_memory(settings)))
    time_between = F.max("append_time") - F.min("append_time")
    late = records.groupBy("identity").agg(time_between.alias("time_between")).where(F.col("time_between") > horizon)
    made_entry = F.coalesce(F.array_contains("entry_times", F.col("append_time")), F.lit(False))
    copy = F.struct("append_time", made_entry.alias("made_entry"))

    def add(starts: Column, copy: Column) -> Column:
        limit = F.when(copy["made_entry"], horizon).otherwise(memory)
        is_start = copy["append_time"] - F.element_at(starts, -1) > limit
        return F.when(is_start, F.concat(starts, F.array(copy["append_time"]))).otherwise(starts)

    return (
        records.join(late.select("identity"), "identity", "left_semi")
        .withColumn("event_id", event_id())
        .join(_entry_times(recorded), ["pseudonym", "event_id"], "left")
        .groupBy("identity")
        .agg(F.sort_array(F.collect_set(copy)).alias("copies"))
        .select("identity", F.aggregate("copies", F.array(F.col("copies")[0]["append_time"]), add).alias("starts"))
        .where(F.size("starts") > 1)
    )


def effective_events(records: DataFrame, recorded: DataFrame, repeated: DataFrame) -> DataFrame:
    """For each event, the record that counts. The added column ``is_recorded`` tells whether the event has an entry.

    If this record has no card, because it is archived, it gets the card of another copy for the same customer.

    Args:
        recorded: pseudonym, event_id and entry_time of every entry of an event.
        repeated: see ``repeated_identities``.
    """

    def generation(time: Column) -> Column:
        """The start of the generation of this time. Null if the identity has only one generation."""
        begun = F.array_max(F.filter("starts", lambda start: start <= time))
        return F.coalesce(begun, F.col("starts")[0])

    marked = (
        records.withColumn("event_id", event_id())
        .join(_entry_times(recorded), ["pseudonym", "event_id"], "left")
        .join(repeated, "identity", "left")
        .withColumn("generation", generation(F.col("append_time")))
    )
    has_entry = F.exists("entry_times", lambda time: generation(time).eqNullSafe(F.col("generation")))
    marked = marked.withColumn("is_recorded", F.coalesce(has_entry, F.lit(False)))
    copies = Window.partitionBy("identity", "generation")
    order = ("append_time", "topic", "partition", "offset")
    # The time of an entry shows which copy of its customer made it. If no copy has this time, the first copy counts.
    made_entry = F.col("is_recorded") & F.array_contains("entry_times", F.col("append_time"))
    of_customer = Window.partitionBy("identity", "generation", "pseudonym").orderBy(
        (~made_entry).alias("other"), *order
    )
    marked = marked.withColumn("place", F.row_number().over(of_customer)).withColumn(
        "card", F.max("card").over(Window.partitionBy("identity", "generation", "pseudonym"))
    )
    is_first = F.row_number().over(copies.orderBy(*order)) == 1
    counts = F.when(F.col("is_recorded"), made_entry | (F.col("place") == 1)).otherwise(
        is_first & ~F.max("is_recorded").over(copies)
    )
    added = ("counts", "entry_times", "starts", "generation", "place")
    return marked.withColumn("counts", counts).where(F.col("counts") & F.col("event").isNotNull()).drop(*added)


def counted_twice(events: DataFrame, settings: Settings) -> DataFrame:
    """Identities with entries in several accounts within the horizon: identity, pseudonyms. Each is an error."""
    horizon = settings.repeat_horizon // _MILLISECOND
    several = (
        events.where("is_recorded")
        .groupBy("identity")
        .agg(
            F.collect_set("pseudonym").alias("pseudonyms"),
            (F.max("append_time") - F.min("append_time")).alias("time_between"),
        )
    )
    return several.where((F.size("pseudonyms") > 1) & (F.col("time_between") <= horizon)).drop("time_between")


def _entry_times(recorded: DataFrame) -> DataFrame:
    return recorded.groupBy("pseudonym", "event_id").agg(F.collect_set("entry_time").alias("entry_times"))
