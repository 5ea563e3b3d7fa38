"""Types of Spark columns."""

from pyspark.sql import types as T


def struct(**fields: str | T.DataType) -> T.StructType:
    """The type of a struct with these fields. A simple type is a name: string, binary, integer, long or boolean."""
    result = T.StructType()
    for name, kind in fields.items():
        result.add(name, kind)
    return result
