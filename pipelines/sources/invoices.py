"""pos-invoices: decodes and checks the records. Each record of the topic stays exactly one row."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.columns import avro, json_mistakes
from pipelines.columns.json_types import first_misfit, kind_in_words
from pipelines.columns.validation import first_violation
from schemas.topics import POS_INVOICES
from services.domain.validation import SECONDS
from services.messaging.schema_ids import SchemaIds

_NO_INVOICE = "neither a JSON object nor Avro in the Confluent framing (a byte 0 and a schema id)"


def check_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``invoice`` (struct PosInvoice, null if it cannot be decoded) and ``reason`` (null if the invoice is valid).

    Takes records as ``sources.kafka`` gives them.
    """
    value, is_json = F.col("value"), F.col("is_json")
    from_avro, unknown = avro.decode(value, POS_INVOICES, ids, not_framed=_not_an_object(value))
    from_json = F.when(is_json, avro.decode_json(value, POS_INVOICES))
    undecodable = (
        F.when(value.isNull(), F.lit("no value"))
        .when(is_json, _json_problem(F.col("json")))
        .when(F.col("unknown").isNotNull(), F.col("unknown"))
        .otherwise(avro.unreadable(F.col("avro"), POS_INVOICES))
    )
    parsed = F.when(is_json, F.col("json")).otherwise(F.col("avro"))
    return (
        records.withColumn("is_json", F.coalesce(avro.is_json(value), F.lit(False)))
        # Parsing is a step of its own. In one step with its uses Spark would parse a value once for every use.
        # Avro and JSON are separate steps too. Spark compiles no code for JSON. In one step with it, Spark would not
        # compile Avro either, and would load Hadoop's whole configuration for every known schema in every task.
        .withColumns({"avro": from_avro, "unknown": unknown})
        .withColumn("json", from_json)
        .withColumn("undecodable", undecodable)
        .withColumn("invoice", F.when(F.col("undecodable").isNull(), _in_milliseconds(parsed.dropFields(avro.MARKER))))
        .withColumn("reason", F.coalesce("undecodable", first_violation(F.col("invoice"))))
        .drop("is_json", "avro", "json", "unknown", "undecodable")
    )


def _json_problem(parsed: Column) -> Column:
    """Why a JSON object is no PosInvoice; null if it is one."""
    value = F.col("value")
    text = value.cast("string")
    variant = F.try_parse_json(text)
    does_not_fit = F.when(parsed.getField(avro.MARKER).isNotNull(), F.lit("a value does not fit its field"))
    return (
        F.when(~F.is_valid_utf8(text), json_mistakes.not_utf8(value))
        .when(text.rlike(avro.LONE_SURROGATE), F.lit("half of a surrogate pair (\\uD800 to \\uDFFF) is no character"))
        .when(~avro.is_one_json_object(value) | variant.isNull(), json_mistakes.mistake(text))
        .otherwise(F.coalesce(first_misfit(variant, avro.record_type(POS_INVOICES)), does_not_fit))
    )


def _not_an_object(value: Column) -> Column:
    """Why bytes are neither a JSON object nor framed Avro."""
    kind = kind_in_words(F.schema_of_variant(F.try_parse_json(value.cast("string"))))
    return (
        F.when(F.length(value) == 0, F.lit("an empty value"))
        .when(
            F.substring(value, 1, 3) == F.lit(b"\xef\xbb\xbf"),
            F.lit("a byte order mark is before the JSON: send UTF-8 without it"),
        )
        .when(F.substring(value, 1, 2).isin(b"\xff\xfe", b"\xfe\xff"), F.lit("JSON in UTF-16: send it in UTF-8"))
        .otherwise(F.coalesce(F.concat(kind, F.lit(" in JSON, and must be one JSON object")), F.lit(_NO_INVOICE)))
    )


def _in_milliseconds(invoice: Column) -> Column:
    """Convert a CreatedTime in seconds, as some tills send it. As milliseconds it would be a day of early 1970."""
    time = invoice.getField("CreatedTime")
    return invoice.withField("CreatedTime", F.when(time.between(*SECONDS), time * 1000).otherwise(time))
