"""The Avro schemas of all records."""

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

Schema = dict[str, Any]
"""A parsed Avro schema of type record."""


@cache
def ids() -> dict[int, str]:
    """Schema ids and their files, for deployments without a Schema Registry. The types of an id never change."""
    entries = json.loads((files(__name__) / "ids.json").read_text(encoding="utf-8"))
    return {int(schema_id): path for schema_id, path in entries.items()}


@cache
def schema_text(path: str) -> str:
    """The Avro schema (JSON text) of a file in this folder, e.g. ``Balance.avsc``."""
    return (files(__name__) / path).read_text(encoding="utf-8")


def current(name: str) -> Schema:
    """The newest schema of a record, e.g. ``current("PosInvoice")``. Writers and readers use it."""
    schema: Schema = json.loads(schema_text(f"{name}.avsc"))
    return schema


def field_names(name: str) -> list[str]:
    """The field names of a record in the order of its schema."""
    return [field["name"] for field in current(name)["fields"]]


def record_name(path: str) -> str:
    """The name of the record in a schema file: PosInvoice for PosInvoice.avsc and history/PosInvoice-1.avsc."""
    return path.removeprefix("history/").removesuffix(".avsc").partition("-")[0]


def with_types(schema: Any, change: Callable[[Any], Any]) -> Any:
    """The schema after ``change`` has replaced each type in it, the inner types first."""
    if isinstance(schema, list):
        return [with_types(each, change) for each in schema]
    if isinstance(schema, dict):
        inner = ("type", "fields", "items")
        schema = {name: with_types(part, change) if name in inner else part for name, part in schema.items()}
        # {"type": "int"} is a type too. A type in a type would not be valid.
        if isinstance(schema.get("type"), dict) and "name" not in schema:
            schema |= schema["type"]
    return change(schema)
