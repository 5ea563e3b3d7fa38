"""The Parquet sink on a local disk."""

from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.sinks.parquet import overwrite_folders, remove_staging_folders


def test_folders_of_a_killed_process_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    """Rows and the checkpoint stay. A directory that does not exist yet is no error."""
    directory = tmp_path / "export"
    remove_staging_folders(spark, str(directory))
    rows = spark.sql("SELECT 1 AS value, DATE '2026-11-22' AS date, 7 AS batch")
    overwrite_folders(rows, str(directory), "value")
    staging = directory / ".spark-staging-0b1c" / "_temporary"
    staging.mkdir(parents=True)
    (staging / "part-0.parquet").write_bytes(b"half a file")
    (directory / "_checkpoint").mkdir()

    remove_staging_folders(spark, str(directory))

    left = {path.name for path in directory.iterdir() if path.suffix != ".crc"}
    assert {"_checkpoint", "date=2026-11-22"} == left - {"_SUCCESS"}
    assert 1 == spark.read.parquet(str(directory)).count()
