"""Spark columns that write Avro in the Confluent framing, and headers of records."""

import json

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import to_avro

import schemas
from pipelines.columns.types import struct
from schemas.topics import Topic
from services.messaging import headers as h
from services.messaging.avro import header
from services.messaging.schema_ids import SchemaIds

HEADER_TYPE = struct(key="string", value="binary")
HEADERS_TYPE = T.ArrayType(HEADER_TYPE)


def encode(record: Column, topic: Topic, ids: SchemaIds) -> Column:
    """Write a struct as a framed value of the topic, in its newest schema."""
    schema = json.dumps(schemas.current(topic.value))
    return F.concat(F.lit(header(ids.writer_id(topic))), to_avro(record, schema))


def cloud_event(record_id: Column, record_name: str | Column) -> Column:
    """The CloudEvents headers of a record. A replay repeats ``ce_id``, so readers recognise a duplicate by it."""
    if isinstance(record_name, str):
        record_name = F.lit(record_name)
    texts = {name: F.lit(text) for name, text in h.cloud_event("", "").items()}
    return text_headers(texts | {"ce_id": record_id, "ce_type": F.concat(texts["ce_type"], record_name)})


def text_headers(texts: dict[str, Column]) -> Column:
    """Record headers with UTF-8 values, in the type of Spark's Kafka sink."""
    return F.array(
        *(F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in texts.items())
    ).cast(HEADERS_TYPE)


def no_headers() -> Column:
    return F.array().cast(HEADERS_TYPE)
