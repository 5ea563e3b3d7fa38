"""Values on the wire: Avro in the Confluent framing (magic byte 0, four bytes of schema id, Avro body)."""

import io
import json
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

import schemas
from schemas.topics import Topic
from services.messaging import decimals
from services.messaging.schema_ids import SchemaIds

Record = dict[str, Any]

MAGIC_BYTE = 0
_HEADER = struct.Struct(">bI")

# fastavro documents no set of errors for corrupt bytes, or for a schema that is none; it has raised at least these.
_AVRO_ERRORS = (
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


class UndecodableError(ValueError):
    """A value that is not what its topic promises; the message says why."""


def header(schema_id: int) -> bytes:
    """The five bytes before an Avro body."""
    return _HEADER.pack(MAGIC_BYTE, schema_id)


def encoder(topic: Topic, ids: SchemaIds) -> Callable[[Mapping[str, Any]], bytes]:
    """A function that writes records as values of the topic, in its newest schema."""
    return record_encoder(str(topic.value), ids.writer_id(topic))


def decoder(topic: Topic, ids: SchemaIds, *, decimals_as_text: bool = False) -> Callable[[bytes], Record]:
    """A function that reads values of the topic into its newest schema, whichever known schema wrote them.

    With ``decimals_as_text`` the decimals among the record's own fields come as what ``str`` makes of them: to make
    Decimals first takes as long as all the rest.

    It raises UndecodableError for bytes that are no such value, UnknownSchemaIdError for an id nobody registered, and
    SchemaRegistryUnavailableError where that cannot be found out now.
    """
    return record_decoder(str(topic.value), ids.writer_schema, decimals_as_text=decimals_as_text)


def record_encoder(name: str, schema_id: int) -> Callable[[Mapping[str, Any]], bytes]:
    """A function that writes records of that name in their newest schema, which has that id."""
    schema = _parsed(json.dumps(schemas.current(name)))
    prefix = header(schema_id)

    def encode(record: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        buffer.write(prefix)
        fastavro.schemaless_writer(buffer, schema, record)
        return buffer.getvalue()

    return encode


def record_decoder(
    name: str, writer_schema: Callable[[int], str], *, decimals_as_text: bool = False
) -> Callable[[bytes], Record]:
    """A function that reads framed records of that name into their newest schema, as ``decoder`` says."""
    scales = decimals.scales(schemas.current(name)) if decimals_as_text else {}
    prepared = decimals.as_bytes if decimals_as_text else lambda schema: schema
    reader = _parsed(json.dumps(prepared(schemas.current(name))))

    @cache
    def writer_and_reader(schema_id: int) -> tuple[Any, Any]:
        text = writer_schema(schema_id)
        try:
            schema = json.loads(text)
            writer = _parsed(json.dumps(prepared(schema)))
        except _AVRO_ERRORS as error:
            raise UndecodableError(f"schema id {schema_id} is no Avro schema: {error}") from error
        if scales and decimals.scales(schema).items() - scales.items():
            raise UndecodableError(f"schema id {schema_id} has decimals of another scale")
        # Without a reader's schema fastavro need not resolve the two for every record.
        return writer, None if writer == reader else reader

    def decode(value: bytes) -> Record:
        if len(value) < _HEADER.size or value[0] != MAGIC_BYTE:
            raise UndecodableError("not in the Confluent framing: no magic byte 0 and schema id")
        _, schema_id = _HEADER.unpack_from(value)
        writer, resolve_into = writer_and_reader(schema_id)
        body = io.BytesIO(value)
        body.seek(_HEADER.size)
        try:
            record = cast(Record, fastavro.schemaless_reader(body, writer, resolve_into))
        # Also where the writer's schema, good in itself, is another record's.
        except _AVRO_ERRORS as error:
            raise UndecodableError(f"not an Avro {name} of schema id {schema_id}: {error}") from error
        for field, scale in scales.items():
            if (unscaled := record[field]) is not None:
                record[field] = decimals.text(unscaled, scale)
        return record

    return decode


@cache
def _parsed(schema_text: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_text))
