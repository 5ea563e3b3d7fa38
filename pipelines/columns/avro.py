"""The Confluent framing, Avro and JSON as Spark columns. ``services.messaging.avro`` does the same for one value."""

import json
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro, to_avro

import schemas
from schemas.topics import Topic
from services.messaging import headers as h
from services.messaging.avro import MAGIC_BYTE, header
from services.messaging.schema_ids import SchemaIds

_HEADER_LENGTH = len(header(0))

HEADER_TYPE = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
HEADERS_TYPE = T.ArrayType(HEADER_TYPE)

_PRIMITIVES: dict[str, T.DataType] = {
    "string": T.StringType(),
    "long": T.LongType(),
    "int": T.IntegerType(),
    "double": T.DoubleType(),
    "boolean": T.BooleanType(),
    "bytes": T.BinaryType(),
}


def record_type(topic: Topic) -> T.StructType:
    """The type of a topic's records."""
    fields = schemas.current(str(topic.value))["fields"]
    return T.StructType([T.StructField(field["name"], spark_type(field["type"])) for field in fields])


def spark_type(schema: Any) -> T.DataType:
    """The Spark type of an Avro schema of this project. All fields are nullable until validation."""
    match schema:
        case ["null", of]:
            return spark_type(of)
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            return T.DecimalType(precision, scale)
        case {"type": "record", "fields": fields}:
            return T.StructType([T.StructField(field["name"], spark_type(field["type"])) for field in fields])
        case {"type": "array", "items": items}:
            return T.ArrayType(spark_type(items))
        case {"type": primitive} | primitive:
            return _PRIMITIVES[primitive]


NOT_FRAMED = "not in the Confluent framing: no magic byte 0 and schema id"


def decode(value: Column, topic: Topic, ids: SchemaIds, not_framed: str | Column = NOT_FRAMED) -> tuple[Column, Column]:
    """Read Avro values of a topic into its newest schema. Any known schema may have written them.

    Returns two columns: the record as a struct with one more field, MARKER (see ``is_whole``); and the reason why the
    value cannot be read, which is null if the framing and the schema id are known. ``not_framed`` is the reason for
    other bytes.
    """
    framed = (F.length(value) >= _HEADER_LENGTH) & (F.substring(value, 1, 1) == F.lit(bytes([MAGIC_BYTE])))
    schema_id = F.conv(F.hex(F.substring(value, 2, _HEADER_LENGTH - 1)), 16, 10).cast("long")
    body = F.concat(F.substring(value, F.lit(_HEADER_LENGTH + 1), F.length(value)), F.lit(_END))
    known = ids.known(topic)
    record = F.lit(None).cast(marked_type(topic, T.BinaryType()))
    newest = _marked_schema(schemas.schema_text(f"{topic.value}.avsc"))
    for known_id, writer in known.items():
        read = from_avro(body, _marked_schema(writer), {"mode": "PERMISSIVE", "avroSchema": newest})
        record = F.when(framed & (schema_id == known_id), read).otherwise(record)
    not_framed = F.lit(not_framed) if isinstance(not_framed, str) else not_framed
    reason = F.when(~framed, not_framed).when(
        ~schema_id.isin(list(known)), F.concat(F.lit("unknown schema id "), schema_id.cast("string"))
    )
    return record, reason


MARKER = "_marker"
_END = b"end of a record."
_END_TYPE = {"type": "fixed", "name": "End", "namespace": "retail.loyalty.marker", "size": len(_END)}


def _marked_schema(schema_text: str) -> str:
    """The schema of a record with these bytes behind it.

    from_avro gives nulls for corrupt bytes and for a record of nulls, and ignores bytes behind a record. The field
    MARKER has the right bytes only if the record ends where the value ends.
    """
    schema = json.loads(schema_text)
    return json.dumps({**schema, "fields": [*schema["fields"], {"name": MARKER, "type": _END_TYPE}]})


def marked_type(topic: Topic, marker: T.DataType) -> T.StructType:
    """The type of a topic's records with the additional field MARKER."""
    return T.StructType([*record_type(topic).fields, T.StructField(MARKER, marker)])


def is_whole(record: Column) -> Column:
    """Whether ``decode`` could read the record, and no bytes follow it."""
    return F.coalesce(record.getField(MARKER) == F.lit(_END), F.lit(False))


def unreadable(record: Column, topic: Topic) -> Column:
    """Why a record of a known schema id is not readable; null if it is.

    Avro accepts any bytes as a text, but Python accepts only UTF-8.
    """
    # The separator keeps two invalid halves from joining to a valid character.
    texts = F.concat_ws(",", *_texts(record, record_type(topic)))
    followed = F.coalesce(record.getField(MARKER) != F.lit(_END), F.lit(False))
    return F.when(followed, F.lit(f"bytes follow the Avro {topic.value}")).when(
        ~is_whole(record) | ~F.is_valid_utf8(texts), F.lit(f"not an Avro {topic.value} of its schema id")
    )


def _texts(value: Column, of: T.DataType) -> list[Column]:
    """All texts of a value, as columns of texts or of arrays of texts."""
    match of:
        case T.StructType(fields=fields):
            return [text for field in fields for text in _texts(value.getField(field.name), field.dataType)]
        case T.ArrayType(elementType=T.StructType(fields=fields)):
            # In Spark, a field of an array of structs is the array of that field's values.
            arrays = ((value.getField(field.name), T.ArrayType(field.dataType)) for field in fields)
            return [text for array, kind in arrays for text in _texts(array, kind)]
        case T.StringType() | T.ArrayType(elementType=T.StringType()):
            return [value]
    return []


_OBJECT_AND_END = T.ArrayType(T.StructType([T.StructField("end", T.StringType())]))


def is_one_json_object(value: Column) -> Column:
    """Whether a value in UTF-8 that starts as a JSON object is exactly one JSON object.

    Spark's parser stops after the first object and ignores the rest. So this puts the value into an array, before an
    element that marks the end. The value is one object if the mark is the second element. A value cannot contain its
    own hash, so it cannot contain the mark.
    """
    mark = F.sha2(value, 256)
    both = F.concat(F.lit("["), value.cast("string"), F.lit(',{"end":"'), mark, F.lit('"}]'))
    second = F.get(F.from_json(both, _OBJECT_AND_END), F.lit(1))
    return F.coalesce(second.getField("end") == mark, F.lit(False))


def decode_json(value: Column, topic: Topic) -> Column:
    """Read JSON objects into the newest schema of a topic, as a struct with one more field, MARKER.

    MARKER is null if the object could be read. A value that does not fit its field makes the whole object unreadable. A
    text field takes any JSON value as it is written (see ``json_types``).
    """
    return F.from_json(value.cast("string"), marked_type(topic, T.StringType()), {"columnNameOfCorruptRecord": MARKER})


def is_json(value: Column) -> Column:
    """Whether a value starts as a JSON object, perhaps with blanks before. No framed Avro value starts like this."""
    return value.cast("string").rlike(r"^[ \t\r\n]*\{")


def encode(record: Column, topic: Topic, ids: SchemaIds) -> Column:
    """Write a struct as a framed value of the topic, in its newest schema."""
    return encode_as(record, str(topic.value), ids.writer_id(topic))


def encode_as(record: Column, name: str, schema_id: int) -> Column:
    """Write a struct as a framed record of this name, in its newest schema, whose id is given."""
    return F.concat(F.lit(header(schema_id)), to_avro(record, json.dumps(schemas.current(name))))


def cloud_event(record_id: Column, record_name: str | Column) -> Column:
    """The CloudEvents headers of a record. A replay repeats ``ce_id``, so readers recognise a duplicate by it."""
    if isinstance(record_name, str):
        record_name = F.lit(record_name)
    texts = {
        "ce_specversion": F.lit(h.CE_SPECVERSION),
        "ce_id": record_id,
        "ce_type": F.concat(F.lit(h.event_type("")), record_name),
        "ce_source": F.lit(h.CE_SOURCE),
        "content-type": F.lit(h.CONTENT_TYPE),
    }
    return text_headers(texts)


def text_headers(texts: dict[str, Column]) -> Column:
    """Record headers with UTF-8 values, in the type of Spark's Kafka sink."""
    return F.array(
        *(F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in texts.items())
    ).cast(HEADERS_TYPE)


def no_headers() -> Column:
    return F.array().cast(HEADERS_TYPE)
