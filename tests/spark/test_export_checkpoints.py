"""The folder of the export with another checkpoint than the one that wrote its files."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from pipelines.queries.export import _open_sink
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
