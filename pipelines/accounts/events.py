"""The events of accounts: purchases from invoices, and commands.

Python finds them (``services.account_events``). Spark never reads the invoices themselves.
"""

from collections.abc import Callable, Hashable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.columns.traces import traceparent
from pipelines.columns.types import struct
from pipelines.columns.value_functions import call_for_each
from pipelines.deduplication.stream import deduplicate, record_position
from pipelines.runtime.query import QueryContext
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.account_events import Find, Found, find_in_commands, find_in_invoices
from services.domain.programme import Programmes
from services.messaging.schema_ids import SchemaIds

EVENT_TYPE = struct(
    CustomerCardNo="string",
    append_time="long",
    event="binary",
    invoice="string",
    original="string",
    traceparent="string",
)
"""An event: columns of ``account_events.Found``, the append time in milliseconds, and the trace of the record.

The trace is null if it is not sampled.
"""

_EVENT = ("CustomerCardNo", "event", "invoice", "original")
_POSITION = ("topic", "partition", "offset")
_FOUND = struct(**{name: "binary" if name == "event" else "string" for name in Found._fields})


def invoice_events(records: DataFrame, programmes: Programmes, ids: SchemaIds) -> DataFrame:
    """Add the columns of ``Found`` to records of pos-invoices from ``sources.kafka``."""
    types = frozenset(each for version in programmes.versions for each in version.customer_types)
    return _with_found(records, POS_INVOICES, ids, find_in_invoices, types)


def command_events(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add the columns of ``Found`` to records of loyalty-commands from ``sources.kafka``."""
    return _with_found(records, LOYALTY_COMMANDS, ids, find_in_commands)


def _with_found(
    records: DataFrame, topic: Topic, ids: SchemaIds, find: Callable[..., Find], *arguments: Hashable
) -> DataFrame:
    found = call_for_each(F.col("value"), F.col("key"), topic.value, ids.known(topic), find, _FOUND, *arguments)
    return records.withColumn("found", found).select("*", "found.*").drop("found")


def unique_events(
    invoices: DataFrame, commands: DataFrame, context: QueryContext, remembered: DataFrame | None = None
) -> DataFrame:
    """Each event once: the columns of EVENT_TYPE, and the position of its record (topic, partition, offset).

    Args:
        invoices, commands: the results of ``invoice_events`` and ``command_events``.
        remembered: see ``deduplicate``.
    """
    unique = deduplicate(events_with_duplicates(invoices, commands), context, remembered)
    events = unique.where(F.col("event").isNotNull() | F.col("invoice").isNotNull())
    return events.withColumn("append_time", F.unix_millis("timestamp")).select(*EVENT_TYPE.names, *_POSITION)


def events_with_duplicates(invoices: DataFrame, commands: DataFrame) -> DataFrame:
    """The timestamp, the identity, the position and the event of each record.

    The columns of the event are null if the record is not valid or its customer has no account. Such a record stays,
    because a later record with the same number is a duplicate of it.
    """
    identity = F.coalesce("identity", record_position()).alias("identity")
    columns = ("timestamp", identity, *_POSITION, *_EVENT, traceparent().alias("traceparent"))
    return invoices.select(*columns).union(commands.select(*columns))
