"""The rules of a value in JSON.

Release 0.1 read JSON with the parser of Spark. Its limits, which are those of Jackson, are rules here.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from math import isinf
from typing import Any, NoReturn

Schema = dict[str, Any]
"""A parsed Avro schema of type record."""

BEGINS_AS_OBJECT = r"^[ \t\r\n]*\{"
"""No framed Avro value starts like this."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# One half of a surrogate pair is no character. It cannot be written in UTF-8.
# Escapes are read from the left, because a backslash before "u" can be itself escaped.
_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"
LONE_SURROGATE = rf"^(?:[^\\]++|{_PAIR}|(?!{_HALF})\\[\s\S])*+{_HALF}"

# The patterns that find the place of a mistake. JSON nests, and a pattern does not count brackets, so they find every
# mistake except a bracket or a name that is out of place.
# All repetitions are possessive (*+), so no text makes them try again.
_BLANKS = r"[ \t\r\n]*+"
_TEXT_BODY = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+'
TEXT = f'{_TEXT_BODY}"'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_SCALAR = rf"{TEXT}|{_NUMBER}|(?:true|false|null)(?![A-Za-z0-9_])"
_NAME = rf"{TEXT}{_BLANKS}:"
_A_VALUE = r'(?=["\{\[0-9tfn-])'
_PARTS = "|".join(
    (
        rf'\{{{_BLANKS}(?=["}}])',
        rf"\[{_BLANKS}(?:(?=\])|{_A_VALUE})",
        rf"(?:{_NAME}|,){_BLANKS}{_A_VALUE}",
        rf"(?:{_SCALAR}|[\}}\]]){_BLANKS}(?=[,\]\}}]|\Z)",
    )
)
"""The parts of JSON, each with a lookahead for the characters that may follow it."""
READABLE = rf"^{_BLANKS}(?:(?:{_PARTS}){_BLANKS})*+(?:(?:{_NAME}|{_SCALAR}|[\{{\}}\[\],]){_BLANKS}|{_TEXT_BODY})?+"
"""The part of a text before its first mistake."""
OPENING, CLOSING = r"[\{\[]", r"[\}\]]"
# The end of the value ends a text, too. A pattern that needs the last quote tries again at each escaped quote of a text
# that is cut off, for minutes in 64 KiB.
_ANY_TEXT = r'"(?:[^"\\]++|\\[\s\S])*+(?:"|\\?\Z)'

# A name that a reason can repeat in one line.
ORDINARY_NAME = r"^[A-Za-z0-9_.\[\] -]{1,64}(?![\s\S])"

NO_VALUE = "no value"
EMPTY = "an empty value"
HAS_BYTE_ORDER_MARK = "a byte order mark is before the JSON: send UTF-8 without it"
NO_INVOICE = "neither a JSON object nor Avro in the Confluent framing (a byte 0 and a schema id)"
HALF_OF_A_PAIR = "half of a surrogate pair (\\uD800 to \\uDFFF) is no character"
NOT_ONE_OBJECT = (
    "not one JSON object: something follows it, a bracket or a name is out of place, a field is given twice, a number "
    "has too many digits, or it is nested too deeply"
)

TEXT_KIND, TRUE_OR_FALSE, NULL = "a text", "true or false", "null"
LIST, OBJECT, WHOLE = "a list", "an object", "a whole number"
OTHER_NUMBER = "a number with a point, an exponent or more than 38 digits"
FITTING = {
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
LARGEST = {"int": 2**31 - 1, "long": 2**63 - 1}

_MOST_DIGITS = 38
_LONGEST_NUMBER = 1000
_LONGEST_NAME = 50_000
_DEEPEST = 1000
_OPENING_OR_CLOSING = re.compile(rf"{_ANY_TEXT}|({OPENING})|{CLOSING}")


class NotReadableError(ValueError):
    """A value is no JSON object of a schema. The message is the reason in the dead letter."""


def out_of_range(field: str, largest: int) -> str:
    """The reason of a number that its field cannot hold."""
    return f"{field} is out of range: it must be from {-largest - 1:,} to {largest:,}"


def misfit(field: str, kind: str, of: str) -> str:
    """The reason of a value of the wrong kind. ``of`` is an Avro type."""
    return f"{field} is {kind}, and must be {FITTING[of][1]}"


def read_object(value: bytes, schema: Schema) -> dict[str, Any]:
    """Reads a value that begins as a JSON object into the fields of a schema. Raises NotReadableError."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise NotReadableError(f"not UTF-8: byte {error.start + 1} is {value[error.start]:02X}") from None
    if "\\u" in text and re.search(LONE_SURROGATE, text):
        raise NotReadableError(HALF_OF_A_PAIR)
    try:
        parsed = _parse(text, _DEEPEST - 1)
    except ValueError:
        raise NotReadableError(mistake(text)) from None
    if reason := next(_misfits(parsed, schema, ""), None):
        raise NotReadableError(reason)
    return {field["name"]: _as(parsed.get(field["name"]), _type_of(field)) for field in schema["fields"]}


def unknown_fields(value: bytes, schema: Schema) -> list[str]:
    """The fields of a readable JSON object that the schema does not have, such as ``InvoiceLineItems[].Colour``."""
    return list(dict.fromkeys(_unknown(_parse(value.decode(), _DEEPEST), schema, "")))


def other_encoding(value: bytes) -> str | None:
    """The reason of a value that begins as a JSON object in UTF-16 or UTF-32, with a byte order mark or without it."""
    name = json.detect_encoding(value)
    text = value[:100].decode(name, "ignore")
    if name.startswith("utf-8") or not re.match(BEGINS_AS_OBJECT, text.removeprefix("\ufeff")):
        return None
    return f"JSON in {name[:6].upper()}: send it in UTF-8"


def kind_of_other(value: bytes) -> str | None:
    """The kind of a value in JSON that does not begin as an object, or None if it is no JSON.

    It looks at the first value and ignores most bytes after it, because the reason is only a hint.
    """
    text = value.decode("utf-8", "replace")
    start = len(text) - len(text.lstrip(" \t\r\n"))
    if not text[start:]:
        return None
    try:
        parsed, end = _decoder(_Object).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if _depth(text[start:end]) > _DEEPEST:
        return None
    following = text[end : end + 1]
    if isinstance(parsed, _Number) and following not in ("", " ", "\t", "\r", "\n"):
        return None
    is_word = parsed is None or isinstance(parsed, bool)
    if is_word and following >= "0" and (following == "$" or f"a{following}".isidentifier()):
        return None
    return _kind(parsed)


def mistake(text: str) -> str:
    """Why a text that starts as a JSON object is no JSON object: its first mistake, in words."""
    found = re.match(READABLE, text)
    readable = found[0] if found else ""
    if len(readable) < len(text):
        return f"not JSON: the mistake is at {_place_after(readable)}"
    bare = re.sub(_ANY_TEXT, "", text)
    if len(re.findall(OPENING, bare)) > len(re.findall(CLOSING, bare)):
        return f"not JSON: the text ends before the object does, at {_place_after(readable)}"
    twice = _given_twice(text)
    return f"not clear: the field {twice} is given twice" if twice else NOT_ONE_OBJECT


def _place_after(text: str) -> str:
    """Line and column of the character that follows the text, each from 1."""
    *before, last_line = text.split("\n")
    return f"line {len(before) + 1}, column {len(last_line) + 1}"


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """The names and values of an object. A name can occur twice."""


class _Object(dict[str, Any]):
    """An object in which each name occurs once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs) or any(len(name) > _LONGEST_NAME for name in self):
            raise ValueError("a name is given twice, or is too long")


def _decoder(objects: Any) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=objects, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant
    )


def _number(text: str) -> _Number:
    if len(text) > _LONGEST_NUMBER and sum(map(str.isdigit, text)) > _LONGEST_NUMBER:
        raise ValueError("too many digits")
    return _Number(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _parse(text: str, deepest: int) -> Any:
    """The JSON object of a text. Raises ValueError."""
    # Few values have so many brackets. So the depth is rarely counted.
    if text.count("{") + text.count("[") > deepest and _depth(text) > deepest:
        raise ValueError("nested too deeply")
    with _enough_recursion():
        return _decoder(_Object).decode(text)


@contextmanager
def _enough_recursion() -> Iterator[None]:
    """Let Python's parser read values that are nested as deeply as Jackson allows. It counts each level as a call."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 3 * _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _depth(text: str) -> int:
    depth = deepest = 0
    for found in _OPENING_OR_CLOSING.finditer(text):
        if not found[0].startswith('"'):
            depth += 1 if found[1] else -1
            deepest = max(deepest, depth)
    return deepest


def _given_twice(text: str) -> str | None:
    """The first field that an invoice has twice. None if there is none, or if a reason cannot repeat its name."""
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        with _enough_recursion():
            pairs, _ = _decoder(_Pairs).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    last = dict(pairs)
    items = last.get("InvoiceLineItems")
    places = [("", pairs), ("DeliveryAddress.", last.get("DeliveryAddress"))]
    # An object is a list of pairs here.
    places += [("InvoiceLineItems[].", item) for item in (items if type(items) is list else ())]
    for above, each in places:
        if isinstance(each, _Pairs) and (name := _name_given_twice(each)) is not None:
            return above + name if re.search(ORDINARY_NAME, above + name) else None
    return None


def _name_given_twice(pairs: _Pairs) -> str | None:
    return next((first for first, second in pairwise(sorted(name for name, _ in pairs)) if first == second), None)


def _kind(value: Any) -> str:
    match value:
        case _Number():
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
    """The Avro type of a field that can be null."""
    return field["type"][1] if isinstance(field["type"], list) else field["type"]


def _name_of(of: Any) -> str:
    return of["type"] if isinstance(of, dict) else str(of)


def _misfits(record: dict[str, Any], schema: Schema, above: str) -> Iterator[str]:
    for field in schema["fields"]:
        value, of = record.get(field["name"]), _type_of(field)
        if value is not None:
            yield from _misfits_of(value, of, above + field["name"])


def _misfits_of(value: Any, of: Any, name: str) -> Iterator[str]:
    kind, type_name = _kind(value), _name_of(of)
    if kind not in FITTING[type_name][0]:
        yield misfit(name, kind, type_name)
    elif (largest := LARGEST.get(type_name)) and not -largest - 1 <= Decimal(value) <= largest:
        yield out_of_range(name, largest)
    elif type_name == "double" and isinf(float(value)):
        yield f"{name} is too large for a number"
    elif type_name == "record":
        yield from _misfits(value, of, f"{name}.")
    elif type_name == "array":
        for element in value:
            yield from _misfits_of(element, of["items"], f"{name}[]")


def _as(value: Any, of: Any) -> Any:
    """Converts a value of a fitting kind to its Avro type."""
    type_name = _name_of(of)
    if value is None:
        return None
    if type_name in LARGEST:
        return int(value)
    if type_name == "double":
        return float(value)
    if type_name == "record":
        return {field["name"]: _as(value.get(field["name"]), _type_of(field)) for field in of["fields"]}
    if type_name == "array":
        return [_as(element, of["items"]) for element in value]
    return str(value)


def _unknown(value: Any, of: Any, above: str) -> Iterator[str]:
    known = {field["name"]: _type_of(field) for field in of["fields"]}
    for name, inner in value.items():
        if name not in known:
            yield above + name
        elif inner and _name_of(known[name]) == "record":
            yield from _unknown(inner, known[name], f"{above}{name}.")
        elif inner and _name_of(known[name]) == "array":
            for element in inner:
                yield from _unknown(element, known[name]["items"], f"{above}{name}[].")
