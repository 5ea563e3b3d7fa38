"""pos-invoices: decodes and checks the records. Each record of the topic stays exactly one row."""

from pyspark.sql import DataFrame

from pipelines.columns.decoding import judge, read_bodies
from schemas.topics import POS_INVOICES
from services.messaging.schema_ids import SchemaIds


def judge_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``reason``, ``invoice_number`` and ``body``; see ``columns.decoding``."""
    return judge(records, POS_INVOICES, ids)


def read_invoices(judged: DataFrame, ids: SchemaIds) -> DataFrame:
    """Replace ``body`` by ``invoice`` (struct PosInvoice); see ``columns.decoding``."""
    return read_bodies(judged, POS_INVOICES, ids, into="invoice")


def check_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``reason``, ``invoice_number`` and ``invoice``."""
    return read_invoices(judge_invoices(records, ids), ids)
