"""Traces in Spark: the trace of a record as a column, and a sample of the traces of a micro-batch for the driver.

A query's state has no traces. So a checkpoint continues when tracing is turned on or off.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.columns import avro
from schemas.topics import Topic
from services import tracing

SAMPLES = "traces "
"""The start of the names of Spark's observations of the traces of a topic."""

SAMPLE = "sample"
"""The list of traces in such an observation. Null without a trace."""

_SAMPLED = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]$"


def traceparent() -> Column:
    """The header traceparent of a record, a string. Null if its trace is not sampled, and while tracing is off."""
    if not tracing.is_on():
        return F.lit(None).cast("string")
    named = F.filter("headers", lambda header: header["key"] == tracing.TRACEPARENT)
    text = F.get(named, F.lit(0))["value"].cast("string")
    return F.when(text.rlike(_SAMPLED), text)


def columns() -> list[Column]:
    """The column ``traceparent``; nothing while tracing is off."""
    return [traceparent().alias(tracing.TRACEPARENT)] if tracing.is_on() else []


def sample(records: DataFrame, topic: Topic) -> DataFrame:
    """Add some traces of each micro-batch to Spark's progress report: those with the largest ids.

    Takes records from ``sources.kafka``.
    """
    if not tracing.is_on():
        return records
    found = traceparent()
    return records.observe(f"{SAMPLES}{topic.name}", F.max_by(found, found, tracing.MOST_SPANS).alias(SAMPLE))


def with_trace(headers: Column) -> Column:
    """The headers of an output record, with the trace in the column ``traceparent`` if there is one."""
    if not tracing.is_on():
        return headers
    found = F.col(tracing.TRACEPARENT)
    added = avro.text_headers({tracing.TRACEPARENT: found})
    return F.concat(headers, F.when(found.isNull(), avro.no_headers()).otherwise(added))
