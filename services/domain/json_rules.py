"""The rules of a value in JSON.

Release 0.1 read JSON with Spark's parser, which is Jackson. ``json_parser`` keeps the limits of Jackson.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from math import isinf
from typing import Any

from services.domain.json_parser import DECODER, DEEPEST, Number, depth, parse
from services.domain.validation import FEW, MOST_LINE_ITEMS, Rule

Schema = dict[str, Any]
"""A parsed Avro schema of type record."""

_WHITE_SPACE = " \t\r\n"
"""The characters that JSON allows between its parts."""

BEGINS_AS_OBJECT = re.compile(rb"[ \t\r\n]*\{")
"""No framed Avro value starts like this."""

# One half of a surrogate pair is no character, and UTF-8 cannot encode it.
_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"
_LONE_SURROGATE = rf"^(?:[^\\]++|{_PAIR}|(?!{_HALF})\\[\s\S])*+{_HALF}"
"""A text up to the first escape of half a pair. It reads escapes from the left, because a backslash before "u" can
itself be escaped. The possessive repetitions (*+) keep the time linear.
"""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

NO_VALUE = "no value"
EMPTY = "an empty value"
HAS_BYTE_ORDER_MARK = "a byte order mark is before the JSON: send UTF-8 without it"
NO_INVOICE = "neither a JSON object nor Avro in the Confluent framing (a byte 0 and a schema id)"
HALF_OF_A_PAIR = "half of a surrogate pair (\\uD800 to \\uDFFF) is no character"

TEXT_KIND, TRUE_OR_FALSE, NULL = "a text", "true or false", "null"
LIST, OBJECT, WHOLE = "a list", "an object", "a whole number"
OTHER_NUMBER = "a number with a point, an exponent or more than 38 digits"
_ACCEPTED = {
    "string": ((TEXT_KIND, WHOLE), "a text or a whole number"),
    "long": ((WHOLE,), "a whole number"),
    "int": ((WHOLE,), "a whole number"),
    "double": ((WHOLE, OTHER_NUMBER), "a number"),
    "array": ((LIST,), "a list"),
    "record": ((OBJECT,), "an object"),
}
"""The kinds of JSON values that an Avro type accepts, and these kinds in words. Only a whole number becomes a text,
because simple tills send their InvoiceNumber as a number.
"""
_LARGEST = {"int": 2**31 - 1, "long": 2**63 - 1}

_MOST_DIGITS = 38


class NotReadableError(ValueError):
    """A value is no JSON object of a schema. The message is the reason in the dead letter."""


def read_object(value: bytes, schema: Schema) -> dict[str, Any]:
    """Reads a value that begins as a JSON object into the fields of a schema. Raises NotReadableError."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise NotReadableError(f"not UTF-8: byte {error.start + 1} is {value[error.start]:02X}") from None
    if "\\u" in text and re.search(_LONE_SURROGATE, text):
        raise NotReadableError(HALF_OF_A_PAIR)
    try:
        parsed = parse(text, DEEPEST - 1)
    except json.JSONDecodeError as error:
        raise NotReadableError(_mistake(error)) from None
    except ValueError as error:
        raise NotReadableError(str(error)) from None
    if reason := next(_misfits(parsed, schema, ""), None):
        raise NotReadableError(reason)
    return {field["name"]: _convert(parsed.get(field["name"]), _type_of(field)) for field in schema["fields"]}


def unknown_fields(value: bytes, schema: Schema) -> list[str]:
    """Returns the fields of a readable JSON object that the schema does not have: ``InvoiceLineItems[].Colour``."""
    return list(dict.fromkeys(_unknown(parse(value.decode(), DEEPEST), schema, "")))


def other_encoding(value: bytes) -> str | None:
    """Returns the reason of a JSON object in UTF-16 or UTF-32. Returns None for every other value.

    It looks only at the beginning of the value, which may have a byte order mark.
    """
    name = json.detect_encoding(value)
    text = value[:100].decode(name, "ignore")
    if name.startswith("utf-8") or not text.removeprefix("\ufeff").lstrip(_WHITE_SPACE).startswith("{"):
        return None
    return f"JSON in {name[:6].upper()}: send it in UTF-8"


def kind_of_other(value: bytes) -> str | None:
    """Returns the kind of a value in JSON that does not begin as an object. Returns None if it is not JSON.

    It looks at the first value and ignores most of the bytes after it, because the reason is only a hint.
    """
    text = value.decode("utf-8", "replace").lstrip(_WHITE_SPACE)
    try:
        parsed, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if depth(text[:end]) > DEEPEST:
        return None
    following = text[end : end + 1]
    if isinstance(parsed, Number) and following.strip(_WHITE_SPACE):
        return None
    is_word = parsed is None or isinstance(parsed, bool)
    # Like Jackson, refuse a word that goes on: "nullx".
    if is_word and following >= "0" and f"a{following}".isidentifier():
        return None
    return _kind(parsed)


def _mistake(error: json.JSONDecodeError) -> str:
    """Returns the place at which a text that starts as a JSON object stops being JSON, in words."""
    # For a text without a closing quote, Python names the start of this text.
    if error.pos == len(error.doc) or error.msg.startswith("Unterminated string"):
        return f"not JSON: the text ends before the object does, after {len(error.doc):,} characters"
    return f"not JSON: the mistake is at line {error.lineno}, column {error.colno}"


def _kind(value: Any) -> str:
    match value:
        case Number():
            return WHOLE if _is_whole(value) else OTHER_NUMBER
        case bool():
            return TRUE_OR_FALSE
        case None:
            return NULL
        case str():
            return TEXT_KIND
        case list():
            return LIST
        case _:
            return OBJECT


def _is_whole(number: str) -> bool:
    """Whether a number is written as a whole number. 1.0 and 1e0 are not."""
    digits = number.removeprefix("-")
    return digits.isdigit() and len(digits) <= _MOST_DIGITS


def _type_of(field: dict[str, Any]) -> Any:
    """Returns the Avro type of a field, without the null of a field that can be null."""
    return field["type"][1] if isinstance(field["type"], list) else field["type"]


def _name_of(avro_type: Any) -> str:
    return avro_type["type"] if isinstance(avro_type, dict) else str(avro_type)


def _misfits(record: dict[str, Any], schema: Schema, above: str) -> Iterator[str]:
    for field in schema["fields"]:
        value = record.get(field["name"])
        if value is not None:
            yield from _misfits_of(value, _type_of(field), above + field["name"])


def _misfits_of(value: Any, avro_type: Any, name: str) -> Iterator[str]:
    kind, type_name = _kind(value), _name_of(avro_type)
    accepted, in_words = _ACCEPTED[type_name]
    if kind not in accepted:
        yield f"{name} is {kind}, and must be {in_words}"
    elif (largest := _LARGEST.get(type_name)) and not -largest - 1 <= Decimal(value) <= largest:
        yield f"{name} is out of range: it must be from {-largest - 1:,} to {largest:,}"
    elif type_name == "double" and isinf(float(value)):
        yield f"{name} is too large for a number"
    elif type_name == "record":
        yield from _misfits(value, avro_type, f"{name}.")
    elif type_name == "array" and len(value) > MOST_LINE_ITEMS:
        yield Rule(name, FEW).reason
    elif type_name == "array":
        for element in value:
            yield from _misfits_of(element, avro_type["items"], f"{name}[]")


def _convert(value: Any, avro_type: Any) -> Any:
    """Converts a value of an accepted kind to its Avro type."""
    type_name = _name_of(avro_type)
    if value is None:
        return None
    if type_name in _LARGEST:
        return int(value)
    if type_name == "double":
        return float(value)
    if type_name == "record":
        return {field["name"]: _convert(value.get(field["name"]), _type_of(field)) for field in avro_type["fields"]}
    if type_name == "array":
        return [_convert(element, avro_type["items"]) for element in value]
    return str(value)


def _unknown(value: Any, record_type: Any, above: str) -> Iterator[str]:
    known = {field["name"]: _type_of(field) for field in record_type["fields"]}
    for name, inner in value.items():
        if name not in known:
            yield above + name
        elif inner and _name_of(known[name]) == "record":
            yield from _unknown(inner, known[name], f"{above}{name}.")
        elif inner and _name_of(known[name]) == "array":
            for element in inner:
                yield from _unknown(element, known[name]["items"], f"{above}{name}[].")
