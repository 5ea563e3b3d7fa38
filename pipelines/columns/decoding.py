"""Decodes and checks the values of topics. Each record stays exactly one row.

Python decides about every value (``services.verdicts``), and Spark reads only what Python has accepted. The same rules
as columns had thousands of expressions. Spark planned them anew in every micro-batch and generated their code anew in
every task, which took longer than the work itself (docs/explanation/decisions/0053-python-decides-about-values.md).
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.functions import arrow_udf

import schemas
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.domain.validation import in_milliseconds
from services.messaging.avro import header, not_of_its_schema, record_encoder
from services.messaging.schema_ids import SchemaIds
from services.verdicts.commands import judge_of_commands
from services.verdicts.invoices import judge_of_invoices
from services.verdicts.verdict import Judge, judge_of_avro

if TYPE_CHECKING:
    Values: TypeAlias = pa.Array[Any]
else:  # Spark reads this hint, and knows no other one for a vectorised function.
    Values = pa.Array

MakeJudge = Callable[[Mapping[int, str]], Judge]

_JUDGES: Mapping[str, MakeJudge] = {
    str(POS_INVOICES.value): judge_of_invoices,
    str(LOYALTY_COMMANDS.value): judge_of_commands,
}
_VERDICT = "struct<body: binary, reason: string>"
_HEADER_LENGTH = len(header(0))


def decode(records: DataFrame, topic: Topic, ids: SchemaIds, into: str) -> DataFrame:
    """Add the columns ``into`` (struct of the topic's newest schema, null if not valid) and ``reason`` (null if valid).

    Any known schema can have written a value. Takes records as ``sources.kafka`` gives them.
    """
    name = str(topic.value)
    found = _verdict(F.col("value"), F.col("key"), name, ids.known(topic))
    record = F.col(into)
    # Spark's Avro has limits that Python's does not have, such as the length of a text. Spark then gives a struct of
    # nulls. The first field of a valid record is never null.
    is_lost = F.col("verdict.reason").isNull() & record.getField(schemas.field_names(name)[0]).isNull()
    return (
        records.withColumn("verdict", found)
        .withColumn(into, _as_struct(F.col("verdict.body"), name))
        .withColumn("reason", F.when(is_lost, F.lit(not_of_its_schema(name))).otherwise(F.col("verdict.reason")))
        .withColumn(into, F.when(F.col("reason").isNull(), record))
        .drop("verdict")
    )


def decode_avro(rows: DataFrame, value: str, name: str, known: Mapping[int, str], into: str) -> DataFrame:
    """Add the column ``into``: the Avro record of this name in the column ``value``, null if it is none."""
    record = F.col(into)
    return (
        rows.withColumn("verdict", _verdict(F.col(value), None, name, known))
        .withColumn(into, _as_struct(F.col("verdict.body"), name))
        .withColumn(into, F.when(record.getField(schemas.field_names(name)[0]).isNotNull(), record))
        .drop("verdict")
    )


def _verdict(value: Column, key: Column | None, name: str, known: Mapping[int, str]) -> Column:
    """A struct of the Avro body in the newest schema, null if not valid, and the reason.

    Without a key, a valid value is any Avro record of this name.
    """
    judge = _JUDGES.get(name) if key is not None else None
    schemas_by_id = tuple(known.items())

    def verdicts(values: Values, keys: Values) -> Values:
        return _verdicts(judge, name, schemas_by_id, values, keys)

    # Spark may otherwise call a function several times for each row, once for every use of its result.
    function: Any = arrow_udf(verdicts, _VERDICT)  # type: ignore[call-overload]  # narrow stubs
    column: Column = function.asNondeterministic()(value, F.lit(None).cast("binary") if key is None else key)
    return column


def _as_struct(body: Column, name: str) -> Column:
    """Avro bodies in the newest schema of this name."""
    return from_avro(body, json.dumps(schemas.current(name)), {"mode": "PERMISSIVE"})


def _verdicts(
    make_judge: MakeJudge | None, name: str, known: tuple[tuple[int, str], ...], values: Values, keys: Values
) -> Values:
    decide = _decide(make_judge, name, known)
    found = [decide(*each) for each in zip(values.to_pylist(), keys.to_pylist(), strict=True)]
    bodies, reasons = zip(*found, strict=True) if found else ((), ())
    columns: list[Values] = [pa.array(bodies, pa.binary()), pa.array(reasons, pa.string())]
    return pa.StructArray.from_arrays(columns, ["body", "reason"])


@cache
def _decide(
    make_judge: MakeJudge | None, name: str, known: tuple[tuple[int, str], ...]
) -> Callable[[bytes | None, bytes | None], tuple[bytes | None, str | None]]:
    """A function that gives the body and the reason for a value and a key. A worker makes it once."""
    writers = dict(known)
    judge = make_judge(writers) if make_judge else judge_of_avro(name, writers)
    newest = schemas.current(name)
    unchanged = {schema_id for schema_id, text in writers.items() if json.loads(text) == newest}
    encode = record_encoder(name, 0)
    is_invoice = name == POS_INVOICES.value

    def decide(value: bytes | None, key: bytes | None) -> tuple[bytes | None, str | None]:
        reason, record, schema_id = judge(value, key)
        if reason is not None or value is None:
            return None, reason
        readable = in_milliseconds(record) if is_invoice else record
        if schema_id in unchanged and readable is record:
            return value[_HEADER_LENGTH:], None
        return encode(readable)[_HEADER_LENGTH:], None

    return decide
