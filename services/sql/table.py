"""Defines a table for analysts: its name, its grain, its columns with units, and its query."""

from dataclasses import dataclass

POINTS, MONEY = "DECIMAL(21,2)", "DECIMAL(38,2)"
"""The types of points and of sums of money or points."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its type in SQL, and its meaning with the unit."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table for analysts.

    Attributes:
        grain: what one row stands for.
        source: where the rows come from.
        sql: the query of the view. Empty: the table is a source itself.
        key: the columns that identify a row, if the source deletes old records. The files of the table keep the rows of
            deleted records. Empty: the source keeps all records.
        counts: for tables with a key: a column with a number of records. Of two rows with the same key, the row with
            the smaller number was computed after some records had expired.
        day: for tables of history without a key: a column with a date or a time. If all rows of a day disappear, the
            source is damaged, or somebody has deleted them.
    """

    name: str
    grain: str
    source: str
    columns: tuple[Column, ...]
    sql: str = ""
    key: tuple[str, ...] = ()
    counts: str = ""
    day: str = ""
