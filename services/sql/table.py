"""What a table for analysts is: its name, its grain, its columns with units, and its query."""

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
        grain: what one row is.
        source: where the rows come from.
        sql: the query of the view. Empty: the table is a source itself.
        key: the columns that identify a row, if the source forgets records: the files of the table keep such rows.
            Empty: the source keeps everything.
        counts: of tables with a key, the column that only grows. A row computed from fewer records has less.
    """

    name: str
    grain: str
    source: str
    columns: tuple[Column, ...]
    sql: str = ""
    key: tuple[str, ...] = ()
    counts: str = ""
