"""Decodes and checks the values of topics. Each record stays exactly one row.

Python decides about every value (``services.verdicts``), and Spark reads only what Python has accepted. The same rules
as columns had thousands of expressions. Spark planned them in every micro-batch and generated their code in every task.
That took longer than the work itself (docs/explanation/decisions/0053-python-decides-about-values.md).
"""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

import schemas
from pipelines.columns.types import struct
from pipelines.columns.value_functions import call_for_each
from schemas.topics import POS_INVOICES, Topic
from services.messaging.avro import header, not_of_its_schema
from services.messaging.schema_ids import SchemaIds
from services.verdicts import judge_of_plain, judge_with_body

_VERDICT = struct(reason="string", invoice_number="string", body="binary")
"""The body is Avro in the newest schema."""


def judge(records: DataFrame, topic: Topic, ids: SchemaIds) -> DataFrame:
    """Add the columns ``reason`` (null if valid), ``invoice_number`` and ``body`` (null if not valid).

    ``services.verdicts.Verdict`` describes them. Any known schema can have written a value. Takes records from
    ``sources.kafka``.
    """
    known = ids.known(topic)
    verdict = call_for_each(F.col("value"), F.col("key"), topic.value, known, judge_with_body, _VERDICT, topic)
    return records.withColumn("verdict", verdict).select("*", "verdict.*").drop("verdict")


def read_bodies(judged: DataFrame, topic: Topic, ids: SchemaIds, into: str) -> DataFrame:
    """Replace ``body`` by ``into``: a struct of the topic's newest schema, null if not valid.

    Python refuses what Spark is known to refuse. If Spark refuses another record, it becomes a dead letter too. This
    dead letter has the framed body as its value, and no headers of the original record.
    """
    name = topic.value
    decoded = _with_record(judged, "body", name, into)
    lost = F.col("reason").isNull() & F.col(into).isNull()
    framed = F.concat(F.lit(header(ids.writer_id(topic))), "body")
    return decoded.withColumns(
        {
            "value": F.when(lost, framed).otherwise(F.col("value")),
            "reason": F.when(lost, F.lit(not_of_its_schema(name))).otherwise(F.col("reason")),
        }
    ).drop("body")


def check_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``reason``, ``invoice_number`` and ``invoice`` (struct PosInvoice) to the records of pos-invoices."""
    return read_bodies(judge(records, POS_INVOICES, ids), POS_INVOICES, ids, into="invoice")


def decode_avro(rows: DataFrame, value: str, name: str, known: Mapping[int, str], into: str) -> DataFrame:
    """Add the column ``into``: the Avro record of this name in the column ``value``, null if there is none."""
    verdict = call_for_each(F.col(value), F.lit(None).cast("binary"), name, known, judge_of_plain, _VERDICT, name)
    return _with_record(rows.withColumn("verdict", verdict), "verdict.body", name, into).drop("verdict")


def _with_record(rows: DataFrame, body: str, name: str, into: str) -> DataFrame:
    """Add ``into``: the body as a struct, null if there is none."""
    record = F.col(into)
    # Spark returns a struct of nulls for a body that it cannot read. The first field of a valid record is never null.
    is_read = record.getField(schemas.field_names(name)[0]).isNotNull()
    # Each column is a step of its own. Otherwise Spark computes a column once for every use of it.
    read = from_avro(body, json.dumps(schemas.current(name)), {"mode": "PERMISSIVE"})
    return rows.withColumn(into, read).withColumn(into, F.when(is_read, record))
