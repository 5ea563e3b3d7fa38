"""Decodes and checks the values of topics. Each record stays exactly one row.

Python decides about every value (``services.verdicts``), and Spark reads only what Python has accepted. The same rules
as columns had thousands of expressions. Spark planned them in every micro-batch and generated their code in every task.
That took longer than the work itself (docs/explanation/decisions/0053-python-decides-about-values.md).
"""

import json
from collections.abc import Mapping
from functools import cache, partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

import schemas
from pipelines.columns.value_functions import call_for_each
from schemas.topics import Topic
from services.messaging.avro import not_of_its_schema
from services.messaging.schema_ids import SchemaIds
from services.verdicts import Judge, judge_of_plain, judge_with_body

_VERDICT = T.StructType([T.StructField("body", T.BinaryType()), T.StructField("reason", T.StringType())])


def decode(records: DataFrame, topic: Topic, ids: SchemaIds, into: str) -> DataFrame:
    """Add the columns ``into`` (struct of the topic's newest schema, null if not valid) and ``reason`` (null if valid).

    Any known schema can have written a value. Takes records as ``sources.kafka`` gives them.
    """
    name = str(topic.value)
    verdict = _verdict(F.col("value"), F.col("key"), topic, ids.known(topic))
    decoded = _with_record(records, verdict, name, into)
    # Python refuses what Spark is known to refuse. If Spark refuses more, the record becomes a dead letter too.
    lost = F.when(F.col(into).isNull(), F.lit(not_of_its_schema(name)))
    return decoded.withColumn("reason", F.coalesce("verdict.reason", lost)).drop("verdict")


def decode_avro(rows: DataFrame, value: str, name: str, known: Mapping[int, str], into: str) -> DataFrame:
    """Add the column ``into``: the Avro record of this name in the column ``value``, null if it is none."""
    verdict = _verdict(F.col(value), F.lit(None).cast("binary"), name, known)
    return _with_record(rows, verdict, name, into).drop("verdict")


def _with_record(rows: DataFrame, verdict: Column, name: str, into: str) -> DataFrame:
    """Add ``verdict``, and ``into``: its body as a struct, null if it has no body."""
    record = F.col(into)
    # Spark returns a struct of nulls for a body that it cannot read. The first field of a valid record is never null.
    is_read = record.getField(schemas.field_names(name)[0]).isNotNull()
    # Each column is a step of its own. Otherwise Spark computes a column once for every use of it.
    return (
        rows.withColumn("verdict", verdict)
        .withColumn(into, _as_struct(F.col("verdict.body"), name))
        .withColumn(into, F.when(is_read, record))
    )


def _verdict(value: Column, key: Column, of: Topic | str, known: Mapping[int, str]) -> Column:
    """A struct of the Avro body in the newest schema, null if not valid, and the reason.

    Args:
        of: a topic, or the name of plain Avro records.
    """
    return call_for_each(value, key, partial(_judge, of, tuple(known.items())), _VERDICT)


@cache
def _judge(of: Topic | str, known: tuple[tuple[int, str], ...]) -> Judge:
    """A worker makes each judge once."""
    return judge_of_plain(of, dict(known)) if isinstance(of, str) else judge_with_body(of, dict(known))


def _as_struct(body: Column, name: str) -> Column:
    """Avro bodies in the newest schema of this name."""
    return from_avro(body, json.dumps(schemas.current(name)), {"mode": "PERMISSIVE"})
