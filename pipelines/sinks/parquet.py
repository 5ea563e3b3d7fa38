"""The Parquet sink: one folder for each date and micro-batch."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.checkpoints.reader import CheckpointReader
from pipelines.sinks.older_rows import OlderRows

log = structlog.get_logger()

ROWS_PER_FILE = 5_000_000
"""With this number of rows a file has about 128 MiB of zstd Parquet. Readers split their work by this size."""

_STAGING = ".spark-staging-"
_DATE, _BATCH = "date=", "batch="


class ParquetSink:
    """Writes micro-batches to folders of their own, each once.

    A new checkpoint numbers its micro-batches from 0 again. So the sink adds the first free number to each. It omits
    the rows that a new checkpoint reads again, by their keys.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: str,
        checkpoint: str,
        key: Mapping[str, str],
        repeated_within: timedelta = timedelta(0),
    ) -> None:
        """Raises CheckpointMismatchError for a new checkpoint, if the directory has rows without a key.

        Args:
            key: the columns that identify a row, with their types in SQL.
            repeated_within: see ``OlderRows``.
        """
        self._spark = spark
        self._directory = directory
        self._key = key
        self._checkpoint = checkpoint
        self._older = OlderRows(spark, checkpoint, key, self._find_next_batch, repeated_within)

    def _find_next_batch(self) -> int:
        require_keys(self._spark, self._directory, self._key)
        return self._newest() + 1

    def _newest(self, since: str = "") -> int:
        """The highest number of a folder, among the folders of the dates since this one. -1 if there is none."""
        files = Files(self._spark, self._directory)
        folders = (name for date in _dates(files) if date >= f"{_DATE}{since}" for name in files.names(date))
        batches = (int(name.removeprefix(_BATCH)) for name in folders if name.startswith(_BATCH))
        return max([-1, *batches])

    def newest_batch(self) -> int:
        """The number of the newest micro-batch of this checkpoint that the files have. -1 if they have none.

        It searches only the dates since the checkpoint planned its newest micro-batch, because a listing of all folders
        can take minutes. So it does not find a later micro-batch that has written only older dates.
        """
        planned = CheckpointReader(self._spark, self._checkpoint).planned_time()
        day = datetime.fromtimestamp(planned / 1000, UTC).date()
        return max(-1, self._newest(f"{day}") - self._older.next_batch)

    def append(self, rows: DataFrame, batch_id: int, *order: str) -> None:
        """Write the rows of a micro-batch, see ``overwrite_folders``.

        ``rows`` also has the append time of each record (``timestamp``), which is not written.
        """
        batch = self._older.next_batch + batch_id
        new = self._older.leave_out(rows, lambda: self._read_keys().where(F.col("batch") != batch))
        overwrite_folders(new.drop("timestamp").withColumn("batch", F.lit(batch)), self._directory, *order)

    def _read_keys(self) -> DataFrame:
        return _read(self._spark, self._directory, {**self._key, "date": "DATE", "batch": "INT"})


def _read(spark: SparkSession, directory: str, columns: Mapping[str, str]) -> DataFrame:
    return spark.read.schema(", ".join(map(" ".join, columns.items()))).parquet(directory)


def has_rows(spark: SparkSession, directory: str) -> bool:
    """Whether the directory has folders of this sink."""
    return bool(_dates(Files(spark, directory)))


def _dates(files: Files) -> list[str]:
    return [name for name in files.names() if name.startswith(_DATE)]


def require_keys(spark: SparkSession, directory: str, key: Mapping[str, str]) -> None:
    """Raise CheckpointMismatchError if the directory has a row without a key."""
    if not has_rows(spark, directory):
        return
    log.info(
        "the export reads the keys of all files: do not restart, because a restart repeats the work from the beginning",
        folder=directory,
    )
    if _read(spark, directory, key).where(" OR ".join(f"{column} IS NULL" for column in key)).head(1):
        raise CheckpointMismatchError(
            f"{directory} has files without the column {', '.join(key)}, which an older release wrote: the export "
            "cannot tell which records they have, and would write some twice. Choose a new LOYALTY_EXPORT_DIR, or "
            "restore the old checkpoint"
        )


def overwrite_folders(rows: DataFrame, directory: str, *order: str) -> None:
    """Write rows to ``date=…/batch=…/`` under the directory, by their columns ``date`` and ``batch``.

    Replaces only the folders of these rows. A replayed micro-batch has the same rows, and replaces its first attempt.
    So readers see each row once without Spark's metadata. Sorts each file by date and ``order``.
    """
    (
        rows.repartition("date")
        .sortWithinPartitions("date", *order)
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .option("compression", "zstd")
        .option("maxRecordsPerFile", ROWS_PER_FILE)
        .partitionBy("date", "batch")
        .parquet(directory)
    )


def remove_staging_folders(spark: SparkSession, directory: str) -> None:
    """Remove the hidden folders to which killed processes wrote.

    Spark writes there first, and never removes them later.
    """
    files = Files(spark, directory)
    for name in files.names():
        if name.startswith(_STAGING):
            files.delete(name)
