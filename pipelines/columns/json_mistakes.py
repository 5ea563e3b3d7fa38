"""Why a text that should be one JSON object is none, as Spark columns.

Spark's parsers only say that a text is not JSON. The patterns here find the place. JSON nests, and a pattern does not
count brackets, so they find every mistake except a bracket or a name that is out of place.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

# All repetitions are possessive (*+). Java matches these in a loop, and others by a call for each character.
_BLANKS = r"[ \t\r\n]*+"
_TEXT_BODY = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+'
_TEXT = f'{_TEXT_BODY}"'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_SCALAR = rf"{_TEXT}|{_NUMBER}|(?:true|false|null)(?![A-Za-z0-9_])"
_NAME = rf"{_TEXT}{_BLANKS}:"
_A_VALUE = r'(?=["\{\[0-9tfn-])'
_PARTS = "|".join(
    (
        rf'\{{{_BLANKS}(?=["}}])',
        rf"\[{_BLANKS}(?:(?=\])|{_A_VALUE})",
        rf"(?:{_NAME}|,){_BLANKS}{_A_VALUE}",
        rf"(?:{_SCALAR}|[\}}\]]){_BLANKS}(?=[,\]\}}]|\Z)",
    )
)
"""The parts of JSON, each with a look at what may follow it."""
READABLE = rf"^{_BLANKS}(?:(?:{_PARTS}){_BLANKS})*+(?:(?:{_NAME}|{_SCALAR}|[\{{\}}\[\],]){_BLANKS}|{_TEXT_BODY})?+"
"""The part of a text before its first mistake. The last part in it is whole, but something wrong follows it."""

VALID_BYTES = (
    r"^(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*+"
)
"""The bytes before the first one that is not UTF-8, each byte as the character of its number (ISO-8859-1)."""

_ORDINARY_NAME = r"^[\w.\[\] -]{1,64}$"


def not_utf8(value: Column) -> Column:
    """Why bytes are not UTF-8: the first wrong byte, and its place."""
    valid = F.regexp_extract(F.decode(value, "ISO-8859-1"), VALID_BYTES, 0)
    place = F.length(valid) + 1
    return F.concat(F.lit("not UTF-8: byte "), place, F.lit(" is "), F.hex(F.substring(value, place, F.lit(1))))


def mistake(text: Column) -> Column:
    """Why a text that starts as a JSON object is no JSON object: its first mistake, in words. It is never null."""
    readable = F.regexp_extract(text, READABLE, 0)
    # Brackets in a text are not those of JSON.
    bare = F.regexp_replace(text, _TEXT, "")
    is_cut = F.regexp_count(bare, F.lit(r"[\{\[]")) > F.regexp_count(bare, F.lit(r"[\}\]]"))
    is_whole = F.length(readable) == F.length(text)
    twice = F.concat(F.lit("not clear: the field "), _given_twice(text), F.lit(" is given twice"))
    return (
        F.when(~is_whole, F.concat(F.lit("not JSON: the mistake is at "), _place_after(readable)))
        .when(is_cut, F.concat(F.lit("not JSON: the text ends before the object does, at "), _place_after(readable)))
        .otherwise(F.coalesce(twice, F.lit(_OTHER)))
    )


_OTHER = (
    "not one JSON object: something follows it, a bracket or a name is out of place, a field is given twice, a number "
    "has too many digits, or it is nested too deeply"
)


def _place_after(text: Column) -> Column:
    """Line and column of the character that follows the text, each from 1."""
    breaks = F.length(text) - F.length(F.replace(text, F.lit("\n"), F.lit("")))
    last_line = F.substring_index(text, "\n", -1)
    return F.concat(F.lit("line "), breaks + 1, F.lit(", column "), F.length(last_line) + 1)


def _given_twice(text: Column) -> Column:
    """The first field that an invoice has twice; null if there is none, or if its name is no ordinary one."""
    parts = F.from_json(text, "DeliveryAddress string, InvoiceLineItems array<string>")
    items = F.transform(parts.getField("InvoiceLineItems"), _name_given_twice)
    names = {
        "": _name_given_twice(text),
        "DeliveryAddress.": _name_given_twice(parts.getField("DeliveryAddress")),
        "InvoiceLineItems[].": F.get(F.filter(items, lambda name: name.isNotNull()), F.lit(0)),
    }
    found = F.coalesce(*(F.concat(F.lit(above), name) for above, name in names.items()))
    return F.when(found.rlike(_ORDINARY_NAME), found)


def _name_given_twice(json_object: Column) -> Column:
    """A name that an object has twice; null if all differ."""
    start = F.struct(F.lit(None).cast("string").alias("last"), F.lit(None).cast("string").alias("twice"))

    def compare(seen: Column, name: Column) -> Column:
        twice = F.coalesce(seen.getField("twice"), F.when(seen.getField("last") == name, name))
        return F.struct(name.alias("last"), twice.alias("twice"))

    names = F.sort_array(F.json_object_keys(json_object))
    return F.aggregate(names, start, compare, lambda seen: seen.getField("twice"))
