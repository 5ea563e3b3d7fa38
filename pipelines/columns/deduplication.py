"""Deduplication, the same in every query: the first row of each identity passes."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from services.settings import Settings


def record_position() -> Column:
    """Topic, partition and offset of a record as one text. No other record has the same."""
    return F.concat_ws("/", "topic", "partition", "offset")


def invoice_identity() -> Column:
    """The invoice number of a checked invoice. An invalid record has only its position."""
    return _identity("#", "invoice.InvoiceNumber")


def command_identity() -> Column:
    """The command id of a checked command. The sign in front keeps it apart from an invoice number."""
    return _identity("!", "command.CommandID")


def _identity(sign: str, field: str) -> Column:
    return F.when(F.col("reason").isNull(), F.concat(F.lit(sign), field)).otherwise(record_position())


def deduplicate(rows: DataFrame, settings: Settings) -> DataFrame:
    """Keep the first row of each value in the column ``identity``, and drop that column. Shuffles by it.

    The time is the broker's append time (``timestamp``) and never a till's clock, because Spark drops late rows.
    """
    horizon = f"{int(settings.repeat_horizon.total_seconds())} seconds"
    return rows.withWatermark("timestamp", horizon).dropDuplicatesWithinWatermark(["identity"]).drop("identity")
