"""Why a text that should be one JSON object is none, as Spark columns.

Spark's parsers only say that a text is not JSON. The patterns of ``services.domain.json_rules`` find the place.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from services.domain.json_rules import CLOSING, NOT_ONE_OBJECT, OPENING, READABLE, TEXT, VALID_BYTES

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
    bare = F.regexp_replace(text, TEXT, "")
    is_cut = F.regexp_count(bare, F.lit(OPENING)) > F.regexp_count(bare, F.lit(CLOSING))
    is_whole = F.length(readable) == F.length(text)
    twice = F.concat(F.lit("not clear: the field "), _given_twice(text), F.lit(" is given twice"))
    return (
        F.when(~is_whole, F.concat(F.lit("not JSON: the mistake is at "), _place_after(readable)))
        .when(is_cut, F.concat(F.lit("not JSON: the text ends before the object does, at "), _place_after(readable)))
        .otherwise(F.coalesce(twice, F.lit(NOT_ONE_OBJECT)))
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
