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
from services.messaging.schema_ids import SchemaIds, UnknownSchemaIdError

Record = dict[str, Any]

MAGIC_BYTE = 0
_LONGEST_DECIMAL = 16
"""Bytes of the longest decimal. A number of 38 digits fits, and Spark allows no more digits."""
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
    RecursionError,
    struct.error,
    SchemaParseException,
    SchemaResolutionError,
)
"""The errors that fastavro raised for damaged bytes, values of a wrong type and invalid schemas. fastavro does not
document its errors.
"""


class UndecodableError(ValueError):
    """A value is not a record of its topic. The message says why.

    Attributes:
        reason: the reason that the pipeline writes into a dead letter.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


def _with_limit(read_decimal: Callable[..., Any]) -> Callable[..., Any]:
    """A reader that refuses long decimals. fastavro would need seconds of processor time to read one."""

    def read(data: bytes, *schemas: Any) -> Any:
        if len(data) > _LONGEST_DECIMAL:
            raise UndecodableError(f"a decimal has {len(data):,} bytes, and must have at most {_LONGEST_DECIMAL}")
        return read_decimal(data, *schemas)

    return read


def _checked_int(number: int, *_: Any) -> int:
    """Check that an Avro ``int`` has 32 bits. fastavro also reads longer ones. It cannot write them, and Java refuses
    them.
    """
    if not -(2**31) <= number < 2**31:
        raise OverflowError(f"{number} has more than 32 bits")
    return number


def _refuse(*_: Any) -> None:
    raise ValueError("a decimal in the place of another type")


# fastavro calls the reader of a logical type by the name "<type>-<logical type>".
LOGICAL_READERS["bytes-decimal"] = _with_limit(LOGICAL_READERS["bytes-decimal"])
LOGICAL_READERS["int-bounded"] = _checked_int
LOGICAL_READERS["bytes-misplaced"] = LOGICAL_READERS["fixed-misplaced"] = _refuse
_BOUNDED_INT = {"type": "int", "logicalType": "bounded"}
"""Replaces ``int`` in each schema, so that fastavro calls ``_checked_int``."""

NOT_FRAMED = "not in the Confluent framing: no magic byte 0 and schema id"
"""The reason of a dead letter without a schema id."""


def not_of_its_schema(name: str) -> str:
    """The reason of a dead letter whose bytes do not match the schema of their id."""
    return f"not an Avro {name} of its schema id"


def bytes_follow(name: str) -> str:
    """The reason of a dead letter with more bytes after its record."""
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
    return record_encoder(topic.value, ids.writer_id(topic))


def decoder(topic: Topic, ids: SchemaIds, *, decimals_as_text: bool = False) -> Callable[[bytes], Record]:
    """A function that decodes values of the topic into its newest schema. Any known schema can have written them.

    The function raises UndecodableError for other bytes and for an unregistered id, and SchemaRegistryUnavailableError
    if the Schema Registry does not answer or may still be loading its schemas.

    Args:
        decimals_as_text: return the decimals of the record's own fields as text, like ``str(Decimal)``. The decoder
            then needs half the time.
    """
    return record_decoder(topic.value, ids.writer_schema, decimals_as_text=decimals_as_text)


def record_encoder(name: str, schema_id: int) -> Callable[[Mapping[str, Any]], bytes]:
    """A function that encodes records of this name in their newest schema, which has this id."""
    encode_body = body_encoder(name)
    prefix = header(schema_id)
    return lambda record: prefix + encode_body(record)


def body_encoder(name: str) -> Callable[[Mapping[str, Any]], bytes]:
    """A function that encodes records of this name in their newest schema, without the framing."""
    return value_encoder(schemas.current(name))


def value_encoder(schema: Any) -> Callable[[Any], bytes]:
    """A function that encodes values of a schema, without the framing."""
    parsed = _parsed(json.dumps(schema))

    def encode(value: Any) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, value)
        return buffer.getvalue()

    return encode


def record_decoder(
    name: str, writer_schema: Callable[[int], str], *, decimals_as_text: bool = False
) -> Callable[[bytes], Record]:
    """A function that decodes framed records of this name into their newest schema; see ``decoder``."""
    newest = schemas.current(name)
    decimal_fields = _decimal_scales(newest) if decimals_as_text else {}
    # Without decimals of its own, a record can only have misplaced ones: Avro reads a decimal of the writer as a text,
    # and fastavro would return a Decimal.
    has_decimals = '"decimal"' in json.dumps(newest)
    decimals = "bytes" if decimals_as_text else "decimal" if has_decimals else "misplaced"
    reader = _prepared(newest, decimals)

    @cache
    def writer_and_reader(schema_id: int) -> tuple[Any, Any]:
        try:
            schema = json.loads(writer_schema(schema_id))
            writer = _prepared(schema, decimals)
        except UnknownSchemaIdError as error:
            raise UndecodableError(str(error)) from error
        except AVRO_ERRORS as error:
            # The text of the error can contain the whole schema, and each dead letter contains the message.
            raise UndecodableError(f"schema id {schema_id} is no Avro schema, or refers to another one") from error
        if has_decimals and (problem := _problem_of_decimals(schema, newest, decimal_fields)):
            raise UndecodableError(f"schema id {schema_id} has {problem}")
        # None saves time: with a reader's schema, fastavro resolves the two schemas for every record.
        return writer, None if writer == reader else reader

    def decode(value: bytes) -> Record:
        if (schema_id := schema_id_of(value)) is None:
            raise UndecodableError(NOT_FRAMED)
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


def _prepared(schema: Any, decimals: str) -> Any:
    """A parsed schema with checked ints. Its decimals get this logical type. fastavro ignores a type without reader."""

    def replaced(part: Any) -> Any:
        if part == "int":
            return _BOUNDED_INT
        is_decimal = isinstance(part, dict) and part.get("logicalType") == "decimal"
        return part | {"logicalType": decimals} if is_decimal else part

    return fastavro.parse_schema(schemas.with_types(schema, replaced))


def _read(body: io.BytesIO, writer: Any, resolve_into: Any, name: str, schema_id: int) -> Record:
    try:
        return cast(Record, fastavro.schemaless_reader(body, writer, resolve_into))
    except UndecodableError:
        raise
    # These errors also occur if the writer's schema is the valid schema of another record.
    except AVRO_ERRORS as error:
        # The message omits the text of the error, which is empty, an index, or both schemas.
        message = f"not an Avro {name} of schema id {schema_id}"
        raise UndecodableError(message, not_of_its_schema(name)) from error


def same_schema(one: str, other: str) -> bool:
    """Whether both schemas encode a record to the same bytes: they have the same fields and types in the same order.

    Comments, aliases and defaults do not change the bytes, so they can differ. Two texts that are not Avro are the
    same, because nothing can encode a record with them.
    """
    return bool(_form_of_bytes(one) == _form_of_bytes(other))


def _form_of_bytes(text: str) -> Any:
    try:
        return _canonical_form(fastavro.parse_schema(json.loads(text)))
    except AVRO_ERRORS:
        return None


def _canonical_form(schema: Any) -> Any:
    """The parts of a parsed schema that change the bytes: Avro's parsing canonical form, and logical types."""
    if isinstance(schema, list):
        return [_canonical_form(each) for each in schema]
    if isinstance(schema, dict):
        unused = ("doc", "aliases", "default")
        return {name: _canonical_form(value) for name, value in schema.items() if name not in unused}
    return schema


@cache
def _parsed(schema_text: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_text))


def _problem_of_decimals(schema: Any, newest: Any, scales: dict[str, int]) -> str | None:
    """What is wrong with the decimals of a writer's schema. ``scales`` are those that the reader needs."""
    found = _decimal_scales(schema)
    if found.keys() & {field["name"] for field in newest["fields"]} - _decimal_scales(newest).keys():
        return "a decimal in the place of another type"
    return "decimals of another scale" if any(scales.get(name, each) != each for name, each in found.items()) else None


def _decimal_scales(schema: Any) -> dict[str, int]:
    """The scale of each field of a record that is a decimal."""
    found = {}
    for field in schema["fields"] if isinstance(schema, dict) and "fields" in schema else ():
        types = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for each in types:
            if isinstance(each, dict) and each.get("logicalType") == "decimal":
                found[field["name"]] = each.get("scale", 0)
    return found


@lru_cache(4096)  # many records have equal points, for example zero
def _points_text(unscaled: bytes) -> str:
    """The text of points, which Avro encodes as hundredths (two's complement, big endian)."""
    return points_text(int.from_bytes(unscaled, "big", signed=True))
