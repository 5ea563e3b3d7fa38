"""The exported line items as an Arrow dataset, from Parquet or Delta."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from services.errors import UserError
from services.settings import Settings
from services.sql.arrow import record_fields
from services.start_up import local_folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

_RECORD = "HadoopRecord"
SCHEMA = pa.schema(
    [*record_fields(_RECORD), pa.field("DateSource", pa.string()), pa.field("date", pa.date32())],
)
"""The columns of the files. A column that an older file does not have is null."""

_DELTA_LOG = "_delta_log"


def line_items(settings: Settings, schema: pa.Schema | None = SCHEMA) -> ds.Dataset | None:
    """The exported line items, or None if there are none. DuckDB reads only the columns and files that it needs.

    It ignores Parquet files outside of the folders that the export writes.

    Args:
        schema: the columns. None: those of the files.
    """
    if table := delta_table(settings):
        return table.to_pyarrow_dataset(schema=schema)
    folder = local_folder(settings.export_dir)
    found = sorted(map(str, folder.glob("date=*/batch=*/[!._]*.parquet"))) if folder else []
    if not found:
        return None
    dates = ds.HivePartitioning(pa.schema([SCHEMA.field("date"), pa.field("batch", pa.int64())]))
    return ds.dataset(found, schema=schema, format="parquet", partitioning=dates, partition_base_dir=str(folder))


def delta_table(settings: Settings) -> "DeltaTable | None":
    """The exported Delta table, or None if the export has no table."""
    folder = local_folder(settings.export_dir)
    if folder is None and settings.export_format != "delta":
        return None
    return open_delta(str(folder or settings.export_dir))


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


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock a local folder. Wait until no other process of this machine writes the table."""
    if "://" in folder:
        yield
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with Path(folder, ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def refuse(settings: Settings) -> Iterator[pa.RecordBatch]:
    """Raise UserError. Its message says why the exported files cannot be read, or that there are none."""
    try:
        line_items(settings)
    except Exception as error:
        raise UserError(f"the exported files in {settings.export_dir} cannot be read: {error}") from error
    if local_folder(settings.export_dir) is None and settings.export_format != "delta":
        raise UserError(
            f"the exported files in {settings.export_dir} cannot be read, because `loyalty sql` reads Parquet "
            "from local folders only: mount the file system, and set LOYALTY_EXPORT_DIR to its local folder"
        )
    raise UserError(
        f"{settings.export_dir} has no exported files: wait for the export of the pipeline (LOYALTY_EXPORT_INTERVAL), "
        "or run `loyalty export` if no pipeline exports to this folder"
    )
