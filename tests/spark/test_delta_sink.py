"""The Delta sink on a local disk, with `loyalty export maintain` beside it."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipelines.sinks.delta import DeltaSink
from services.settings import Settings
from services.sql.maintenance import maintain

_BATCHES, _ROWS = 6, 20


def test_a_compaction_beside_the_writer_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Compactions run all the time while micro-batches are appended. Each row is there once."""
    checkpoint = tmp_path / "_checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
    sink = DeltaSink(spark, str(tmp_path), str(checkpoint), "LineID")
    settings = Settings(export_dir=str(tmp_path), export_format="delta")

    def append(batch: int) -> None:
        numbers = spark.range(batch * _ROWS, (batch + 1) * _ROWS)
        columns = ("CAST(id AS STRING) AS LineID", "DATE '2026-11-22' AS date", "now() AS timestamp")
        sink.append(numbers.selectExpr(*columns), batch, "LineID")

    append(0)
    merged = 0
    with ThreadPoolExecutor(1) as writer:
        appending = writer.submit(lambda: [append(batch) for batch in range(1, _BATCHES)])
        while not appending.done():
            merged += maintain(settings).merged
        appending.result()
    append(_BATCHES - 1)  # the repeated batch of a crash

    assert merged > 2
    found = Counter(DeltaTable(tmp_path).to_pyarrow_table().column("LineID").to_pylist())
    assert Counter(map(str, range(_BATCHES * _ROWS))) == found
