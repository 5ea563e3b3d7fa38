"""All facts about accounts brought together by customer, for the audit and for the rebuild.

A fact is a row of FACT_TYPE. Customers are told apart by their pseudonyms: the archive knows no others, nor does the
ledger of those who were erased.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pipelines.accounts.operator import ACCOUNTS
from pipelines.columns import avro
from pipelines.reconciliation.inputs import Context, pseudonym_of, read_batch
from schemas.topics import LOYALTY
from services.audit.extent import TopicExtent
from services.audit.facts import Source
from services.audit.sources import Fact, UnreadableError
from services.domain.entries import Kind
from services.pseudonyms import Pseudonyms

FACT_TYPE = T.StructType(
    [
        T.StructField("pseudonym", T.StringType()),
        T.StructField("card", T.StringType()),
        T.StructField("source", T.StringType()),
        T.StructField("time", T.LongType()),
        T.StructField("value", T.BinaryType()),
    ]
)
"""``card`` is null where nobody knows it any more, ``time`` is an event's append time; of values, see FactsReader."""

FactRow = tuple[str, int, bytes]
"""Source, time, value."""

Decide = Callable[[str, str | None, Iterable[FactRow]], Iterator[tuple[object, ...]]]
"""Takes a pseudonym, the card where it is known, and all facts of that customer; gives rows."""

_PSEUDONYM_LENGTH = len(Pseudonyms(b"").of(""))


def pseudonymize(pseudonyms: Pseudonyms) -> Callable[[str], str]:
    """A function that gives the pseudonym of a card, and of a pseudonym that one."""

    def pseudonym(name: str) -> str:
        return name if is_pseudonym(name) else pseudonyms.of(name)

    return pseudonym


def is_pseudonym(name: str) -> bool:
    """Whether a name is that of somebody whose card is not known any more."""
    return len(name) == _PSEUDONYM_LENGTH and name.startswith("p1-")


def events(once: DataFrame) -> DataFrame:
    """Rows of ``inputs.once`` as facts."""
    return _facts(once, Source.EVENT, F.col("append_time"), F.col("event"))


def entries(context: Context, extent: TopicExtent) -> DataFrame:
    """The loyalty topic, as facts."""
    card = F.col("key").cast("string")
    rows = read_batch(context, extent).select(
        pseudonym_of(context.pseudonyms, card).alias("pseudonym"), card.alias("card"), "value"
    )
    return _facts(rows, Source.LOYALTY, F.lit(0), F.col("value"))


def readable(entries: DataFrame, context: Context) -> DataFrame:
    """Entries as facts in; with ``event_id`` (null where time made the entry) and ``is_readable`` out."""
    record, _ = avro.decode(F.col("value"), LOYALTY, context.ids)
    entry = F.col("entry")
    kind, event, invoice = (entry.getField(name) for name in ("Kind", "EventID", "InvoiceNumber"))
    is_readable = entry.getField(avro.MARKER).isNotNull() & kind.isin([str(each) for each in Kind])
    event_id = F.when(kind != Kind.LAPSED, F.coalesce(F.nullif(event, F.lit("")), F.nullif(invoice, F.lit(""))))
    columns = {"event_id": event_id, "is_readable": is_readable & (F.col("card") == entry.getField("CustomerCardNo"))}
    return entries.withColumn("entry", record).withColumns(columns).drop("entry")


def balances(context: Context, extent: TopicExtent) -> DataFrame:
    """What the changelog of balances has for each customer, as facts."""
    latest = (
        read_batch(context, extent)
        .groupBy(F.col("key").cast("string").alias("card"))
        .agg(F.max_by("value", "offset").alias("value"))
        .where(F.col("value").isNotNull())
        .withColumn("pseudonym", pseudonym_of(context.pseudonyms, F.col("card")))
    )
    return _facts(latest, Source.BALANCE, F.lit(0), F.col("value"))


def state(context: Context, checkpoint: str) -> DataFrame:
    """The accounts in Spark's state after the last batch that was committed, as facts; raises UnreadableError."""
    # Whoever reads state asks its coordinator, which a session has only once its streams have been asked for.
    _ = context.spark.streams.active
    read = context.spark.read
    try:
        operators = read.format("state-metadata").load(checkpoint)
        (ours,) = operators.where(F.col("operatorName").startswith("transformWithState")).select("operatorId").collect()
        options = {"operatorId": ours.operatorId, "stateVarName": ACCOUNTS}
        accounts = read.format("statestore").options(**options).load(checkpoint)
    except (PySparkException, ValueError) as error:
        raise UnreadableError(Source.STATE, f"{checkpoint}: {first_line(error)}") from error
    rows = accounts.select(
        F.col("user_map_key.card").alias("card"), F.col("user_map_value.account").alias("account")
    ).withColumn("pseudonym", pseudonym_of(context.pseudonyms, F.col("card")))
    return _facts(rows, Source.STATE, F.lit(0), F.col("account"))


def collected(context: Context, source: Source, found: Iterable[Fact]) -> DataFrame:
    """Facts that were read without Spark."""
    pseudonyms = context.pseudonyms
    rows = ((each.pseudonym or pseudonyms.of(str(each.card)), each.card, source, 0, each.value) for each in found)
    columns = [*zip(*rows, strict=True)] or [()] * len(FACT_TYPE)
    types = [pa.string(), pa.string(), pa.string(), pa.int64(), pa.binary()]
    arrays = [pa.array(column, of) for column, of in zip(columns, types, strict=True)]
    return context.spark.createDataFrame(pa.table(dict(zip(FACT_TYPE.names, arrays, strict=True))), FACT_TYPE)


def by_customer(facts: DataFrame, make: Callable[[], Decide], result: T.StructType) -> DataFrame:
    """Call a function for every customer with all there is of them; rows of that type.

    Args:
        make: makes that function, where it is to run.
    """
    arrow = to_arrow_schema(result)

    def decide_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decide = make()
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for pseudonym, of_customer in groupby(rows, key=itemgetter(0)):
            listed = list(of_customer)
            card = next((card for _, card, *_ in listed if card), None)
            decided = [*decide(pseudonym, card, ((source, time, value) for *_, source, time, value in listed))]
            if decided:
                yield pa.RecordBatch.from_pylist([dict(zip(arrow.names, row, strict=True)) for row in decided], arrow)

    # Sorted by source too, so that nothing hangs on the order in which Spark's tasks ended.
    together = facts.select(*FACT_TYPE.names).repartition("pseudonym").sortWithinPartitions("pseudonym", "source")
    return together.mapInArrow(decide_all, result)


def first_line(error: Exception) -> str:
    """What a user can do something with; Spark's errors go on for pages."""
    return str(error).partition("\n")[0]


def _facts(rows: DataFrame, source: Source, time: Column, value: Column, *more: str) -> DataFrame:
    return rows.select("pseudonym", "card", F.lit(str(source)).alias("source"), time.cast("long").alias("time"),
                       value.alias("value"), *more)  # fmt: skip
