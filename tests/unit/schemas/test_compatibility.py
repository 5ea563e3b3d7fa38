"""Compatibility of reader and writer schemas."""

import io
import json
import re

import fastavro
import fastavro.utils
import pytest
from hypothesis import given

import schemas
from schemas.compatibility import obstacles
from tests.support.strategies import DECIMAL_SCHEMA, record_schema, schema_changes

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
TREE = record_schema({"value": "int", "under": {"type": "array", "items": "R"}})

READ = {
    "the same": ({"a": "int"}, {"a": "int"}),
    "widened": ({"a": "int", "b": "float"}, {"a": "long", "b": "double"}),
    "made nullable": ({"a": "int"}, {"a": ["null", "int"]}),
    "a branch more": ({"a": ["null", "int"]}, {"a": ["null", "int", "string"]}),
    "removed": ({"a": "int", "b": "int"}, {"a": "int"}),
    "a symbol more": ({"a": ENUM}, {"a": {**ENUM, "symbols": ["A", "B", "C"]}}),
    "the same decimal": ({"a": DECIMAL_SCHEMA}, {"a": DECIMAL_SCHEMA}),
    "a name of before": ({"a": ENUM, "b": "E"}, {"a": ENUM, "b": "E"}),
}
NOT_READ = {
    "narrowed": ({"a": "long"}, {"a": "int"}, "a is long, but the reader needs int"),
    "another type": ({"a": "string"}, {"a": "double"}, "a is string, but the reader needs double"),
    "no longer nullable": ({"a": ["null", "int"]}, {"a": "int"}, "a is null, but the reader needs int"),
    "added without a default": ({"a": "int"}, {"a": "int", "b": "int"}, "b is missing, and the reader has no default"),
    "a symbol less": ({"a": ENUM}, {"a": {**ENUM, "symbols": ["A"]}}, "a can be B, which the reader does not know"),
    "another scale": ({"a": DECIMAL_SCHEMA}, {"a": {**DECIMAL_SCHEMA, "scale": 3}}, "a is"),
    "no decimal any more": ({"a": DECIMAL_SCHEMA}, {"a": "bytes"}, "a is"),
    "deep inside": (
        {"a": {"type": "array", "items": ["null", record_schema({"b": "long"}, "Inner")]}},
        {"a": {"type": "array", "items": ["null", record_schema({"b": "int"}, "Inner")]}},
        r"a\[\].b is long, but the reader needs int",
    ),
    "another enumeration": ({"a": ENUM}, {"a": {**ENUM, "name": "F"}}, "a is called E, but the reader needs F"),
}


@pytest.mark.parametrize("change", READ)
def test_compatible_changes_are_accepted(change):
    writer, reader = READ[change]
    assert [] == obstacles(record_schema(reader), record_schema(writer))


@pytest.mark.parametrize("change", NOT_READ)
def test_incompatible_changes_are_refused_with_the_place_and_reason(change):
    writer, reader, line = NOT_READ[change]
    (found,) = obstacles(record_schema(reader), record_schema(writer))
    assert re.match(line, found), found


def test_a_default_or_an_alias_fills_in_for_a_field():
    """An absent field gets its default, and a renamed field is found by its alias."""
    reader = record_schema({"a": "int"})
    reader["fields"] += [{"name": "b", "type": "int", "default": 0}, {"name": "c", "aliases": ["old"], "type": "int"}]
    assert [] == obstacles(reader, record_schema({"a": "int", "old": "int"}))


def test_a_record_that_contains_itself_is_compared_once():
    assert [] == obstacles(TREE, json.loads(json.dumps(TREE)))
    narrow = json.loads(json.dumps(TREE).replace('"int"', '"long"'))
    assert ["value is long, but the reader needs int"] == obstacles(TREE, narrow)


@given(schema_changes())
def test_a_change_without_an_obstacle_can_be_read(pair):
    """If no obstacle is found, the Avro reader can read all records. This holds for any change."""
    writer, reader = pair
    if obstacles(reader, writer):
        return
    for value in fastavro.utils.generate_many(fastavro.parse_schema(writer), 3):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, writer, value)
        body.seek(0)
        read = fastavro.schemaless_reader(body, writer, reader)
        assert {field["name"] for field in reader["fields"]} == set(read)


@pytest.mark.parametrize("path", schemas.ids().values())
def test_every_schema_of_the_project_is_understood(path):
    """Each schema can read its own records."""
    schema = json.loads(schemas.schema_text(path))
    assert [] == obstacles(schema, schema)
