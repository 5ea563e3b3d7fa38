"""The fan-out query: one read of pos-invoices, one pass, every branch through one Kafka sink."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.columns import avro
from pipelines.columns.repeats import first_of_each, invoice_identity
from pipelines.queries.branches import BRANCHES, Branch
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings


def fan_out(invoices: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Checked invoices in, records for the Kafka sink out: topic, key, value, headers."""
    once = first_of_each(invoices.withColumn("identity", invoice_identity()), settings)
    return through(BRANCHES, once, ids, settings)


def through(branches: Sequence[Branch], invoices: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Every record that the branches make of the invoices, as the Kafka sink takes them."""
    counts = {f"count_{number}": F.coalesce(branch.count(), F.lit(0)) for number, branch in enumerate(branches)}
    # First a row for each record, then what it is: in arrays of records Spark would compile none of it.
    each = F.concat(*(F.array_repeat(F.lit(number), F.col(count)) for number, count in enumerate(counts)))
    rows = invoices.withColumns(counts).select("*", F.posexplode(each).alias("position", "branch"))
    before = F.lit(0)
    records = []
    for branch, count in zip(branches, counts, strict=True):
        records.append(_outgoing(branch, F.col("position") - before, ids, settings))
        before = before + F.col(count)
    columns = (_of_branch([record[name] for record in records]).alias(name) for name in ("topic", "value", "headers"))
    return rows.select("key", *columns).select("topic", "key", "value", "headers")


def _outgoing(branch: Branch, number: Column, ids: SchemaIds, settings: Settings) -> dict[str, Column]:
    topic, record = branch.topic, branch.record(number)
    value, headers = record.value, record.headers
    if topic.value:
        value = avro.encode(value, topic, ids)
        of_event = avro.cloud_event(record.id, topic.value)
        headers = of_event if headers is None else F.concat(of_event, headers)
    return {
        "topic": F.lit(settings.name_of(topic)),
        "value": value,
        "headers": avro.no_headers() if headers is None else headers,
    }


def _of_branch(columns: Sequence[Column]) -> Column:
    """Of one column a branch that of the row's branch."""
    *others, last = columns
    chosen = last
    for number, column in reversed([*enumerate(others)]):
        chosen = F.when(F.col("branch") == number, column).otherwise(chosen)
    return chosen
