"""The loyalty query, the single writer of accounts: processes invoices and commands by customer, in time order.

The key of an invoice is its shop, and a customer buys in many shops. So the query shuffles the events by card. The
domain decides about each event. ``pipelines.accounts`` reads and writes the accounts in Spark's state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.accounts.events import EVENT_TYPE, command_events, invoice_events, unique_events
from pipelines.accounts.operator import AccountOperator
from pipelines.accounts.records import kafka_records, writer_ids
from pipelines.accounts.routing import process_events
from pipelines.accounts.state_layout import LAYOUT, STATE_VERSION, layout_of
from pipelines.checkpoints.later_balances import find_later_balance
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.checkpoints.programme_versions import require_versions
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.columns.observations import RETURN_STEPS, RETURNS
from pipelines.queries.branches import dead_letters
from pipelines.queries.skipped_records import write_skipped_invoices
from pipelines.runtime.query import FORMATS, Query, QueryContext
from pipelines.runtime.read_progress import serve_read_progress
from pipelines.sinks.kafka import write_stream
from pipelines.sources.clock import clock_rows
from schemas.topics import LOYALTY_BALANCES, LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.domain.formats import time_text
from services.messaging.administration import is_empty
from services.messaging.schema_ids import SchemaIds
from services.messaging.topic_reader import Offsets
from services.programmes.topic import load_programmes
from services.pseudonyms import pseudonyms
from services.settings import Settings

LOYALTY_FACTOR = "LOYALTY_LOYALTY_FACTOR"
"""The factor of version 0 of the programme, in the manifest. A checkpoint of release 0.1 adopts the current factor."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The accounts with which a new checkpoint begins.

    Attributes:
        accounts: CustomerCardNo string, account binary (``encode_account``).
        remembered: the identities that must not take effect again: identity, timestamp.
        offsets: by topic, the first records that these accounts do not include.
        invoices: the index of invoices: invoice string; owner string, the card that bought it, empty if it is unknown;
            waiting binary, the returns that wait for it (``encode_waiting``).
    """

    accounts: DataFrame
    remembered: DataFrame
    offsets: Mapping[Topic, Offsets]
    invoices: DataFrame

    @property
    def state(self) -> DataFrame:
        """The rows of ``accounts`` and of ``invoices``, with all their columns."""
        return self.accounts.unionByName(self.invoices, allowMissingColumns=True)


def _loyalty(context: QueryContext, seed: Seed | None = None) -> DataStreamWriter:
    settings, ids = context.settings, context.ids
    start = seed.offsets if seed else {}
    versions = load_programmes(settings)
    require_versions(context.spark, LOYALTY_QUERY.checkpoint(settings), versions)
    invoices = invoice_events(context.read(POS_INVOICES, start.get(POS_INVOICES)), versions, ids)
    commands = command_events(context.read(LOYALTY_COMMANDS, start.get(LOYALTY_COMMANDS)), ids)
    unique = unique_events(invoices, commands, context, seed.remembered if seed else None)
    events = unique.select(*EVENT_TYPE.names)
    address = serve_read_progress(
        context.spark, LOYALTY_QUERY.checkpoint(settings), (POS_INVOICES, LOYALTY_COMMANDS), settings
    )
    clock = clock_rows(context.spark, EVENT_TYPE, address, settings)
    layout = layout_of(LOYALTY_QUERY.checkpoint(settings), context.formats)
    interval = settings.timer_interval // timedelta(milliseconds=1)
    operator = AccountOperator(versions, writer_ids(ids), interval, pseudonyms(settings.pseudonym_key_file), layout)
    rows = process_events(events, clock, operator, settings, seed.state if seed else None)
    records = kafka_records(_with_steps_counted(rows), settings).union(dead_letters(commands, settings))
    return write_stream(records, settings)


def _with_steps_counted(rows: DataFrame) -> DataFrame:
    """Count the rows of ``step_rows``, and drop them."""
    is_step = F.col("topic").isNull()
    counts = (F.count_if(is_step & (F.col("id") == step)).alias(step) for step in RETURN_STEPS)
    return rows.observe(RETURNS, *counts).where(~is_step)


def _check_changelog(spark: SparkSession, ids: SchemaIds, checkpoint: str, settings: Settings, is_new: bool) -> None:  # noqa: FBT001
    """Refuse to start after an interrupted rebuild, and refuse a new or older checkpoint beside a later changelog.

    A rebuild writes records that the old checkpoint lacks. In a new or older checkpoint, accounts get sequence numbers
    that readers know already.
    """
    reader, changelog = CheckpointReader(spark, checkpoint), settings.name_of(LOYALTY_BALANCES)
    if reader.is_unfinished:
        raise CheckpointMismatchError(
            f"a rebuild of {checkpoint} was interrupted, so the checkpoint can lack records that the rebuild has "
            "written: run `loyalty rebuild` again"
        )
    if is_new and not is_empty(LOYALTY_BALANCES, settings):
        raise CheckpointMismatchError(
            f"{checkpoint} is new, but {changelog} continues another checkpoint: its readers "
            "would ignore every balance of the new one. Set LOYALTY_CHECKPOINT_DIR to the folder of that checkpoint, "
            "or make a new one with `loyalty rebuild` (docs/how-to/rebuild.md)"
        )
    planned = reader.planned_time()
    if planned and (found := find_later_balance(planned, reader.positions("offsets"), ids, settings)):
        position, event_time = found
        raise CheckpointMismatchError(
            f"{checkpoint} is older than {changelog}, for example because somebody has restored a copy of it. Spark "
            f"planned its newest micro-batch at {time_text(planned)}, but partition {position.partition}, offset "
            f"{position.offset} of the topic is the balance of an event of {time_text(event_time)}. The accounts of "
            "this checkpoint lack this event, and would use sequence numbers again, so readers would ignore new "
            "balances. Set LOYALTY_CHECKPOINT_DIR to the folder of the newest checkpoint, or make a new one with "
            "`loyalty rebuild` (docs/how-to/manage-checkpoints.md#an-older-checkpoint-is-refused)"
        )


LOYALTY_QUERY = Query(
    "loyalty",
    [POS_INVOICES, LOYALTY_COMMANDS],
    _loyalty,
    lambda settings: f"{settings.checkpoint_dir}/loyalty",
    reads_programme=True,
    formats={**FORMATS, LAYOUT: "2"},
    fixed=lambda settings: {
        "state": STATE_VERSION,
        # Returns, audits and rebuilds compute earlier purchases again. Another factor would change their points.
        LOYALTY_FACTOR: f"{settings.loyalty_factor.normalize():f}",
    },
    remedies={"state": "`loyalty rebuild` makes one that this release can continue (docs/how-to/rebuild.md)"},
    check=_check_changelog,
    learn=write_skipped_invoices,
)


def seeded(seed: Seed) -> Query:
    """The loyalty query that begins with these accounts. It needs a new checkpoint."""
    return replace(LOYALTY_QUERY, build=partial(_loyalty, seed=seed), check=_check_is_new)


def _check_is_new(_: SparkSession, __: SchemaIds, checkpoint: str, ___: Settings, is_new: bool) -> None:  # noqa: FBT001
    if not is_new:
        raise CheckpointMismatchError(f"{checkpoint} is not new: only a new checkpoint can begin with given accounts")
