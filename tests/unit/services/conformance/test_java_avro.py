"""Integers that Java and fastavro read in different ways."""

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.conformance.java_avro import NotReadableByJavaError, canonical
from tests.support.strategies import AVRO_FIELDS, record_schema


def of_type(of: Any) -> dict[str, Any]:
    return record_schema({"a": of})


@given(st.data(), AVRO_FIELDS)
def test_what_a_writer_writes_is_unchanged(data: st.DataObject, fields: dict[str, Any]) -> None:
    """The short forms stay, also those of arrays, maps and unions. Bytes behind the record stay too."""
    schema, body = record_schema(fields), io.BytesIO()
    record = {name: data.draw(values_of(of)) for name, of in fields.items()}
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    assert body.getvalue() + b"more" == canonical(body.getvalue() + b"more", schema)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
    "bytes": st.binary(max_size=3),
    "string": st.text(max_size=3),
}


def values_of(of: Any) -> st.SearchStrategy[Any]:
    match of:
        case ["null", inner]:
            return st.none() | values_of(inner)
        case {"type": "array", "items": inner}:
            return st.lists(values_of(inner), max_size=3)
        case {"type": "map", "values": inner}:
            return st.dictionaries(st.text(max_size=3), values_of(inner), max_size=3)
        case _:
            return _PRIMITIVES[of]


@pytest.mark.parametrize(
    ("expected", "body", "of"),
    [
        ("02", "8200", "int"),  # more bytes than it needs
        ("02", "8280808070", "int"),  # bits that an int does not have
        ("02", "8280808080808080807e", "long"),
        ("020400", "01020400", {"type": "array", "items": "int"}),  # a block with its size
        ("0202", "820002", ["null", "int"]),
    ],
)
def test_the_value_of_java(expected: str, body: str, of: Any) -> None:
    assert expected == canonical(bytes.fromhex(body), of_type(of)).hex()


@pytest.mark.parametrize(
    ("body", "of"),
    [
        ("01", ["null", "int"]),  # branch -1
        ("04", ["null", "int"]),
        ("828080808000", "int"),
        ("8280808080808080808000", "long"),
        ("0161", "string"),  # length -1
        ("04", "string"),
        ("feffffff0f", {"type": "array", "items": "int"}),
        ("", "boolean"),
    ],
)
def test_bytes_that_java_refuses(body: str, of: Any) -> None:
    with pytest.raises(NotReadableByJavaError):
        canonical(bytes.fromhex(body), of_type(of))
