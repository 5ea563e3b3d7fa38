"""Python functions of the value and the key of each record, as Spark columns."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from pipelines.columns.batch_reader import BatchReader
from pipelines.runtime.python_workers import freeze_at_second_task

if TYPE_CHECKING:
    Values: TypeAlias = pa.Array[Any]
else:  # Spark recognises a vectorised function by this type hint only.
    Values = pa.Array


class ValueFunction(Protocol):
    """Takes the value and the key of a record, and the record in the value if it is already read."""

    def __call__(self, value: bytes | None, key: bytes | None, read: Any = None, /) -> Any: ...


def call_for_each(
    value: Column,
    key: Column,
    reader: Callable[[], BatchReader],
    make: Callable[[], ValueFunction],
    result: T.StructType,
) -> Column:
    """A struct of what the function returns for each value and key.

    Args:
        reader, make: return the reader of the values, and the function. They are called for each Arrow batch, so they
            must return the same objects again.
        result: the names and types of the attributes of a returned object that the struct contains, at least two.
    """
    fields = list(to_arrow_schema(result))
    attributes = attrgetter(*result.names)

    def call(values: Values, keys: Values) -> Values:
        freeze_at_second_task()
        function, given = make(), values.to_pylist()
        each = zip(given, keys.to_pylist(), reader().read(given), strict=True)
        # Keep only the attributes. The records of all values would need much more memory than the values.
        rows = [attributes(function(*one)) for one in each]
        arrays = [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(fields)]
        return pa.StructArray.from_arrays(arrays, fields=fields)

    # Spark may otherwise call a function several times for each row, once for every use of its result.
    function: Any = arrow_udf(call, result).asNondeterministic()  # type: ignore[call-overload]  # narrow stubs
    column: Column = function(value, key)
    return column
