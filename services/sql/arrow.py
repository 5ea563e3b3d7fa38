"""Arrow types of Avro records, and tables that DuckDB reads through Arrow when a statement scans them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from threading import Event, Lock
from typing import Any

import pyarrow as pa

import schemas

_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
}
BATCH_ROWS = 10_000

Row = dict[str, Any]
Read = Callable[[], Iterable[pa.RecordBatch]]
"""Reads all rows of a table."""


def record_fields(name: str) -> "list[pa.Field[Any]]":
    """The Arrow fields of the newest schema of an Avro record. Decimals keep their precision and scale."""
    named: dict[str, pa.DataType] = {}
    return [pa.field(field["name"], _arrow_type(field["type"], named)) for field in schemas.current(name)["fields"]]


def _arrow_type(avro: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    match avro:
        case list():  # a union with null: every Arrow field can be null
            return next(_arrow_type(each, named) for each in avro if each != "null")
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            return pa.decimal128(precision, scale)
        case {"type": "array", "items": items}:
            return pa.list_(_arrow_type(items, named))
        case {"type": "record", "name": name, "fields": fields}:
            named[name] = pa.struct([pa.field(each["name"], _arrow_type(each["type"], named)) for each in fields])
            return named[name]
        case {"type": inner}:
            return _arrow_type(inner, named)
    return named[avro] if avro in named else _TYPES[avro]


def batches(rows: Iterable[Row], schema: pa.Schema, refused: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Arrow batches of rows.

    Args:
        refused: is called for each row with a value that its column cannot store. The batches omit the row.
    """
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == BATCH_ROWS:
            yield from _valid(waiting, schema, refused)
            waiting.clear()
    yield from _valid(waiting, schema, refused)


def _valid(rows: Sequence[Row], schema: pa.Schema, refused: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    try:
        yield pa.RecordBatch.from_pylist(rows, schema)
    except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError):
        # Arrow does not say which row it refuses. So split the rows into halves until only that row is left.
        if len(rows) == 1:
            refused()
            return
        middle = len(rows) // 2
        yield from _valid(rows[:middle], schema, refused)
        yield from _valid(rows[middle:], schema, refused)


class LazyTable:
    """A table that is read when a statement scans it, and at most once in a statement, also if the read fails.

    DuckDB calls the methods of Arrow's PyCapsule interface: ``__arrow_c_schema__`` to plan, ``__arrow_c_stream__`` to
    scan.

    Attributes:
        planned: whether a statement that DuckDB has planned since ``forget`` scans the table.
        failure: the error of the last read. DuckDB passes on only the text of an error.
    """

    def __init__(
        self,
        schema: pa.Schema,
        read: Read,
        interrupted: Event,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the table. It reads nothing yet.

        Args:
            read: is called when a statement scans the table.
            interrupted: stops a read, because nobody waits for the rows any more.
            on_read: is called before each read. An error that it raises prevents the read.
        """
        self.schema = schema
        self.planned = False
        self.failure: Exception | None = None
        self._read = read
        self._interrupted = interrupted
        self._on_read = on_read
        self._table: pa.Table | None = None
        self._lock = Lock()

    def __arrow_c_schema__(self) -> object:
        self.planned = True
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with self._lock:  # DuckDB scans a table in several threads if a statement names it several times
            if self.failure:
                raise self.failure
            if self._table is None:
                try:
                    self._on_read()
                    found = takewhile(lambda _: not self._interrupted.is_set(), self._read())
                    self._table = pa.Table.from_batches(list(found), self.schema)
                except Exception as error:
                    self.failure = error
                    raise
        return self._table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def replace(self, found: Iterable[pa.RecordBatch]) -> None:
        """Use these rows for all scans until ``forget``."""
        self._table = pa.Table.from_batches(list(found), self.schema)

    def forget(self) -> None:
        """Read again at the next scan."""
        self._table, self.failure, self.planned = None, None, False
