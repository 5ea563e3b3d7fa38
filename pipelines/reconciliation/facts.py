"""All facts about accounts, grouped by customer, for the audit and the rebuild.

A fact is a row of FACT_TYPE. A pseudonym identifies the customer, because the archive has no cards, and the ledger has
no card of an erased customer.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyarrow.parquet import ParquetWriter
from pyspark import SparkFiles, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pipelines.accounts.state_layout import ACCOUNTS, layout_of
from pipelines.checkpoints import manifest
from pipelines.columns.decoding import decode_avro
from pipelines.columns.types import struct
from pipelines.reconciliation.context import Context, one_line
from pipelines.reconciliation.events import pseudonym_of, read_topic
from pipelines.runtime.state_calls import SHARED, decode
from schemas.topics import LOYALTY
from services.audit.extent import TopicExtent
from services.audit.facts import Source
from services.audit.sources import Fact, UnreadableError, ledger_entries
from services.codecs.state import MARKER
from services.domain.entries import Kind
from services.domain.validation import is_pseudonym
from services.errors import SettingsError, UserError
from services.pseudonyms import Pseudonyms

FACT_TYPE = struct(pseudonym="string", card="string", source="string", time="long", value="binary")
"""``card`` is null if it is not known. ``time`` is the append time of an event. FactsReader describes ``value``."""

_PAGE = 10_000
"""The number of facts that Python holds in memory at once."""


def pseudonymize(pseudonyms: Pseudonyms) -> Callable[[str], str]:
    """A function that replaces a card by its pseudonym and keeps a pseudonym."""

    def pseudonym(name: str) -> str:
        return name if is_pseudonym(name) else pseudonyms.of(name)

    return pseudonym


def of_events(events: DataFrame) -> DataFrame:
    """Rows of ``effective_events`` as facts."""
    return _facts(events, Source.EVENT, F.col("append_time"), F.col("event"))


def entries(context: Context, extent: TopicExtent) -> DataFrame:
    """The loyalty topic as facts."""
    card = F.col("key").cast("string")
    rows = read_topic(context, extent).select(
        pseudonym_of(context.pseudonyms, card).alias("pseudonym"), card.alias("card"), "value"
    )
    return _facts(rows, Source.LOYALTY, F.lit(0), F.col("value"))


def with_event_ids(entries: DataFrame, context: Context) -> DataFrame:
    """Add ``event_id`` (null if a timer made the entry), ``entry_time`` and ``is_readable`` to entries as facts."""
    entry = F.col("entry")
    kind = entry.getField("Kind")
    points = F.array(*(entry.getField(f"{part}LoyaltyPoints") for part in ("Available", "Pending", "Reserved")))
    is_readable = kind.isin([str(each) for each in Kind]) & F.forall(points, lambda each: each.isNotNull())
    columns = {
        "event_id": F.when(kind != Kind.LAPSED, F.nullif(entry.getField("EventID"), F.lit(""))),
        "entry_time": entry.getField("UpdatedTime"),
        "is_readable": is_readable & (F.col("card") == entry.getField("CustomerCardNo")),
    }
    decoded = decode_avro(entries, "value", LOYALTY.value, context.ids.known(LOYALTY), into="entry")
    return decoded.withColumns(columns).drop("entry")


def balances(context: Context, extent: TopicExtent) -> DataFrame:
    """The newest balance of each customer in the changelog, as facts."""
    latest = (
        read_topic(context, extent)
        .groupBy(F.col("key").cast("string").alias("card"))
        .agg(F.max_by("value", "offset").alias("value"))
        .where(F.col("value").isNotNull())
        .withColumn("pseudonym", pseudonym_of(context.pseudonyms, F.col("card")))
    )
    return _facts(latest, Source.BALANCE, F.lit(0), F.col("value"))


def state(context: Context, checkpoint: str) -> DataFrame:
    """The accounts in Spark's state after the last committed micro-batch, as facts. Raises UnreadableError.

    Reads them immediately and keeps a copy on disk: a running query deletes this version of its state after 100
    micro-batches.
    """
    try:
        layout = layout_of(checkpoint, manifest.read(context.spark, checkpoint))
    except manifest.CheckpointMismatchError as error:
        raise UnreadableError(Source.STATE, str(error)) from error
    rows = _shared_accounts(context, checkpoint) if layout.are_shared else _own_accounts(context, checkpoint)
    accounts = rows.where(F.substring("account", 1, 1) != F.lit(MARKER)).withColumn(
        "pseudonym", pseudonym_of(context.pseudonyms, F.col("card"))
    )
    found = _facts(accounts, Source.STATE, F.lit(0), F.col("account")).persist(StorageLevel.DISK_ONLY)
    try:
        found.count()
    except (Py4JJavaError, PySparkException) as error:
        found.unpersist()
        raise UnreadableError(Source.STATE, f"{checkpoint}: {one_line(error)}") from error
    return found


def _own_accounts(context: Context, checkpoint: str) -> DataFrame:
    key, value = F.col("user_map_key.card"), F.col("user_map_value.account")
    return state_variable(context, checkpoint, ACCOUNTS).select(key.alias("card"), value.alias("account"))


def _shared_accounts(context: Context, checkpoint: str) -> DataFrame:
    card, account = (F.udf(lambda row: _decode(row)[0], kind) for kind in ("string", "binary"))
    return (
        state_variable(context, checkpoint, SHARED)
        .where(F.col("user_map_key.map") == ACCOUNTS)
        .select(card("user_map_key.key").alias("card"), account("user_map_value.value").alias("account"))
    )


def _decode(row: bytes) -> tuple[Any, ...]:
    return decode(row)  # a function, because Spark cannot copy the decoder itself to its workers


def state_variable(context: Context, checkpoint: str, name: str) -> DataFrame:
    """A map of the loyalty query's state after the last committed micro-batch. Raises UnreadableError."""
    # The state reader needs a coordinator. A session creates it when its streams are used for the first time.
    _ = context.spark.streams.active
    read = context.spark.read
    try:
        # Spark numbers the operators from the end of a query: 0 is that of the accounts, 1 the deduplication.
        return read.format("statestore").options(operatorId=0, stateVarName=name).load(checkpoint)
    except (PySparkException, ValueError) as error:
        raise UnreadableError(Source.STATE, f"{checkpoint}: {one_line(error)}") from error


def ledger(context: Context) -> DataFrame:
    """The entries of the ledger, as facts. Raises UnreadableError."""
    found = ledger_entries(context.settings, context.ids, context.pseudonyms.key_id)
    return from_python(context, Source.LEDGER, found)


def from_python(context: Context, source: Source, found: Iterable[Fact]) -> DataFrame:
    """Facts that were read without Spark.

    A ledger can be larger than the memory. So Python writes the facts to a file, and Spark copies the file to its disk.
    Raises SettingsError if Spark does not run on this machine. Raises UserError if the disk is full.
    """
    if not str(context.spark.sparkContext.master).startswith("local"):
        raise SettingsError(
            "LOYALTY_SPARK_MASTER: the audit and the rebuild run Spark on this machine: do not set it, or set local[N]"
        )
    pseudonyms = context.pseudonyms
    rows = ((each.pseudonym or pseudonyms.of(str(each.card)), each.card, source, 0, each.value) for each in found)
    schema = to_arrow_schema(FACT_TYPE)
    # Spark deletes this folder when the session ends, even if a signal ends this process inside the block.
    folder = SparkFiles.getRootDirectory()
    with NamedTemporaryFile(dir=folder) as file:
        try:
            with ParquetWriter(file.name, schema) as writer:
                while page := [*islice(rows, _PAGE)]:
                    columns = zip(zip(*page, strict=True), schema.types, strict=True)
                    writer.write_batch(pa.record_batch([pa.array(*column) for column in columns], schema=schema))
        except OSError as error:
            advice = "free space, or set SPARK_LOCAL_DIRS to another disk"
            raise UserError(f"cannot copy the {source} to {folder}: {error}: {advice}") from error
        facts = context.spark.read.schema(FACT_TYPE).parquet(f"file://{file.name}").persist(StorageLevel.DISK_ONLY)
        facts.count()
    return facts


def _facts(rows: DataFrame, source: Source, time: Column, value: Column) -> DataFrame:
    return rows.select(
        "pseudonym", "card", F.lit(str(source)).alias("source"), time.cast("long").alias("time"), value.alias("value")
    )
