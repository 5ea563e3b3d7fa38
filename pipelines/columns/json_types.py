"""The types of JSON values as Spark columns.

Spark's JSON parser turns any JSON value into a text where the schema has a text: a list, an object, ``true``, 1.5. Here
only a whole number becomes a text, because simple tills send their InvoiceNumber as a number.
"""

from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from services.domain import json_rules

_WHOLE = r"BIGINT|DECIMAL\((?:19|[23]\d),0\)"
"""A whole number of up to 18 digits is a BIGINT. A DECIMAL of so few digits is 5003.0, and its text is another one."""
_FITS: dict[type[T.DataType], tuple[str, str]] = {
    T.StringType: (f"STRING|{_WHOLE}", "a text or a whole number"),
    T.LongType: (_WHOLE, "a whole number"),
    T.IntegerType: (_WHOLE, "a whole number"),
    T.DoubleType: (r"BIGINT|DECIMAL.*|FLOAT|DOUBLE", "a number"),
    T.ArrayType: ("ARRAY.*", "a list"),
    T.StructType: ("OBJECT.*", "an object"),
}
"""The kinds of JSON values (as ``schema_of_variant`` writes them) that a type accepts, and these kinds in words."""


def first_misfit(record: Column, of: T.StructType) -> Column:
    """The first field of a JSON object (a variant) with a value of the wrong type, in words; null if all fit."""
    return F.coalesce(*_misfits(record, of, ""))


def _misfits(record: Column, of: T.StructType, above: str) -> Iterator[Column]:
    for field in of.fields:
        value = F.try_variant_get(record, f"$.{field.name}", "variant")
        yield _misfit(value, field.dataType, above + field.name, or_null="|VOID")
        match field.dataType:
            case T.StructType() as inner:
                yield from _misfits(value, inner, f"{above}{field.name}.")
            case T.ArrayType(elementType=T.StructType() as inner):
                yield _first_of_elements(F.try_variant_get(value, "$", "array<variant>"), inner, above + field.name)


def _first_of_elements(elements: Column, of: T.StructType, name: str) -> Column:
    def check(element: Column) -> Column:
        return F.coalesce(_misfit(element, of, f"{name}[]"), *_misfits(element, of, f"{name}[]."))

    return F.get(F.filter(F.transform(elements, check), lambda misfit: misfit.isNotNull()), F.lit(0))


def _misfit(value: Column, of: T.DataType, name: str, or_null: str = "") -> Column:
    kind = F.coalesce(F.schema_of_variant(value), F.lit("VOID"))
    fits, in_words = _FITS[type(of)]
    other = F.concat(F.lit(f"{name} is "), kind_in_words(kind), F.lit(f", and must be {in_words}"))
    reason = F.when(~kind.rlike(f"^({fits}{or_null})$"), other)
    if isinstance(of, T.IntegralType):
        is_number = value.isNotNull() & (kind != "VOID")
        out_of_range = is_number & F.try_variant_get(value, "$", of.simpleString()).isNull()
        largest = 2 ** (31 if isinstance(of, T.IntegerType) else 63) - 1
        limits = f"it must be from {-largest - 1:,} to {largest:,}"
        return reason.when(out_of_range, F.lit(f"{name} is out of range: {limits}"))
    return reason


def kind_in_words(kind: Column) -> Column:
    """The kind of a JSON value, as ``schema_of_variant`` writes it, in words; null stays null."""
    return (
        F.when(kind == "STRING", F.lit(json_rules.TEXT_KIND))
        .when(kind == "BOOLEAN", F.lit(json_rules.TRUE_OR_FALSE))
        .when(kind == "VOID", F.lit(json_rules.NULL))
        .when(kind.startswith("ARRAY"), F.lit(json_rules.LIST))
        .when(kind.startswith("OBJECT"), F.lit(json_rules.OBJECT))
        .when(kind.rlike(f"^({_WHOLE})$"), F.lit(json_rules.WHOLE))
        .when(kind.isNotNull(), F.lit(json_rules.OTHER_NUMBER))
    )
