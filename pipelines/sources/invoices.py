"""pos-invoices: decodes and checks the records. Each record of the topic stays exactly one row."""

from pyspark.sql import DataFrame

from pipelines.columns.decoding import decode
from schemas.topics import POS_INVOICES
from services.messaging.schema_ids import SchemaIds


def check_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``invoice`` (struct PosInvoice) and ``reason``; see ``columns.decoding``."""
    return decode(records, POS_INVOICES, ids, into="invoice")
