"""Checks by the rules of Avro whether a reader schema can read the records of a writer schema.

Libraries compare only the encoding. This module also compares logical types, because the same bytes are another amount
if a decimal has another scale. https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
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
    """The reasons why the reader cannot read all values of the writer: one line for each place in the schema.

    Args:
        reader, writer: schemas parsed from JSON.

    Raises:
        LookupError: a schema uses a name that it does not define.
    """
    return list(dict.fromkeys(_Pair(reader, writer).obstacles(reader, writer, "")))


class _Pair:
    """A reader schema and a writer schema, with their named types."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._read = dict(_names(reader, ""))
        self._written = dict(_names(writer, ""))
        self._visited: set[tuple[str, str]] = set()

    def obstacles(self, reader: Any, writer: Any, place: str) -> Iterator[str]:
        reader, writer = _resolved(reader, self._read), _resolved(writer, self._written)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.obstacles(reader, branch, place)
        elif isinstance(reader, list):
            yield from self._into_union(reader, writer, place)
        elif _kind(reader) != _kind(writer):
            if _kind(reader) not in _PROMOTED.get(_kind(writer), ()) or _logical(reader) or _logical(writer):
                yield _mismatch(place, writer, _words(reader))
        elif _logical(reader) != _logical(writer):
            yield _mismatch(place, writer, _words(reader))
        else:
            yield from self._of_same_kind(reader, writer, place)

    def _into_union(self, reader: list[Any], writer: Any, place: str) -> Iterator[str]:
        found = [list(self.obstacles(branch, writer, place)) for branch in reader]
        if all(found):
            same = [each for branch, each in zip(reader, found, strict=True) if _same_kind(branch, writer, self._read)]
            needed = " or ".join(_words(_resolved(branch, self._read)) for branch in reader)
            yield from same[0] if same else [_mismatch(place, writer, needed)]

    def _of_same_kind(self, reader: Any, writer: Any, place: str) -> Iterator[str]:
        kind = _kind(reader)
        if kind in _NAMED and not _has_name_of(reader, writer):
            yield f"{place or 'the schema'} is called {writer['name']}, but the reader needs {reader['name']}"
        elif kind in ("record", "error"):
            yield from self._records(reader, writer, place)
        elif kind == "enum":
            if "default" not in reader and (lost := sorted({*writer["symbols"]} - {*reader["symbols"]})):
                yield f"{place} can be {', '.join(lost)}, which the reader does not know"
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield f"{place} has {writer['size']} bytes, but the reader needs {reader['size']}"
        elif kind == "array":
            yield from self.obstacles(reader["items"], writer["items"], f"{place}[]")
        elif kind == "map":
            yield from self.obstacles(reader["values"], writer["values"], f"{place}{{}}")

    def _records(self, reader: Any, writer: Any, place: str) -> Iterator[str]:
        if (pair := (reader["name"], writer["name"])) in self._visited:
            return  # the record contains itself
        self._visited.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            at = f"{place}.{field['name']}".lstrip(".")
            if source is not None:
                yield from self.obstacles(field["type"], source["type"], at)
            elif "default" not in field:
                yield f"{at} is missing, and the reader has no default"
        self._visited.discard(pair)


def _names(schema: Any, space: str) -> Iterator[tuple[str, Any]]:
    """The named types of a schema, by their full and short names."""
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
    """The definition of a named type, or the inner type of ``{"type": ...}``. Other types stay as they are."""
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


def _has_name_of(reader: Any, writer: Any) -> bool:
    """Whether the reader has the name of the writer, unqualified, as its name or as an alias."""
    names = {name.rpartition(".")[2] for name in (reader["name"], *reader.get("aliases", ()))}
    return writer["name"].rpartition(".")[2] in names


def _same_kind(branch: Any, writer: Any, names: dict[str, Any]) -> bool:
    return not isinstance(branch, list) and _kind(_resolved(branch, names)) == _kind(writer)


def _mismatch(place: str, writer: Any, needed: str) -> str:
    return f"{place or 'the schema'} is {_words(writer)}, but the reader needs {needed}"


def _words(schema: Any) -> str:
    if isinstance(schema, dict) and "name" in schema:
        return f"{schema['type']} {schema['name']}"
    return json.dumps(schema).replace('"', "")
