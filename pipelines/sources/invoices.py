"""pos-invoices: decodes and checks the records. Each record of the topic stays exactly one row."""

from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.columns import avro, json_mistakes
from pipelines.columns.json_types import first_misfit, kind_in_words
from pipelines.columns.validation import first_violation
from schemas.topics import POS_INVOICES
from services.domain import json_rules
from services.domain.validation import SECONDS
from services.messaging.schema_ids import SchemaIds


def check_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``invoice`` (struct PosInvoice, null if it cannot be decoded) and ``reason`` (null if the invoice is valid).

    Takes records as ``sources.kafka`` gives them.
    """
    value, is_json = F.col("value"), F.col("is_json")
    from_avro, unknown = avro.decode(value, POS_INVOICES, ids, not_framed=_not_an_object(value))
    from_json = F.when(is_json, avro.decode_json(value, POS_INVOICES))
    parsed = F.when(is_json, F.col("json")).otherwise(F.col("avro"))
    return (
        records.withColumn("is_json", F.coalesce(avro.is_json(value), F.lit(False)))
        # Parsing is a step of its own. In one step with its uses Spark would parse a value once for every use.
        # Avro and JSON are separate steps too. Spark compiles no code for JSON. In one step with it, Spark would not
        # compile Avro either, and would load Hadoop's whole configuration for every known schema in every task.
        .withColumns({"avro": from_avro, "unknown": unknown})
        .withColumn("json", from_json)
        .withColumn("undecodable", _undecodable())
        .withColumn("invoice", F.when(F.col("undecodable").isNull(), _in_milliseconds(parsed.dropFields(avro.MARKER))))
        .withColumn("reason", F.coalesce("undecodable", _violation()))
        .drop("is_json", "avro", "json", "unknown", "undecodable")
    )


# To make these two columns, Python calls the JVM 15,000 times. So a process makes them once for all its queries.
@cache
def _undecodable() -> Column:
    """Why a value cannot be decoded, by the columns of ``check_invoices``; null if it can."""
    return (
        F.when(F.col("value").isNull(), F.lit(json_rules.NO_VALUE))
        .when(F.col("is_json"), _json_problem(F.col("json")))
        .when(F.col("unknown").isNotNull(), F.col("unknown"))
        .otherwise(avro.unreadable(F.col("avro"), POS_INVOICES))
    )


@cache
def _violation() -> Column:
    return first_violation(F.col("invoice"))


def _json_problem(parsed: Column) -> Column:
    """Why a JSON object is no PosInvoice; null if it is one."""
    value = F.col("value")
    text = value.cast("string")
    variant = F.try_parse_json(text)
    does_not_fit = F.when(parsed.getField(avro.MARKER).isNotNull(), F.lit(json_rules.DOES_NOT_FIT))
    return (
        F.when(~F.is_valid_utf8(text), json_mistakes.not_utf8(value))
        .when(text.rlike(json_rules.LONE_SURROGATE), F.lit(json_rules.HALF_OF_A_PAIR))
        .when(~avro.is_one_json_object(value) | variant.isNull(), json_mistakes.mistake(text))
        .otherwise(F.coalesce(first_misfit(variant, avro.record_type(POS_INVOICES)), does_not_fit))
    )


def _not_an_object(value: Column) -> Column:
    """Why bytes are neither a JSON object nor framed Avro."""
    kind = kind_in_words(F.schema_of_variant(F.try_parse_json(value.cast("string"))))
    return (
        F.when(F.length(value) == 0, F.lit(json_rules.EMPTY))
        .when(F.substring(value, 1, 3) == F.lit(json_rules.BYTE_ORDER_MARK), F.lit(json_rules.HAS_BYTE_ORDER_MARK))
        .when(F.substring(value, 1, 2).isin(*json_rules.UTF_16_MARKS), F.lit(json_rules.IS_UTF_16))
        .otherwise(
            F.coalesce(F.concat(kind, F.lit(" in JSON, and must be one JSON object")), F.lit(json_rules.NO_INVOICE))
        )
    )


def _in_milliseconds(invoice: Column) -> Column:
    """Convert a CreatedTime in seconds, as some tills send it. As milliseconds it would be a day of early 1970."""
    time = invoice.getField("CreatedTime")
    return invoice.withField("CreatedTime", F.when(time.between(*SECONDS), time * 1000).otherwise(time))
