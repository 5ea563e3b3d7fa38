"""The Parquet sink: one folder for each date and micro-batch."""

from pyspark.sql import DataFrame, SparkSession

from pipelines.checkpoints.files import Files

ROWS_PER_FILE = 5_000_000
"""Keeps a file of the hadoop topic's rows near 128 MiB of zstd Parquet, the size by which readers split work."""

_STAGING = ".spark-staging-"


def overwrite_folders(rows: DataFrame, directory: str, *order: str) -> None:
    """Write rows to ``date=…/batch=…/`` under the directory, by their columns ``date`` and ``batch``.

    Replaces the folders that the rows belong to and no others. A replayed micro-batch has the same rows and replaces
    its first attempt, so readers see each row once without Spark's metadata. Sorts each file by date and ``order``.
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
    """Remove what a killed process has left. Spark writes to a hidden folder first, and never removes it later."""
    files = Files(spark, directory)
    for name in files.names():
        if name.startswith(_STAGING):
            files.delete(name)
