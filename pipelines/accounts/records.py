"""The output of accounts: converts the outcome of the domain to rows, and the rows to Kafka records."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from pipelines.columns import avro, traces
from pipelines.columns.types import struct
from schemas.topics import LOYALTY, LOYALTY_BALANCES, LOYALTY_COMMANDS, LOYALTY_DECISIONS, Topic
from services.codecs.events import command_record, credit_record, forget_record, forward_record
from services.codecs.records import (
    balance_record,
    decision_record,
    erased_decision_record,
    notification_record,
    points_bytes,
)
from services.domain.account.model import Outcome
from services.domain.entries import Entry, Kind
from services.domain.invoice_index import Returned
from services.messaging.avro import Record, record_encoder
from services.messaging.schema_ids import SchemaIds

if TYPE_CHECKING:
    from services.settings import Settings  # its import takes 0.1 s in each Python process that Spark starts

RECORD_TYPE = struct(topic="string", id="string", key="binary", value="binary", traceparent="string")
"""A record: the name of its topic without the prefix, its CloudEvents id, its key, its framed value and its trace."""

_TOPICS = (LOYALTY, LOYALTY_BALANCES, LOYALTY_DECISIONS, LOYALTY_COMMANDS)


def writer_ids(ids: SchemaIds) -> dict[Topic, int]:
    """The schema ids of all written topics. Call this in the driver, because workers may not reach the registry."""
    return {topic: ids.writer_id(topic) for topic in _TOPICS}


_encoder = cache(record_encoder)


def rows_of(
    card: str, outcome: Outcome, writer_ids: Mapping[Topic, int], traces: Mapping[str, str] = {}
) -> Iterator[Row]:
    """The outcome of one customer's events as rows of RECORD_TYPE. ``traces`` has traceparents by event id."""
    for topic, record_id, key, record, cause in _records(card, outcome):
        yield _row(topic, record_id, key, record, writer_ids, traces.get(cause))


def forwarded_row(
    card: str, returned: Returned, writer_ids: Mapping[Topic, int], traceparent: str | None = None
) -> Row:
    """The command that forwards a return to the account of the card. ``returned.invoice`` is a framed Purchase."""
    record = forward_record(card, returned.append_time, returned.invoice)
    return _row(LOYALTY_COMMANDS, record["CommandID"], card, record, writer_ids, traceparent)


def step_rows(counts: Mapping[str, int]) -> Iterator[Row]:
    """Rows that are counted and not written. They have no topic, and ``id`` is the step. Each return has a row."""
    for step, number in counts.items():
        for _ in range(number):
            yield Row(topic=None, id=step, key=None, value=None, traceparent=None)


def _row(
    topic: Topic,
    record_id: str,
    key: str,
    record: Record | None,
    writer_ids: Mapping[Topic, int],
    traceparent: str | None,
) -> Row:
    value = None if record is None else _encoder(topic.value, writer_ids[topic])(record)
    return Row(topic=topic.name, id=record_id, key=key.encode(), value=value, traceparent=traceparent)


def _records(card: str, outcome: Outcome) -> Iterable[tuple[Topic, str, str, Record | None, str]]:
    """Topic, id, key, record and id of the causing event of everything in an outcome. A record None is a tombstone."""
    for entry in outcome.entries:
        yield LOYALTY, _entry_id(card, entry), card, notification_record(card, entry, points_bytes), entry.event_id
    if outcome.entries:
        # Readers of the changelog keep the newest balance, so one balance in a micro-batch is enough. If the account
        # was erased and opened again, this is the balance of the new account.
        last = outcome.entries[-1]
        balance = None if last.kind == Kind.ERASED else balance_record(card, last, points_bytes)
        yield LOYALTY_BALANCES, _entry_id(card, last), card, balance, last.event_id
    for decision in outcome.decisions:
        command_id = decision.command_id
        yield LOYALTY_DECISIONS, command_id, command_id, decision_record(card, decision, points_bytes), command_id
    for forgotten in outcome.forgotten:
        yield LOYALTY_DECISIONS, forgotten.command_id, forgotten.command_id, erased_decision_record(forgotten), ""
    for credit in outcome.credits:
        record = credit_record(card, credit)
        yield LOYALTY_COMMANDS, credit.command_id, credit.to_card, record, _cause(credit.command_id)
    for to_card, command in outcome.commands:
        record = command_record(to_card, command)
        yield LOYALTY_COMMANDS, command.event_id, to_card, record, _cause(command.event_id)
    for invoice_number in outcome.forgotten_invoices:
        record = forget_record(card, invoice_number)
        yield LOYALTY_COMMANDS, record["CommandID"], card, record, ""


def _cause(derived_id: str) -> str:
    """The id of the event from which ``events.derived_id`` made an id.

    An id with a slash, or a very long one, cannot be recovered.
    """
    return derived_id.partition("/")[0]


def _entry_id(card: str, entry: Entry) -> str:
    return f"{card}@{entry.opened_time}.{entry.sequence}"


def kafka_records(rows: DataFrame, settings: "Settings") -> DataFrame:
    """Convert rows of RECORD_TYPE to records for the Kafka sink."""
    topic = F.col("topic")
    record_name = F.coalesce(*(F.when(topic == each.name, F.lit(each.value)) for each in _TOPICS))
    return rows.select(
        F.concat(F.lit(settings.topic_prefix), topic).alias("topic"),
        "key",
        "value",
        traces.with_trace(avro.cloud_event(F.col("id"), record_name)).alias("headers"),
    )
