"""Whether what one Avro schema has written can be read into another: the rules of Avro's schema resolution.

Libraries compare bytes alone. Here, as the specification asks, a logical type must stay what it is too: a decimal of
another scale is the same bytes and another amount. https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

import json
from collections.abc import Iterator
from typing import Any

_PROMOTED = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NAMED = {"record", "error", "enum", "fixed"}
_LOGICAL = ("logicalType", "precision", "scale")


def obstacles(reader: Any, writer: Any) -> list[str]:
    """What keeps a reader from values of a writer, a line each with the place; empty if it reads them all.

    Args:
        reader, writer: parsed schemas (what JSON makes of them). Raises LookupError for a name that neither defines.
    """
    return list(dict.fromkeys(_Pair(reader, writer).obstacles(reader, writer, "")))


class _Pair:
    """Two schemas, each with the types that it names."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._read = dict(_names(reader, ""))
        self._written = dict(_names(writer, ""))
        self._under_way: set[tuple[str, str]] = set()

    def obstacles(self, reader: Any, writer: Any, place: str) -> Iterator[str]:
        reader, writer = _resolved(reader, self._read), _resolved(writer, self._written)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.obstacles(reader, branch, place)
        elif isinstance(reader, list):
            yield from self._into_union(reader, writer, place)
        elif _kind(reader) != _kind(writer):
            if _kind(reader) not in _PROMOTED.get(_kind(writer), ()) or _logical(reader) or _logical(writer):
                yield f"{place or 'the schema'} is {_words(writer)}, and {_words(reader)} is asked for"
        elif _logical(reader) != _logical(writer):
            yield f"{place or 'the schema'} is {_words(writer)}, and {_words(reader)} is asked for"
        else:
            yield from self._alike(reader, writer, place)

    def _into_union(self, reader: list[Any], writer: Any, place: str) -> Iterator[str]:
        found = [list(self.obstacles(branch, writer, place)) for branch in reader]
        if all(found):
            same = [each for branch, each in zip(reader, found, strict=True) if _same_kind(branch, writer, self._read)]
            asked = " or ".join(_words(_resolved(branch, self._read)) for branch in reader)
            yield from same[0] if same else [f"{place or 'the schema'} is {_words(writer)}, and {asked} is asked for"]

    def _alike(self, reader: Any, writer: Any, place: str) -> Iterator[str]:
        kind = _kind(reader)
        if kind in _NAMED and not _is_called(reader, writer):
            yield f"{place or 'the schema'} is called {writer['name']}, and {reader['name']} is asked for"
        elif kind in ("record", "error"):
            yield from self._records(reader, writer, place)
        elif kind == "enum":
            if "default" not in reader and (lost := sorted({*writer["symbols"]} - {*reader["symbols"]})):
                yield f"{place} can be {', '.join(lost)}, which the reader does not know"
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield f"{place} has {writer['size']} bytes, and {reader['size']} are asked for"
        elif kind == "array":
            yield from self.obstacles(reader["items"], writer["items"], f"{place}[]")
        elif kind == "map":
            yield from self.obstacles(reader["values"], writer["values"], f"{place}{{}}")

    def _records(self, reader: Any, writer: Any, place: str) -> Iterator[str]:
        if (pair := (reader["name"], writer["name"])) in self._under_way:
            return  # it contains itself
        self._under_way.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            at = f"{place}.{field['name']}".lstrip(".")
            if source is not None:
                yield from self.obstacles(field["type"], source["type"], at)
            elif "default" not in field:
                yield f"{at} is not written, and has no default"
        self._under_way.discard(pair)


def _names(schema: Any, space: str) -> Iterator[tuple[str, Any]]:
    """Every named type in a schema, by its full name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _names(branch, space)
    elif isinstance(schema, dict):
        if schema.get("type") in _NAMED:
            full = _full_name(schema["name"], schema.get("namespace", space))
            space = full.rpartition(".")[0]
            yield full, schema
            yield full.rpartition(".")[2], schema
        for inner in ("items", "values", "type"):
            if isinstance(schema.get(inner), dict | list):
                yield from _names(schema[inner], space)
        for field in schema.get("fields", ()):
            yield from _names(field["type"], space)


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _resolved(schema: Any, names: dict[str, Any]) -> Any:
    """A schema that names a type is that type; one wrapped in another is the inner one."""
    if isinstance(schema, str) and schema not in _PRIMITIVES:
        return names[schema]
    if isinstance(schema, dict) and (isinstance(schema["type"], dict | list) or schema["type"] in names):
        return _resolved(schema["type"], names)
    return schema


_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _logical(schema: Any) -> tuple[Any, ...]:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return ()
    return tuple(schema.get(name, 0 if name == "scale" else None) for name in _LOGICAL)


def _is_called(reader: Any, writer: Any) -> bool:
    """Unqualified, as Avro compares names; the reader may know the writer's as an alias."""
    names = {name.rpartition(".")[2] for name in (reader["name"], *reader.get("aliases", ()))}
    return writer["name"].rpartition(".")[2] in names


def _same_kind(branch: Any, writer: Any, names: dict[str, Any]) -> bool:
    return not isinstance(branch, list) and _kind(_resolved(branch, names)) == _kind(writer)


def _words(schema: Any) -> str:
    if isinstance(schema, dict) and "name" in schema:
        return f"{schema['type']} {schema['name']}"
    return json.dumps(schema).replace('"', "")
