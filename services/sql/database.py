"""DuckDB in this process: the sources as tables, the catalogue as views, and statements on them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import duckdb
import pyarrow as pa

from schemas import topics
from services.errors import UserError
from services.settings import Settings
from services.sql import files, ledger
from services.sql.arrow import LazyTable, Read
from services.sql.catalogue import LINE_ITEMS, MACROS, TABLES
from services.sql.topics import TopicSource, table_name

_CONFIGURATION: Mapping[str, Any] = {
    # A statement must not start a download. Names of Python variables must not be table names.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_SETTINGS = (
    # Times of the tables are in UTC. Without this, now() and current_date have the time zone of the machine.
    "TimeZone = 'UTC'",
    "allowed_directories = ['.']",
    "enable_external_access = false",
    "lock_configuration = true",
)
_POLL_SECONDS = 0.1
_BLOCKING_OPERATORS = ("AGGREGATE", "GROUP_BY", "WINDOW", "ORDER_BY", "TOP_N", "LIMIT", "DISTINCT")
"""Parts of the names in DuckDB's plan of the operators that need all records."""


class SqlError(UserError):
    """DuckDB refuses a statement. The message says why."""


class Database:
    """Tables over the files, the ledger and the topics of the settings. It reads a source when a statement scans it.

    A statement can also read files below the working directory. It cannot read other files and cannot use the network.
    """

    def __init__(self, settings: Settings, on_read: Callable[[str], None] = lambda _: None) -> None:
        """Create the tables and views. It reads no source yet.

        Args:
            on_read: is called with the name of a table of the ledger or of a topic before it is read. Exported files
                have no names and no cards, and anybody who can read the folder can read them without this program.
        """
        self._on_read = on_read
        self._interrupted = Event()
        self._topics = {table_name(topic): TopicSource(topic, settings, self._interrupted) for topic in topics.ALL}
        sources: list[tuple[str, pa.Schema, Read]] = [
            *((name, source.schema, source.read) for name, source in self._topics.items()),
            *(
                (each.name, ledger.ledger_schema(each), partial(ledger.read_table, each, settings))
                for each in ledger.TABLES
            ),
            ("customer_keys", ledger.KEY_SCHEMA, partial(ledger.read_customer_keys, settings)),
        ]
        self._lazy = {
            name: LazyTable(schema, read, self._interrupted, partial(on_read, name)) for name, schema, read in sources
        }
        # DuckDB writes what does not fit into memory to files. They can have cards, so only this user may read them.
        self._spilled = TemporaryDirectory(prefix="loyalty-sql-")
        self._connection = duckdb.connect(":memory:", config={**_CONFIGURATION, "temp_directory": self._spilled.name})
        self._settings = settings
        self._lazy[LINE_ITEMS.name] = LazyTable(files.SCHEMA, partial(files.refuse, settings), self._interrupted)
        for name, lazy in self._lazy.items():
            self._connection.register(name, lazy)
        for macro in MACROS:
            self._connection.execute(macro)
        for view in filter(lambda table: table.sql, TABLES):
            self._connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
        for setting in _SETTINGS:
            self._connection.execute(f"SET {setting}")

    def close(self) -> None:
        self._connection.close()
        self._spilled.cleanup()

    def run(self, statement: str) -> pa.Table:
        """The result of a statement, or of the last of several.

        Ctrl-C ends the statement. Raises SqlError, and the error of a source that cannot be read.
        """
        self._begin()
        for source in self._topics.values():
            source.skipped.clear()
        return self._run(statement)

    @property
    def skipped(self) -> dict[str, Mapping[str, int]]:
        """Topics with records that the last statement could not decode, and the number of records by reason."""
        return {name: dict(source.skipped) for name, source in self._topics.items() if source.skipped}

    def columns(self) -> dict[str, list[tuple[str, str]]]:
        """The columns of every table, with their types."""
        rows = self._connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in rows:
            found.setdefault(table, []).append((column, kind))
        return dict(sorted(found.items()))

    def follow(self, statement: str) -> Iterator[pa.Table]:
        """The results of a statement on the records that arrive in its topic from now on. It is empty if none arrived.

        Raises SqlError, also for a statement that reads no topic or several, or that needs all records at once.
        """
        self._begin()
        self._require_one_select(statement)
        plan = self._run(f"EXPLAIN (FORMAT json) {statement}").column(1)[0].as_py()
        followed = [name for name in self._topics if self._lazy[name].planned]
        if len(followed) != 1:
            raise SqlError(f"a statement with --follow must read exactly one topic, and this one reads {len(followed)}")
        operators = _operators(json.loads(plan))
        if blocking := sorted(name for name in operators if any(each in name for each in _BLOCKING_OPERATORS)):
            raise SqlError(
                f"a statement with --follow can select and filter. This one needs all records first ({blocking[0]}): "
                "leave out aggregates, DISTINCT, ORDER BY and LIMIT"
            )
        self._on_read(followed[0])
        for arrived in self._topics[followed[0]].follow():
            self._lazy[followed[0]].replace(arrived)
            yield self._run(statement)

    def _require_one_select(self, statement: str) -> None:
        try:
            kinds = [each.type for each in self._connection.extract_statements(statement)]
        except duckdb.Error as error:
            raise SqlError(str(error)) from error
        if kinds != [duckdb.StatementType.SELECT]:
            raise SqlError(
                "--follow runs its statement for each batch of records, so it needs one SELECT statement: leave out "
                "other statements and COPY"
            )

    def _begin(self) -> None:
        """Make the next statement read the sources as they are now. This method lists the exported files."""
        self._interrupted.clear()
        for lazy in self._lazy.values():
            lazy.forget()
        exported: object = self._lazy[LINE_ITEMS.name]
        # A statement that does not read line items works without them. For others, the lazy table raises the error.
        with suppress(Exception):
            exported = files.line_items(self._settings) or exported
        # After an error in a transaction, DuckDB accepts only ROLLBACK. Its error for the user's statement says so.
        with suppress(duckdb.TransactionException):
            self._connection.register(LINE_ITEMS.name, exported)

    def _run(self, statement: str) -> pa.Table:
        try:
            return _with_texts(_with_unique_names(self._execute(statement)))
        except duckdb.Error as error:
            # DuckDB passes on only the text of the error of a source.
            source_error = next((lazy.failure for lazy in self._lazy.values() if lazy.failure), None)
            raise source_error or SqlError(f"{error}{_hint(str(error))}") from error

    def _execute(self, statement: str) -> pa.Table:
        """The result in DuckDB's types. Another thread runs the statement: inside DuckDB, Python handles no Ctrl-C."""
        ended = Event()

        def find() -> pa.Table:
            try:
                relation: duckdb.DuckDBPyRelation | None = self._connection.sql(statement)
                return pa.table({}) if relation is None else relation.to_arrow_table()
            finally:
                ended.set()

        pool = ThreadPoolExecutor(1)
        try:
            result = pool.submit(find)
            # The waits are short: Python raises a Ctrl-C that arrives just before a wait only after the wait.
            while not ended.wait(_POLL_SECONDS):
                pass
            return result.result()
        except KeyboardInterrupt:
            self._interrupted.set()
            # DuckDB ignores an interrupt that arrives before the statement begins, so repeat it.
            while not ended.wait(_POLL_SECONDS):
                self._connection.interrupt()
            raise
        finally:
            pool.shutdown()


def _hint(error: str) -> str:
    is_file = re.search(r"Table with name \S*/", error)
    return (
        "\nA statement can read files below the working directory only (docs/reference/tables.md)." if is_file else ""
    )


def _with_unique_names(table: pa.Table) -> pa.Table:
    """The same columns with unique names, because JSON and Parquet need them: a second ``a`` becomes ``a_1``."""
    taken, names = set(table.column_names), []
    for name in table.column_names:
        if name in names:
            name = next(each for number in count(1) if (each := f"{name}_{number}") not in taken)  # noqa: PLW2901
            taken.add(name)
        names.append(name)
    return table.rename_columns(names)


def _with_texts(table: pa.Table) -> pa.Table:
    """The same columns with intervals as texts, because neither Parquet nor JSON has intervals."""
    for number, field in enumerate(table.schema):
        if pa.types.is_interval(field.type):
            texts = [value and interval_text(*value) for value in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    return table


def interval_text(months: int, days: int, nanoseconds: int) -> str:
    sign, seconds = "-" * (nanoseconds < 0), timedelta(microseconds=abs(nanoseconds) // 1000)
    parts = [f"{months} months"] * bool(months) + [f"{days} days"] * bool(days)
    return " ".join([*parts, *[f"{sign}{seconds}"] * (bool(seconds) or not parts)])


def _operators(plan: Any) -> Iterator[str]:
    for node in plan:
        yield node["name"]
        yield from _operators(node["children"])
