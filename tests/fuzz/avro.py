"""Encoded records of any Avro schema with odd values. Half of them are damaged."""

import io
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

import fastavro

import schemas
from services.messaging.avro import AVRO_ERRORS, header
from tests.support.mutations import AVRO_MUTATIONS, damaged

TEXTS = (
    *("", " ", "A", "B", "card", "é", "\u00a0", "\u200b", "\0", "\ufffd", "\U0001f6d2", "x" * 128, "x" * 129, "=1+1"),
    *("A\n", "'; drop table entries; --", "../..", "2026-01-31T09:30:00Z", "-0.00", "NaN", "{}", "\u202eabc"),
)
INTS = (0, 1, -1, 2, 7, 100, 2**15, 2**31 - 1, -(2**31), 1_790_000_000_000, 253_402_300_799_999, 253_402_300_800_000)
LONGS = (*INTS, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, 12.5, -7.25, 0.005, 99_999_999_999.99, 1e11, 1e308, -1e308, 5e-324, math.nan, math.inf)
_MOST_ITEMS = 3

Values = Mapping[str, Callable[[Random], Any]]
"""By name of a field, the generator of its values. Other fields get values of their types."""


def framed(rng: Random, name: str, values: Values) -> bytes:
    """A record of this name in any version of its schema, in the Confluent framing. Half of the values are damaged."""
    schema_id = rng.choice(_ids_of(name))
    value = header(schema_id) + _body(rng, schema_id, values)
    return damaged(value, AVRO_MUTATIONS, rng) if rng.random() < 0.5 else value


def _body(rng: Random, schema_id: int, values: Values) -> bytes:
    declared, parsed = _schema(schema_id)
    while True:
        buffer = io.BytesIO()
        try:
            fastavro.schemaless_writer(buffer, parsed, _value(rng, declared, values))
        except AVRO_ERRORS:
            continue  # this value cannot be encoded
        return buffer.getvalue()


@cache
def _ids_of(name: str) -> list[int]:
    return [number for number, path in schemas.ids().items() if schemas.record_name(path) == name]


@cache
def _schema(schema_id: int) -> tuple[Any, Any]:
    text = schemas.schema_text(schemas.ids()[schema_id])
    return json.loads(text), fastavro.parse_schema(json.loads(text))


def _value(rng: Random, of: Any, values: Values) -> Any:
    if isinstance(of, list):
        return _value(rng, rng.choice(of), values)
    if isinstance(of, str):
        return _PRIMITIVES[of](rng)
    if of.get("logicalType") == "decimal":
        return Decimal(rng.choice(LONGS)).scaleb(-int(of.get("scale", 0)))
    if of["type"] == "record":
        return {field["name"]: _field(rng, field, values) for field in of["fields"]}
    if of["type"] == "array":
        return [_value(rng, of["items"], values) for _ in range(rng.randrange(_MOST_ITEMS))]
    return _value(rng, of["type"], values)


def _field(rng: Random, field: Mapping[str, Any], values: Values) -> Any:
    # Most values come from the given generator, so that some records are valid.
    if (given := values.get(field["name"])) and rng.random() < 0.97:
        return given(rng)
    return _value(rng, field["type"], values)


_PRIMITIVES: Mapping[str, Callable[[Random], Any]] = {
    "string": lambda rng: rng.choice(TEXTS),
    "int": lambda rng: rng.choice(INTS),
    "long": lambda rng: rng.choice(LONGS),
    "double": lambda rng: rng.choice(FLOATS),
    "boolean": lambda rng: rng.random() < 0.5,
    "bytes": lambda rng: rng.randbytes(rng.randrange(20)),
    "null": lambda _: None,
}
