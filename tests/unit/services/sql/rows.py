"""Line items for the tests of SQL, and the rows of an answer."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from services.sql import files
from services.sql.database import Database

MARCH = int(datetime(2027, 3, 31, 18, 30, tzinfo=UTC).timestamp() * 1000)


def at(year: int, month: int, day: int, hour: int = 12) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp() * 1000)


def rows(database: Database, statement: str) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in database.run(statement).columns), strict=True))


def line(number: str, item: str, value: float, **changes: Any) -> dict[str, Any]:
    """A line item as the export writes it."""
    own = {"InvoiceNumber": number, "ItemCode": item, "TotalValue": value, "ItemQty": 1, "StoreID": "S1"}
    return {**own, "CreatedTime": 1_790_000_000_000, "LineKind": "sale", "DateSource": "till", **changes}


def export(
    folder: Path, *lines: dict[str, Any], batch: int = 0, without: str = "", day: date = date(2026, 9, 21)
) -> None:
    names = [name for name in files.SCHEMA.names if name not in ("date", without)]
    schema = pa.schema([files.SCHEMA.field(name) for name in names])
    target = folder / f"date={day}" / f"batch={batch}"
    target.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist([*lines], schema), target / "part-0.parquet")
