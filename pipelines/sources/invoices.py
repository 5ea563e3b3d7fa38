"""Decodes and checks the records of pos-invoices. Each record of the topic stays exactly one row."""

from pyspark.sql import DataFrame

from pipelines.columns.decoding import judge, read_bodies
from schemas.topics import POS_INVOICES
from services.messaging.schema_ids import SchemaIds


def check_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``reason``, ``invoice_number`` and ``invoice`` (struct PosInvoice); see ``columns.decoding``."""
    return read_bodies(judge(records, POS_INVOICES, ids), POS_INVOICES, ids, into="invoice")
