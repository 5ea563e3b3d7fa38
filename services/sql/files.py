"""The exported line items as an Arrow dataset, from Parquet or Delta."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from services.settings import Settings
from services.sql.arrow import record_fields

if TYPE_CHECKING:
    from deltalake import DeltaTable

_RECORD = "HadoopRecord"
SCHEMA = pa.schema(
    [*record_fields(_RECORD), pa.field("DateSource", pa.string()), pa.field("date", pa.date32())],
)
"""The columns of the files. Older files lack some, which are then null."""

_DELTA_LOG = "_delta_log"


class NoExportError(RuntimeError):
    """There are no exported files. The message says how to write them."""


def line_items(settings: Settings) -> ds.Dataset | None:
    """The exported line items, or None if there are none. DuckDB reads only the columns and files that it needs."""
    if table := delta_table(settings):
        return table.to_pyarrow_dataset(schema=SCHEMA)
    folder = settings.export_dir.removeprefix("file://")
    if not Path(folder).is_dir():
        return None
    dates = ds.HivePartitioning(pa.schema([SCHEMA.field("date"), pa.field("batch", pa.int64())]))
    found = ds.dataset(folder, schema=SCHEMA, format="parquet", partitioning=dates)
    return found if found.files else None


def delta_table(settings: Settings) -> "DeltaTable | None":
    """The exported Delta table, or None if the export has no table."""
    folder = settings.export_dir.removeprefix("file://")
    return open_delta(folder) if settings.export_format == "delta" or "://" not in folder else None


def open_delta(folder: str) -> "DeltaTable | None":
    """The Delta table in a folder, or None if there is none. The environment has the credentials of an object store."""
    if "://" not in folder and not (Path(folder) / _DELTA_LOG).is_dir():
        return None
    from deltalake import DeltaTable  # noqa: PLC0415  # its import takes 0.2 s
    from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

    try:
        return DeltaTable(folder.replace("s3a://", "s3://"))
    except TableNotFoundError:
        return None


def refuse(settings: Settings) -> Iterator[pa.RecordBatch]:
    """Raise NoExportError."""
    raise NoExportError(f"{settings.export_dir} has no exported files: run `loyalty export` first")
