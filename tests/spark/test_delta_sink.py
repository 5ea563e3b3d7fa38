"""The Delta sink on a local disk, with `loyalty export maintain` beside it."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines.sinks.delta import DeltaSink
from services.settings import Settings
from services.sql.maintenance import maintain

_BATCHES, _ROWS = 6, 20


def sink_of(spark: SparkSession, folder: Path) -> DeltaSink:
    checkpoint = folder / "_checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
    return DeltaSink(spark, str(folder), str(checkpoint), "LineID", timedelta(0))


def append(sink: DeltaSink, spark: SparkSession, batch: int) -> None:
    numbers = spark.range(batch * _ROWS, (batch + 1) * _ROWS)
    columns = ("CAST(id AS STRING) AS LineID", "DATE '2026-11-22' AS date", "now() AS timestamp")
    sink.append(numbers.selectExpr(*columns), batch, "LineID")


def written(folder: Path) -> Counter[str]:
    return Counter(DeltaTable(folder).to_pyarrow_table().column("LineID").to_pylist())


def test_a_compaction_beside_the_writer_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Compactions run all the time while micro-batches are appended. Each row is there once."""
    sink = sink_of(spark, tmp_path)
    settings = Settings(export_dir=str(tmp_path), export_format="delta")

    append(sink, spark, 0)
    merged = 0
    with ThreadPoolExecutor(1) as writer:
        appending = writer.submit(lambda: [append(sink, spark, batch) for batch in range(1, _BATCHES)])
        while not appending.done():
            merged += maintain(settings).merged
        appending.result()
    append(sink, spark, _BATCHES - 1)  # the repeated batch of a crash

    assert merged > 2
    assert Counter(map(str, range(_BATCHES * _ROWS))) == written(tmp_path)


def test_a_first_write_that_was_interrupted_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    """Delta makes the folder of its log before it writes the first file of a new table."""
    (tmp_path / "_delta_log").mkdir()

    append(sink_of(spark, tmp_path), spark, 0)

    assert Counter(map(str, range(_ROWS))) == written(tmp_path)
