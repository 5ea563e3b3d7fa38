"""Avro's decimals, read by hand where each is shown as it is: what is on the wire, and its text."""

from functools import lru_cache
from typing import Any

_ANNOTATIONS = ("logicalType", "precision", "scale")


def scales(schema: Any) -> dict[str, int]:
    """Those fields of a record that are decimals, and how many digits of each stand behind the point."""
    found = {}
    for field in schema["fields"] if isinstance(schema, dict) and "fields" in schema else ():
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
                found[field["name"]] = kind.get("scale", 0)
    return found


def as_bytes(schema: Any) -> Any:
    """The same schema for the same bytes, with plain bytes for its decimals."""
    if isinstance(schema, list):
        return [as_bytes(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") == "decimal":
        return {name: part for name, part in schema.items() if name not in _ANNOTATIONS}
    return {name: as_bytes(part) if name in ("type", "fields", "items") else part for name, part in schema.items()}


# Of an account's points most are none, or as many as another field has.
@lru_cache(4096)
def text(unscaled: bytes, scale: int) -> str:
    """The text of a decimal of so many places, given its digits as Avro writes them (two's complement, big-endian)."""
    number = int.from_bytes(unscaled, "big", signed=True)
    digits = f"{abs(number):0{scale + 1}}"
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits
