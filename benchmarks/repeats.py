"""What dropping repeats costs a micro-batch: what the pipeline does, and a map state that forgets by an index.

Run: ``python -m benchmarks.repeats --phases 0:2000 1000000:2000`` (identities remembered, and rows a micro-batch).
Processor time is that of this process, its JVM and its Python workers from one micro-batch's end to the next; the first
of a phase are warm-up. No invoice is decoded and nothing is written: it is the operator alone that is looked at.
"""

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.machine import machine
from benchmarks.pipeline import Watch
from pipelines.accounts.operator import BUCKETS_A_PARTITION
from pipelines.accounts.state_calls import map_calls
from pipelines.columns.deduplication import deduplicate
from pipelines.runtime.session import spark_session
from services.settings import Settings

WARM_UP = 3
MEASURED = 8
FILL = 500_000
PAYLOAD_BYTES = 1024
SETTINGS = Settings()
REPORT = Path("var/reports/repeats.json")

_IDENTITY = T.StructType([T.StructField("identity", T.StringType())])
_SEEN = T.StructType([T.StructField("seen", T.IntegerType())])
_PAYLOAD = T.StructType([T.StructField("payload", T.BinaryType())])
_ROW = T.StructType([T.StructField("timestamp", T.TimestampType()), *_IDENTITY.fields, *_PAYLOAD.fields])

Phase = tuple[int, int]


def within_watermark(rows: DataFrame) -> DataFrame:
    return deduplicate(rows, SETTINGS)


def in_map_state(rows: DataFrame) -> DataFrame:
    buckets = BUCKETS_A_PARTITION * SETTINGS.shuffle_partitions
    bucket = F.pmod(F.xxhash64("identity"), F.lit(buckets)).cast("int").alias("bucket")
    return (
        rows.select(bucket, "identity", "payload")
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=Seen(), outputStructType=_PAYLOAD, outputMode="Append", timeMode="ProcessingTime"
        )
    )


class Seen(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        ttl = int(SETTINGS.repeat_horizon.total_seconds() * 1000)
        self._seen = map_calls(handle.getMapState("seen", _IDENTITY, _SEEN, ttl))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        first: dict[str, bytes] = {}
        for row in rows:
            first.setdefault(row.identity, row.payload)
        known = self._seen.get([(identity,) for identity in first])
        new = [identity for identity, seen in zip(first, known, strict=True) if seen is None]
        self._seen.update(((identity,), (1,)) for identity in new)
        for identity in new:
            yield Row(payload=first[identity])

    def close(self) -> None:
        """Nothing is held open."""


OPERATORS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "dropDuplicatesWithinWatermark": within_watermark,
    "transformWithState": in_map_state,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--phases", nargs="+", type=_phase, default=[(0, 2_000), (200_000, 2_000), (1_000_000, 2_000)])
    options = parser.parse_args()
    spark = spark_session(SETTINGS)
    found = []
    for operator in options.operators:
        for (remembered, rows), seconds in measure(spark, operator, options.phases).items():
            figures = {"operator": operator, "remembered": remembered, "rows": rows}
            found.append(figures | {"cpu_seconds_a_batch": round(statistics.median(seconds), 3), "batches": seconds})
            print(json.dumps(found[-1]), flush=True)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"machine": machine(), "found": found}, indent=2) + "\n", encoding="utf-8")


def measure(spark: SparkSession, operator: str, phases: list[Phase]) -> dict[Phase, list[float]]:
    """Processor seconds of the micro-batches of each phase. Raises RuntimeError if the query fails."""
    with tempfile.TemporaryDirectory() as directory:
        batches = write_source(Path(directory, "source"), phases)
        rows = spark.readStream.schema(_ROW).option("maxFilesPerTrigger", 1).parquet(f"{directory}/source/*")
        writer = OPERATORS[operator](rows).writeStream.format("noop")
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
        found: dict[Phase, list[float]] = defaultdict(list)
        watch = Watch(psutil.Process())
        watch.look()
        batch = -1
        try:
            while batch < len(batches) - 1:
                if not query.isActive:
                    raise RuntimeError(f"the query has ended: {query.exception()}")
                progress = query.lastProgress
                if progress and progress["batchId"] > batch:
                    watch.look()
                    before, now = watch.history[-2:]
                    phase = batches[progress["batchId"]]
                    # One that was missed has its time in the next one's.
                    if phase and progress["batchId"] == batch + 1:
                        found[phase].append(round(now.cpu_seconds - before.cpu_seconds, 3))
                    batch = progress["batchId"]
                time.sleep(0.02)
        finally:
            query.stop()
        return found


def write_source(source: Path, phases: list[Phase]) -> list[Phase | None]:
    """A file for each micro-batch, in their order; returns what phase each measures, if any."""
    batches: list[Phase | None] = []
    number = 0

    def write(count: int, payload: int, phase: Phase | None) -> None:
        nonlocal number
        write_rows(source / f"{len(batches):05}", number, count, payload)
        number += count
        batches.append(phase)

    for remembered, rows in phases:
        while number < remembered:
            write(min(FILL, remembered - number), 0, None)
        for turn in range(WARM_UP + MEASURED):
            write(rows, PAYLOAD_BYTES, (remembered, rows) if turn >= WARM_UP else None)
    return batches


def write_rows(folder: Path, start: int, count: int, payload: int) -> None:
    # Hashed, as an order of the numbers would favour a sorted store.
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(start, start + count)]
    columns: dict[str, list[str] | list[bytes] | pa.Array[Any]] = {
        "timestamp": pa.array([datetime.now(UTC)] * count, pa.timestamp("us", "UTC")),
        "identity": [f"#INV-{digest.hex()[:16]}" for digest in digests],
        "payload": [digest * (payload // len(digest)) for digest in digests],
    }
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "rows.parquet")


def _phase(text: str) -> Phase:
    remembered, rows = map(int, text.split(":"))
    return remembered, rows


if __name__ == "__main__":
    main()
