"""Python functions of the value and the key of each record, as Spark columns."""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from pipelines.columns.batch_reader import BatchReader
from pipelines.columns.python_workers import freeze_at_second_task

if TYPE_CHECKING:
    Values: TypeAlias = pa.Array[Any]
else:  # Spark recognises a vectorised function by this type hint only.
    Values = pa.Array


def call_for_each(
    value: Column,
    key: Column,
    name: str,
    known: Mapping[int, str],
    make: Callable[..., Any],
    result: T.StructType,
    *arguments: Hashable,
) -> Column:
    """A struct of what a function returns for each value and key.

    Args:
        name: of the Avro records in the values.
        known: the schemas that can have written a value, as JSON by their ids.
        make: makes the function from the further arguments and the known schemas. It must be a function of a module, so
            that a worker recognises it and calls it only once. The function that it makes takes the value and the key
            of a record, and the record in the value if it is already read.
        result: the names and types of the attributes of a returned object that the struct contains, at least two.
    """
    fields = list(to_arrow_schema(result))
    attributes = attrgetter(*result.names)
    schemas = tuple(known.items())

    def call(values: Values, keys: Values) -> Values:
        freeze_at_second_task()
        function, reader, given = _made(make, schemas, *arguments), _reader(name, schemas), values.to_pylist()
        each = zip(given, keys.to_pylist(), reader.read(given), strict=True)
        # Keep only the attributes. The records of all values would need much more memory than the values.
        rows = [attributes(function(*one)) for one in each]
        arrays = [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(fields)]
        return pa.StructArray.from_arrays(arrays, fields=fields)

    # Spark may otherwise call a function several times for each row, once for every use of its result.
    function: Any = arrow_udf(call, result).asNondeterministic()  # type: ignore[call-overload]  # narrow stubs
    column: Column = function(value, key)
    return column


# Spark calls ``call`` for each Arrow batch. These caches let a worker make each function and each reader only once.
@cache
def _made(make: Callable[..., Any], known: tuple[tuple[int, str], ...], *arguments: Hashable) -> Any:
    return make(*arguments, dict(known))


@cache
def _reader(name: str, known: tuple[tuple[int, str], ...]) -> BatchReader:
    return BatchReader(name, dict(known))
