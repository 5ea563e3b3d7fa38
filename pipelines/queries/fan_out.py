"""The fan-out query: reads pos-invoices once and writes every branch through one Kafka sink."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.columns import traces
from pipelines.columns.decoding import judge, read_bodies
from pipelines.deduplication.stream import deduplicate, invoice_identity
from pipelines.queries.branches import BRANCHES, branch_records
from pipelines.runtime.query import Query, QueryContext
from pipelines.sinks.kafka import write_stream
from schemas.topics import POS_INVOICES
from services.domain.validation import LARGEST_INVOICE
from services.messaging.administration import is_empty
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings


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


def _check_outputs(spark: SparkSession, _: SchemaIds, checkpoint: str, settings: Settings, is_new: bool) -> None:  # noqa: FBT001
    """Refuse to write all records again after the loss of a disk, or with a wrong setting.

    Then there is no folder. An operator who accepts duplicates makes an empty one.
    """
    if not is_new or Files(spark, checkpoint).exists():
        return
    # Other queries write dead letters, too.
    topics = (branch.topic for branch in BRANCHES if branch.topic.value)
    if filled := [settings.name_of(topic) for topic in topics if not is_empty(topic, settings)]:
        raise CheckpointMismatchError(
            f"the query fan-out has no checkpoint {checkpoint}, but {' and '.join(filled)} already contain records: "
            "the query would read pos-invoices from its beginning, and write these records again. Set "
            "LOYALTY_CHECKPOINT_DIR to the folder that has the checkpoint. If the checkpoint is lost and all readers "
            f"ignore duplicates, make an empty folder {checkpoint}, and start the pipeline again "
            "(docs/how-to/manage-checkpoints.md#a-new-checkpoint-for-the-fan-out)"
        )


FAN_OUT = Query(
    "fan-out",
    [POS_INVOICES],
    _fan_out,
    lambda settings: f"{settings.checkpoint_dir}/fan-out",
    longest_wait=lambda settings: settings.fan_out_interval,
    check=_check_outputs,
)
