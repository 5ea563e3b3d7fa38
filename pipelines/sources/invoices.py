"""pos-invoices: decodes and checks the records. Each record of the topic stays exactly one row."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.columns import avro
from pipelines.columns.validation import first_violation
from schemas.topics import POS_INVOICES
from services.domain.validation import SECONDS
from services.messaging.schema_ids import SchemaIds


def check_invoices(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``invoice`` (struct PosInvoice, null if it cannot be decoded) and ``reason`` (null if the invoice is valid).

    Takes records as ``sources.kafka`` gives them.
    """
    value, is_json = F.col("value"), F.col("is_json")
    from_avro, unknown = avro.decode(value, POS_INVOICES, ids)
    from_json = F.when(is_json, avro.decode_json(value, POS_INVOICES))
    is_avro_invoice = avro.is_readable(F.col("avro"), POS_INVOICES)
    undecodable = (
        F.when(value.isNull(), F.lit("no value"))
        .when(is_json & ~_is_json_invoice(F.col("json")), F.lit("not a JSON PosInvoice"))
        .when(~is_json & F.col("unknown").isNotNull(), F.col("unknown"))
        .when(~is_json & ~is_avro_invoice, F.lit("not an Avro PosInvoice of its schema id"))
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


def _in_milliseconds(invoice: Column) -> Column:
    """Convert a CreatedTime in seconds, as some tills send it. As milliseconds it would be a day of early 1970."""
    time = invoice.getField("CreatedTime")
    return invoice.withField("CreatedTime", F.when(time.between(*SECONDS), time * 1000).otherwise(time))


def _is_json_invoice(parsed: Column) -> Column:
    # JSON allows null among the line items, but the schema does not.
    has_null_item = F.exists(parsed.getField("InvoiceLineItems"), lambda item: item.isNull())
    is_readable = parsed.getField(avro.MARKER).isNull() & ~F.coalesce(has_null_item, F.lit(False))
    return is_readable & avro.is_one_json_object(F.col("value"))
