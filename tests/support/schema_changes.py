"""Pairs of Avro schemas for property tests: one that wrote, and what somebody made of it."""

import copy
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
DEFAULTS = {"int": 0, "long": 0, "double": 0.0, "string": "", "boolean": False}

_PRIMITIVES = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean"])
_TYPES = st.recursive(
    _PRIMITIVES,
    lambda inner: (
        inner.map(lambda of: {"type": "array", "items": of})
        | inner.map(lambda of: {"type": "map", "values": of})
        | inner.filter(lambda of: not isinstance(of, list)).map(lambda of: ["null", of])
    ),
    max_leaves=2,
)
_NAMES = st.sampled_from("abcde")
FIELDS = st.dictionaries(_NAMES, _TYPES, min_size=1, max_size=4)


def record(fields: Mapping[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": of} for each, of in fields.items()]}


@st.composite
def changed(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A writer's schema, and a reader's: fields go, come with and without a default, change, and become nullable."""
    writer = draw(FIELDS)
    reader = copy.deepcopy(writer)
    fields: list[dict[str, Any]] = []
    for name, of in reader.items():
        match draw(st.integers(0, 5)):
            case 0:
                continue
            case 1:
                fields.append({"name": name, "type": draw(_TYPES)})
            case 2 if not isinstance(of, list):
                fields.append({"name": name, "type": ["null", of]})
            case 3:
                fields.append({"name": f"new_{name}", "aliases": [name], "type": of})
            case _:
                fields.append({"name": name, "type": of})
    if draw(st.booleans()):
        of = draw(st.sampled_from(sorted(DEFAULTS)))
        fields.append({"name": "more", "type": of} | ({"default": DEFAULTS[of]} if draw(st.booleans()) else {}))
    return record(writer), {"type": "record", "name": "R", "fields": fields}
