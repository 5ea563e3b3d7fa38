"""The archive query: every event of the loyalty query, once, to Parquet and under pseudonyms.

With it accounts can be recomputed once the topics have forgotten. A pseudonym is always the same for the same card and
key (services.pseudonyms), so whoever asks for a card and has the key finds it.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from pipelines.queries.export import overwrite
from services.messaging.avro import header, record_decoder, record_encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.pseudonyms import Pseudonyms

_COMMAND = "LoyaltyCommand"
_CARDS = ("CustomerCardNo", "Counterparty")


def archived(events: DataFrame, pseudonyms: Pseudonyms) -> DataFrame:
    """Rows of ``loyalty.events`` in; pseudonym, append_time, topic, partition, offset, event (without card) out."""
    pseudonym_of = _in_bulk(pseudonyms.of, T.StringType())
    without_cards = _in_bulk(_without_cards(pseudonyms), T.BinaryType())
    return events.select(
        pseudonym_of("CustomerCardNo").alias("pseudonym"),
        *("append_time", "topic", "partition", "offset"),
        without_cards("event").alias("event"),
    )


def _in_bulk(function: Callable[[Any], Any], result: T.DataType) -> Callable[[str], Column]:
    def of_all(values: pd.Series) -> pd.Series:
        return values.map(function)

    in_bulk: Callable[[str], Column] = pandas_udf(of_all, result)  # type: ignore[call-overload]  # narrow stubs
    return in_bulk


def _without_cards(pseudonyms: Pseudonyms) -> Callable[[bytes], bytes]:
    """A function that puts pseudonyms in the place of the cards in a framed event; a Purchase has none."""

    def without_cards(event: bytes) -> bytes:
        ids = FolderSchemaIds()
        command_id = ids.id_of(_COMMAND)
        event = bytes(event)
        if not event.startswith(header(command_id)):
            return event
        record = record_decoder(_COMMAND, ids.writer_schema)(event)
        cards = {name: pseudonyms.of(record[name]) for name in _CARDS if record[name]}
        return record_encoder(_COMMAND, command_id)(record | cards)

    return without_cards


def write_batch(directory: str) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch: rows to ``date=…/batch=…/`` under the directory, as the export does; UTC dates."""

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.withColumns({"date": _date(), "batch": F.lit(batch_id)})
        overwrite(rows, directory, "append_time", "topic", "partition", "offset")

    return write


def _date() -> Column:
    return F.to_date(F.timestamp_millis("append_time"))
