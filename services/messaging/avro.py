"""Encodes and decodes values: Avro in Confluent's framing (magic byte 0, four bytes of schema id, Avro body)."""

import io
import json
import struct
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, cast

import fastavro
from fastavro.read import LOGICAL_READERS, SchemaResolutionError
from fastavro.schema import SchemaParseException

import schemas
from schemas.topics import Topic
from services.domain.formats import points_text
from services.messaging.schema_ids import SchemaIds

Record = dict[str, Any]

MAGIC_BYTE = 0
_LONGEST_DECIMAL = 16
"""Bytes of a decimal. The largest number of 38 digits, the most that Spark knows, fits into them."""
_HEADER = struct.Struct(">bI")
HEADER_BYTES = _HEADER.size
"""Bytes in front of an Avro body."""

AVRO_ERRORS = (
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
    SchemaParseException,
    SchemaResolutionError,
)
"""The errors that fastavro raised for damaged bytes, unfitting values and invalid schemas. It does not document any."""


class UndecodableError(ValueError):
    """A value is not a record of its topic. The message says why.

    Attributes:
        reason: the reason that the pipeline writes into a dead letter.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


def _bounded(read_decimal: Callable[..., Any]) -> Callable[..., Any]:
    """The reader of decimals of fastavro, for short decimals. A long one would cost it seconds of processor time."""

    def read(data: bytes, *schemas: Any) -> Any:
        if len(data) > _LONGEST_DECIMAL:
            raise UndecodableError(f"a decimal has {len(data):,} bytes, and must have at most {_LONGEST_DECIMAL}")
        return read_decimal(data, *schemas)

    return read


def _of_32_bits(number: int, *_: Any) -> int:
    """An int of Avro. fastavro also reads longer ones, which Java refuses and fastavro cannot write."""
    if not -(2**31) <= number < 2**31:
        raise OverflowError(f"{number} has more than 32 bits")
    return number


LOGICAL_READERS["bytes-decimal"] = _bounded(LOGICAL_READERS["bytes-decimal"])
LOGICAL_READERS["int-bounded"] = _of_32_bits


def not_of_its_schema(name: str) -> str:
    """The reason for bytes that are not a record of the schema that their id names."""
    return f"not an Avro {name} of its schema id"


def bytes_follow(name: str) -> str:
    """The reason for a value that has more bytes after its record."""
    return f"bytes follow the Avro {name}"


def schema_id_of(value: bytes) -> int | None:
    """The schema id in front of an Avro body, or None for bytes that are not in the Confluent framing."""
    if len(value) < _HEADER.size or value[0] != MAGIC_BYTE:
        return None
    _, schema_id = _HEADER.unpack_from(value)
    return int(schema_id)


def header(schema_id: int) -> bytes:
    """The five bytes in front of an Avro body."""
    return _HEADER.pack(MAGIC_BYTE, schema_id)


def encoder(topic: Topic, ids: SchemaIds) -> Callable[[Mapping[str, Any]], bytes]:
    """A function that encodes records as values of the topic, in its newest schema."""
    return record_encoder(str(topic.value), ids.writer_id(topic))


def decoder(topic: Topic, ids: SchemaIds, *, decimals_as_text: bool = False) -> Callable[[bytes], Record]:
    """A function that decodes values of the topic into its newest schema. Any known schema can have written them.

    The function raises UndecodableError for other bytes, UnknownSchemaIdError for an unregistered id, and
    SchemaRegistryUnavailableError if the Schema Registry does not answer.

    Args:
        decimals_as_text: whether the decimals of the record's own fields become texts, as ``str`` makes them. To decode
            them to ``Decimal`` takes twice as long.
    """
    return record_decoder(str(topic.value), ids.writer_schema, decimals_as_text=decimals_as_text)


def record_encoder(name: str, schema_id: int) -> Callable[[Mapping[str, Any]], bytes]:
    """A function that encodes records of this name in their newest schema, which has this id."""
    encode_body = body_encoder(name)
    prefix = header(schema_id)
    return lambda record: prefix + encode_body(record)


def body_encoder(name: str) -> Callable[[Mapping[str, Any]], bytes]:
    """A function that encodes records of this name in their newest schema, without the framing."""
    schema = _parsed(json.dumps(schemas.current(name)))

    def encode(record: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, record)
        return buffer.getvalue()

    return encode


def record_decoder(
    name: str, writer_schema: Callable[[int], str], *, decimals_as_text: bool = False
) -> Callable[[bytes], Record]:
    """A function that decodes framed records of this name into their newest schema; see ``decoder``."""
    decimal_fields = _decimal_scales(schemas.current(name)) if decimals_as_text else {}
    replaced = _without_decimal if decimals_as_text else lambda schema: schema

    def parsed(schema: Any) -> Any:
        return fastavro.parse_schema(
            schemas.with_types(schema, lambda each: _BOUNDED_INT if each == "int" else replaced(each))
        )

    reader = parsed(schemas.current(name))

    @cache
    def writer_and_reader(schema_id: int) -> tuple[Any, Any]:
        text = writer_schema(schema_id)
        try:
            schema = json.loads(text)
            writer = parsed(schema)
        except AVRO_ERRORS as error:
            raise UndecodableError(f"schema id {schema_id} is no Avro schema: {error}") from error
        if decimal_fields and _decimal_scales(schema).items() - decimal_fields.items():
            raise UndecodableError(f"schema id {schema_id} has decimals of another scale")
        # Without a reader schema fastavro does not resolve the two schemas for every record.
        return writer, None if writer == reader else reader

    def decode(value: bytes) -> Record:
        if (schema_id := schema_id_of(value)) is None:
            raise UndecodableError("not in the Confluent framing: no magic byte 0 and schema id")
        writer, resolve_into = writer_and_reader(schema_id)
        body = io.BytesIO(value)
        body.seek(_HEADER.size)
        record = _read(body, writer, resolve_into, name, schema_id)
        if rest := len(value) - body.tell():
            raise UndecodableError(f"{rest} {bytes_follow(name)} of schema id {schema_id}", bytes_follow(name))
        for field in decimal_fields:
            if (unscaled := record[field]) is not None:
                record[field] = _points_text(unscaled)
        return record

    return decode


def _read(body: io.BytesIO, writer: Any, resolve_into: Any, name: str, schema_id: int) -> Record:
    try:
        return cast(Record, fastavro.schemaless_reader(body, writer, resolve_into))
    except UndecodableError:
        raise
    # These errors also occur if the writer's schema is the valid schema of another record.
    except AVRO_ERRORS as error:
        # The text of the error does not help a reader: it is empty, an index, or both schemas.
        message = f"not an Avro {name} of schema id {schema_id}"
        raise UndecodableError(message, not_of_its_schema(name)) from error


def same_schema(text: str, newest: Any) -> bool:
    """Whether the text has the fields and types of the newest schema, in the same order.

    Then the bytes of a record are the same. Comments, aliases and defaults can differ, because they do not change the
    bytes.
    """
    try:
        return bool(_form(json.loads(text)) == _form(newest))
    except AVRO_ERRORS:
        return False


def _form(schema: Any) -> Any:
    """What decides about bytes: like Avro's parsing canonical form, but with logical types."""
    return _without(fastavro.parse_schema(schema), frozenset({"doc", "aliases", "default"}))


def _without(schema: Any, attributes: frozenset[str]) -> Any:
    if isinstance(schema, list):
        return [_without(each, attributes) for each in schema]
    if isinstance(schema, dict):
        return {name: _without(value, attributes) for name, value in schema.items() if name not in attributes}
    return schema


@cache
def _parsed(schema_text: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_text))


def _decimal_scales(schema: Any) -> dict[str, int]:
    """The scale of each field of a record that is a decimal."""
    found = {}
    for field in schema["fields"] if isinstance(schema, dict) and "fields" in schema else ():
        types = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for each in types:
            if isinstance(each, dict) and each.get("logicalType") == "decimal":
                found[field["name"]] = each.get("scale", 0)
    return found


_BOUNDED_INT = {"type": "int", "logicalType": "bounded"}


def _without_decimal(schema: Any) -> Any:
    """Bytes instead of a decimal. The encoding is the same."""
    if not isinstance(schema, dict) or schema.get("logicalType") != "decimal":
        return schema
    return {name: part for name, part in schema.items() if name not in ("logicalType", "precision", "scale")}


# A cache, because the points of many accounts are zero, or equal in several fields.
@lru_cache(4096)
def _points_text(unscaled: bytes) -> str:
    """The text of points, which Avro encodes as hundredths (two's complement, big endian)."""
    return points_text(int.from_bytes(unscaled, "big", signed=True))
