"""The Parquet sink on a local disk."""

from pathlib import Path

import pandas as pd
import pytest
from pyarrow import ArrowInvalid
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from structlog.testing import capture_logs

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries.export import move_undated
from pipelines.sinks.parquet import ParquetSink, overwrite_folders, remove_staging_folders


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


def test_a_new_checkpoint_writes_beside_the_older_rows_and_refuses_a_damaged_note_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With the number of the micro-batch alone, it would replace older rows. A disk can lose the end of a file."""
    rows = spark.sql("SELECT 1 AS value, DATE '2026-11-22' AS date, TIMESTAMP '2026-11-22 10:00:00' AS timestamp")
    told = []
    for checkpoint in ("first", "second"):
        with capture_logs() as lines:
            sink = ParquetSink(spark, str(tmp_path / "export"), str(tmp_path / checkpoint), {"value": "INT"})
        told.append(any("do not restart" in line["event"] for line in lines))
        sink.append(rows.withColumn("value", F.lit(len(checkpoint))), 0, "value")
    assert [False, True] == told
    written = spark.read.parquet(str(tmp_path / "export")).select("value", "batch").collect()
    assert {(5, 0), (6, 1)} == {tuple(row) for row in written}

    note = tmp_path / "second" / "adopted-table.json"
    note.write_text(note.read_text()[:20])
    # Before its first commit, a checkpoint writes the note again.
    Files(spark, str(tmp_path / "second")).write("commits/0", "v1")
    with pytest.raises(CheckpointMismatchError, match=r"second/adopted-table.json is damaged"):
        ParquetSink(spark, str(tmp_path / "export"), str(tmp_path / "second"), {"value": "INT"})


def test_undated_rows_of_release_0_1_get_a_date(spark: SparkSession, tmp_path: Path) -> None:
    """Pandas cannot read the old folder. An unfinished micro-batch writes its rows again. Rows of year 1 stay."""
    rows = spark.sql("SELECT id AS value, CAST(NULL AS DATE) AS date, id AS batch FROM range(3)")
    rows = rows.union(spark.sql("SELECT 9, DATE '2026-11-22', 1 UNION ALL SELECT 8, DATE '0001-01-01', 1"))
    overwrite_folders(rows, str(tmp_path), "value")
    with pytest.raises(ArrowInvalid, match="dictionaries with nulls"):
        pd.read_parquet(tmp_path)
    for log, batches in {"offsets": 3, "commits": 2}.items():
        (tmp_path / "_checkpoint" / log).mkdir(parents=True)
        for batch in range(batches):
            (tmp_path / "_checkpoint" / log / str(batch)).write_text("v1\n{}")

    for _ in range(2):
        move_undated(spark, str(tmp_path))

    history = pd.read_parquet(tmp_path)
    assert {(0, "0001-01-01"), (1, "0001-01-01"), (8, "0001-01-01"), (9, "2026-11-22")} == {
        (row.value, str(row.date)) for row in history.itertuples()
    }
    assert set(tmp_path.rglob("*.parquet")) == set(tmp_path.glob("date=*/batch=*/*.parquet"))
