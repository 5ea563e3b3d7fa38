"""Repeats, dropped the same way in every query: the first of each identity passes."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from services.settings import Settings


def place() -> Column:
    """Where a record stands: topic, partition and offset, which no other record shares."""
    return F.concat_ws("/", "topic", "partition", "offset")


def invoice_identity() -> Column:
    """What a checked invoice is known by: its number; what is not valid is no invoice yet, and has only its place."""
    return F.when(F.col("reason").isNull(), F.concat(F.lit("#"), "invoice.InvoiceNumber")).otherwise(place())


def command_identity() -> Column:
    """The same of a checked command; the sign before its id keeps it apart from invoices."""
    return F.when(F.col("reason").isNull(), F.concat(F.lit("!"), "command.CommandID")).otherwise(place())


def first_of_each(rows: DataFrame, settings: Settings) -> DataFrame:
    """Of the rows with the same ``identity`` the first, without that column; every row here is shuffled by it.

    Time is the broker's append time (``timestamp``), never a till's clock: rows that are late by it would be dropped.
    """
    horizon = f"{int(settings.repeat_horizon.total_seconds())} seconds"
    return rows.withWatermark("timestamp", horizon).dropDuplicatesWithinWatermark(["identity"]).drop("identity")
