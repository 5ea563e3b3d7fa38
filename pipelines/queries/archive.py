"""The archive query: writes every event of the loyalty query to Parquet, once and under pseudonyms.

With the archive, accounts can be recomputed after the topics have deleted the events. A card always has the same
pseudonym under the same key (services.pseudonyms), so a person with the key finds the events of a card.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import structlog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines.accounts.events import command_events, invoice_events, unique_events
from pipelines.checkpoints import retention
from pipelines.checkpoints.files import Files
from pipelines.checkpoints.learned_ids import LearnedIds
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.checkpoints.programme_versions import require_versions
from pipelines.queries.skipped_records import by_schema_id, read_again
from pipelines.runtime.query import Query, QueryContext
from pipelines.sinks.foreach_batch import write_each_batch
from pipelines.sinks.parquet import ParquetSink, has_rows, overwrite_folders, remove_staging_folders
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES
from services.codecs.events import ARCHIVED
from services.messaging.administration import has_deleted, topic_ids
from services.messaging.avro import header, record_decoder, record_encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.programmes.topic import load_programmes
from services.pseudonyms import Pseudonyms, pseudonyms
from services.settings import Settings
from services.start_up import local_folder

log = structlog.get_logger()

_POSITION = {"topic": "STRING", "partition": "INT", "offset": "BIGINT"}
"""The columns with the position of an event's record. They also identify the rows in archives of release 0.1."""

_ORDER = ("append_time", *_POSITION)

_KEY_ID = "_pseudonym-key"
"""The file in the archive with the id of its key. The manifest has the id too, but is deleted with the checkpoint."""

_TOPIC_IDS = "_topic-ids"
"""The file in the archive with the broker's ids of its topics. The checkpoint has the ids too, but can be deleted."""

_COMMAND = "LoyaltyCommand"
_CARDS = ("CustomerCardNo", "Counterparty")


def _archive(context: QueryContext) -> DataStreamWriter:
    settings = context.settings
    sink = ParquetSink(context.spark, settings.archive_dir, ARCHIVE.checkpoint(settings), _POSITION)
    remove_staging_folders(context.spark, settings.archive_dir)
    files = Files(context.spark, settings.archive_dir)
    if not files.exists(_KEY_ID) and not has_rows(context.spark, settings.archive_dir):
        _report_first_start(settings)
    for name, value in _origin(settings).items():
        # A checkpoint that continues has accepted that a topic was created again, and lists the lost records.
        if settings.accept_data_loss or not files.exists(name):
            files.write(name, value)
    versions = load_programmes(settings)
    require_versions(context.spark, ARCHIVE.checkpoint(settings), versions)
    invoices = invoice_events(context.read(POS_INVOICES), versions, context.ids)
    commands = command_events(context.read(LOYALTY_COMMANDS), context.ids)
    events = unique_events(invoices, commands, context)
    rows = _pseudonymize(events, pseudonyms(settings.pseudonym_key_file))
    return write_each_batch(rows, partial(_write, context, sink))


def _report_first_start(settings: Settings) -> None:
    """Warn if a new archive lacks records. It is a mistake if somebody has only changed the folder of the archive."""
    if incomplete := [settings.name_of(topic) for topic in ARCHIVE.sources if has_deleted(topic, settings)]:
        folder = local_folder(settings.archive_dir)
        log.warning(
            "a new archive begins without the older records, because Kafka has deleted them. If you have an archive in "
            "another folder, stop the pipeline, set LOYALTY_ARCHIVE_DIR to that folder, and delete the new archive. "
            "Otherwise do nothing: a rebuild from this archive lacks the deleted records",
            folder=str(folder.absolute() if folder else settings.archive_dir),
            topics=incomplete,
        )


def _archive_skipped(context: QueryContext, checkpoint: str, learned: LearnedIds) -> None:
    """Archive the events that the query has skipped, because it did not know the schema ids of their records.

    Each id has its own batch number, below 0. Micro-batches have numbers from 0. If this function runs again, it keeps
    the rows of its earlier run, because Kafka may have deleted their records. It replaces only folders that get new
    rows, because a kill between the removal of a folder and its replacement would lose the rows.
    """
    settings = context.settings
    for topic, ids in learned.new.items():
        records = read_again(context, checkpoint, topic)
        skipped = records.withColumn("batch", by_schema_id(ids, lambda each: -1 - each)).where("batch IS NOT NULL")
        if topic == POS_INVOICES:
            events = invoice_events(skipped, load_programmes(settings), context.ids)
        else:
            events = command_events(skipped, context.ids)
        events = events.withColumn("append_time", F.unix_millis("timestamp"))
        rows = _with_date(_pseudonymize(events, pseudonyms(settings.pseudonym_key_file), "batch"))
        rows = rows.drop("timestamp")
        archived = context.spark.read.schema(rows.schema).parquet(settings.archive_dir)
        earlier = archived.where(F.col("batch").isin([-1 - each for each in ids]))
        new = rows.join(earlier, [*_POSITION], "left_anti").persist()
        kept = earlier.join(new, ["date", "batch"], "left_semi")
        overwrite_folders(new.unionByName(kept), settings.archive_dir, *_ORDER)
        new.unpersist()


def _pseudonymize(events: DataFrame, pseudonyms: Pseudonyms, *further: str) -> DataFrame:
    """Replace cards by pseudonyms: pseudonym (null for a return without a card), append_time, position, event.

    Args:
        further: columns that stay.
    """
    pseudonym_of = _for_each(lambda card: card and pseudonyms.of(card), T.StringType())
    without_cards = _for_each(_without_cards(pseudonyms), T.BinaryType())
    # Omit the rows that only the index of invoices reads. They follow from erasures.
    return events.where(F.col("event").isNotNull()).select(
        pseudonym_of("CustomerCardNo").alias("pseudonym"),
        *_ORDER,
        without_cards("event").alias("event"),
        *further,
    )


def _with_date(rows: DataFrame) -> DataFrame:
    """Add ``timestamp``, the append time, and its ``date`` in UTC."""
    return rows.withColumn("timestamp", F.timestamp_millis("append_time")).withColumn("date", F.to_date("timestamp"))


def _for_each(function: Callable[[Any], Any], result: T.DataType) -> Callable[[str], Column]:
    def apply(values: pd.Series) -> pd.Series:
        return values.map(function)

    vectorized: Callable[[str], Column] = pandas_udf(apply, result)  # type: ignore[call-overload]  # narrow stubs
    return vectorized


def _without_cards(pseudonyms: Pseudonyms) -> Callable[[bytes], bytes]:
    """A function that replaces the cards in a framed event by pseudonyms, and removes free texts.

    A Purchase has no card and no free text. An erasure does not change the files. So they have no reason and no actor,
    which the ledger has.
    """

    def without_cards(event: bytes) -> bytes:
        ids = FolderSchemaIds()
        command_id = ids.id_of(_COMMAND)
        event = bytes(event)
        if not event.startswith(header(command_id)):
            return event
        record = record_decoder(_COMMAND, ids.writer_schema)(event)
        cards = {name: pseudonyms.of(record[name]) for name in _CARDS if record[name]}
        return record_encoder(_COMMAND, command_id)(record | cards | {"Reason": "", "Actor": ARCHIVED})

    return without_cards


def _write(context: QueryContext, sink: ParquetSink, batch: DataFrame, batch_id: int) -> None:
    """Write a micro-batch to the folders of its dates in UTC."""
    settings = context.settings
    # On a new checkpoint, the sink looks for older rows in jobs of their own. Each of them would drop the duplicates
    # again, so Spark would observe more unique rows than rows.
    batch.persist()
    try:
        sink.append(_with_date(batch), batch_id, *_ORDER)
    finally:
        batch.unpersist()
    if settings.accept_data_loss:
        # Retention may have deleted records of this micro-batch before Spark read them.
        retention.check(context.spark, ARCHIVE.checkpoint(settings), ARCHIVE.sources, settings)


def check_origin(spark: SparkSession, settings: Settings, *, is_new: bool = True) -> None:
    """Raise CheckpointMismatchError if the archive has another key, or events of other topics.

    A card would get a second pseudonym, or a rebuild would take the old events for events of the new topics.

    Args:
        is_new: whether to compare the topics. A checkpoint that continues compares them itself (``retention.check``).
    """
    folder, files = settings.archive_dir, Files(spark, settings.archive_dir)
    different = [name for name, value in _origin(settings).items() if files.exists(name) and files.read(name) != value]
    if _KEY_ID in different:
        raise CheckpointMismatchError(
            f"{folder} has pseudonyms of another key than {settings.pseudonym_key_file}: set "
            "LOYALTY_PSEUDONYM_KEY_FILE to the key of the archive, or set LOYALTY_ARCHIVE_DIR to another folder"
        )
    if different and is_new:
        raise CheckpointMismatchError(
            f"{folder} has events of other topics: a topic was created again, or LOYALTY_KAFKA_BOOTSTRAP_SERVERS or "
            "LOYALTY_TOPIC_PREFIX has changed. The new topics need another LOYALTY_ARCHIVE_DIR"
        )


def _origin(settings: Settings) -> dict[str, str]:
    """By name of a file in the archive, the key and the topics of all its rows."""
    return {_KEY_ID: _key_id(settings), _TOPIC_IDS: json.dumps(topic_ids(ARCHIVE.sources, settings), sort_keys=True)}


def _key_id(settings: Settings) -> str:
    return pseudonyms(settings.pseudonym_key_file).key_id


ARCHIVE = Query(
    "archive",
    [POS_INVOICES, LOYALTY_COMMANDS],
    _archive,
    lambda settings: f"{settings.archive_dir}/_checkpoint",
    reads_programme=True,
    longest_wait=lambda settings: settings.archive_interval,
    if_it_cannot_run=(
        "The other queries run without the archive. A running pipeline starts it again after an hour. "
        "Remove the cause within seven days. If a scheduled `loyalty archive` runs, remove "
        "it. If Kafka has deleted records, stop the pipeline, run `LOYALTY_ACCEPT_DATA_LOSS=true loyalty archive`, and "
        "start the pipeline: only the archive then lacks these records"
    ),
    # Under another key the same card would get another pseudonym.
    fixed=lambda settings: {"pseudonym_key": _key_id(settings)},
    check=lambda spark, _ids, _checkpoint, settings, is_new: check_origin(spark, settings, is_new=is_new),
    learn=_archive_skipped,
)
