"""The fan-out query: reads pos-invoices once and writes every branch through one Kafka sink."""

from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.columns import traces
from pipelines.columns.decoding import judge, read_bodies
from pipelines.deduplication.stream import deduplicate, invoice_identity
from pipelines.queries.branches import BRANCHES, branch_records
from pipelines.runtime.query import Query, QueryContext
from pipelines.sinks.kafka import write_stream
from schemas.topics import POS_INVOICES
from services.domain.validation import LARGEST_INVOICE


def _fan_out(context: QueryContext) -> DataStreamWriter:
    records = context.read(POS_INVOICES)
    judged = judge(records, POS_INVOICES, context.ids)
    is_invalid = F.col("reason").isNotNull()
    rows = judged.select(
        *("timestamp", "key", "topic", "partition", "offset", "reason", "body"),
        invoice_identity().alias("identity"),
        *traces.columns(),
        # Only a dead letter needs them. Memory may not hold many values of invoices that are too large.
        F.when(is_invalid & (F.length("value") <= LARGEST_INVOICE), F.col("value")).alias("value"),
        F.when(is_invalid, F.col("headers")).alias("headers"),
    )
    unique = deduplicate(rows, context)
    invoices = read_bodies(unique, POS_INVOICES, context.ids, into="invoice")
    outputs = branch_records(BRANCHES, invoices, context.ids, context.settings)
    return write_stream(outputs, context.settings)


FAN_OUT = Query(
    "fan-out",
    [POS_INVOICES],
    _fan_out,
    lambda settings: f"{settings.checkpoint_dir}/fan-out",
    longest_wait=lambda settings: settings.fan_out_interval,
)
