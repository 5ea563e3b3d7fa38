"""The folder of the export with another checkpoint than the one that wrote its files."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from pipelines.checkpoints.files import Files
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries.export import _open_sink, forget_progress
from pipelines.sinks.delta import DeltaSink
from pipelines.sinks.parquet import ParquetSink
from services.settings import Settings

Format = Literal["parquet", "delta"]
BOTH_FORMATS = pytest.mark.parametrize("export_format", ["parquet", "delta"])


def open_sink(spark: SparkSession, folder: Path, export_format: Format) -> DeltaSink | ParquetSink:
    return _open_sink(spark, Settings(export_dir=str(folder), export_format=export_format))


def new_checkpoint(folder: Path, query_id: str) -> None:
    checkpoint = folder / "_checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": query_id}))


def append(sink: DeltaSink | ParquetSink, spark: SparkSession, batch: int, *rows: tuple[str, str, str]) -> None:
    """Append rows with a LineID, a DateSource and a date. Their records came on the same day."""
    columns = ("LineID", "DateSource", "date", "'S1' AS StoreID", "0 AS CreatedTime", "date::TIMESTAMP AS timestamp")
    values = spark.createDataFrame([*rows], "LineID STRING, DateSource STRING, date STRING")
    sink.append(values.withColumn("date", values["date"].cast("date")).selectExpr(*columns), batch, "StoreID")


def written(spark: SparkSession, folder: Path, export_format: Format) -> Counter[str]:
    return Counter(row["LineID"] for row in spark.read.format(export_format).load(str(folder)).collect())


@BOTH_FORMATS
def test_copies_of_undated_lines_are_omitted(spark: SparkSession, tmp_path: Path, export_format: Format) -> None:
    """A new checkpoint of the fan-out appends a line again, later. Without a CreatedTime the copy has another date. A
    line that comes a month later is a new invoice with an old number.
    """
    new_checkpoint(tmp_path, "first")
    lines = (("copied", "broker"), ("dated", "till"), ("reused", "broker"))
    dates = ("2020-11-01", "2020-11-20", "2020-10-20")
    first = [(*line, day) for line, day in zip(lines, dates, strict=True)]
    append(open_sink(spark, tmp_path, export_format), spark, 0, *first)

    new_checkpoint(tmp_path, "second")
    append(open_sink(spark, tmp_path, export_format), spark, 0, *((*line, "2020-11-20") for line in lines))

    assert {"copied": 1, "dated": 1, "reused": 2} == written(spark, tmp_path, export_format)


@BOTH_FORMATS
def test_an_older_checkpoint_beside_newer_files_is_refused(
    spark: SparkSession, tmp_path: Path, export_format: Format
) -> None:
    """The second checkpoint of the folder numbers its micro-batches from 0 again. A crash before Spark's commit leaves
    the files with one micro-batch more.
    """
    files = Files(spark, str(tmp_path / "_checkpoint"))
    planned = json.dumps({"batchTimestampMs": 1_606_000_000_000})  # 2020-11-21 23:06 UTC
    for query_id in ("first", "second"):
        new_checkpoint(tmp_path, query_id)
        sink = open_sink(spark, tmp_path, export_format)
        for batch in range(3):
            append(sink, spark, batch, (f"{query_id}{batch}", "till", f"2020-11-2{batch}"))
            files.write(f"offsets/{batch}", f"v1\n{planned}")
            files.write(f"commits/{batch}", "v1\n{}")
        files.delete("commits/2")
        open_sink(spark, tmp_path, export_format)
        files.delete("offsets/2")
        error = r"_checkpoint is older than the files beside it: it ends with micro-batch 1, and the files have 2\."
        with pytest.raises(CheckpointMismatchError, match=error):
            open_sink(spark, tmp_path, export_format)
        forget_progress(spark, Settings(export_dir=str(tmp_path), export_format=export_format))
        assert not files.exists(), "a backfill solves it"
