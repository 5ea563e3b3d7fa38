"""The fan-out query: one read of pos-invoices, one pass, every branch through one Kafka sink."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines import wire
from pipelines.branches import BRANCHES, Branch
from pipelines.repeats import first_of_each, invoice_identity
from schemas.topics import Topic
from services.messaging.schema_ids import SchemaIds
from services.settings import Settings


def fan_out(invoices: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Checked invoices in, records for the Kafka sink out: topic, key, value, headers."""
    once = first_of_each(invoices.withColumn("identity", invoice_identity()), settings)
    return through(BRANCHES, once, ids, settings)


def through(branches: Sequence[Branch], invoices: DataFrame, ids: SchemaIds, settings: Settings) -> DataFrame:
    """Every record that the branches make of the invoices, as the Kafka sink takes them."""
    for branch in branches:
        outgoing = _outgoing(branch.topic, ids, settings)
        invoices = branch.records(invoices).withColumn(branch.topic.name, outgoing).drop("records")
    columns = (F.col(f"`{branch.topic.name}`") for branch in branches)
    records = F.flatten(F.array_compact(F.array(*columns)))
    return invoices.select(F.explode(records).alias("record")).select("record.*")


def _outgoing(topic: Topic, ids: SchemaIds, settings: Settings) -> Column:
    def outgoing(record: Column) -> Column:
        value, headers = record.getField("value"), record.getField("headers")
        if topic.value:
            value = wire.encode(value, topic, ids)
            headers = F.concat(wire.cloud_event(record.getField("id"), topic.value), headers)
        return F.struct(
            F.lit(settings.name_of(topic)).alias("topic"),
            record.getField("key").alias("key"),
            value.alias("value"),
            headers.alias("headers"),
        )

    return F.transform("records", outgoing)
