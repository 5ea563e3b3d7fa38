"""Measure the cost of a micro-batch while a query remembers many invoice numbers (``make bench-repeats``).

Each query runs as in production, except for its source and its sink. The source is a folder of Parquet files with the
columns of Kafka, and the sink discards the rows. To remember many numbers, the query first reads many records that are
not invoices, because they cost the least work. Each step runs in a new process on the checkpoint of the step before, so
its first micro-batch shows the cost of a restart. The processor time is that of the process, its JVM and its Python
workers. The JVM uses only its first compiler: the second one works for minutes, and its time would hide the
differences. Writes var/reports/repeats.json.

``--walk`` also measures Spark's native deduplication, which checkpoints of release 0.1 still use.
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.brokers import broker
from benchmarks.machine import machine
from benchmarks.pipeline import Watch, proportional_bytes
from benchmarks.reports import write_report
from benchmarks.resources import file_bytes
from infra.local.folders import ROOT
from infra.local.stack import environment_of
from pipelines.columns.avro import HEADERS_TYPE
from pipelines.queries.query_table import QUERIES
from pipelines.runtime.query import QueryContext
from pipelines.runtime.session import spark_session
from schemas import topics
from schemas.topics import Topic
from services.messaging.administration import create_topics
from services.messaging.avro import encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.messaging.topic_reader import Offsets
from services.settings import Settings, read_settings
from tests.support.builders import invoice
from tests.support.processes import SMALL_JVM

REPORT = Path("var/reports/repeats.json")
WARM_UP = 6
MEASURED = 7
ROWS = 200
FILL = 250_000
_INVOICE = invoice(CustomerType="NONPRIME")
_LINE = {"StoreID": "STR1", "CreatedTime": 1_595_688_900_000, "ItemCode": "1", "ItemPrice": 1.0, "TotalValue": 1.0}
_POLL_SECONDS = 0.05
_DIGITS = 12
_COLUMNS = T.StructType(
    [
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("timestampType", T.IntegerType()),
        T.StructField("headers", HEADERS_TYPE),
    ]
)
"""The columns of Spark's Kafka source."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--queries", nargs="+", default=["fan-out", "loyalty", "sales", "export"], help="the queries to measure"
    )
    parser.add_argument(
        "--remembered", nargs="+", type=int, default=[0, 1_000_000, 4_000_000], help="numbers that each query remembers"
    )
    parser.add_argument("--walk", action="store_true", help="also measure Spark's native deduplication")
    parser.add_argument("--step", nargs=3, metavar=("QUERY", "REMEMBERED", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--native", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        query, remembered, folder = options.step
        print(json.dumps(Step(query, Path(folder), native=options.native).run(int(remembered))))
        return
    rows = []
    with (
        tempfile.TemporaryDirectory() as directory,
        broker(Path(directory), spark_java_options=SMALL_JVM, shuffle_partitions=3) as settings,
    ):
        create_topics(settings)
        variants = (False, True) if options.walk else (False,)
        for query, number, native in itertools.product(options.queries, options.remembered, variants):
            rows.append(measure(settings, Path(directory), query, number, native=native))
            compare(rows[-1], rows)
            print(json.dumps(rows[-1]), flush=True)
            write(rows)


def write(rows: list[dict[str, Any]]) -> None:
    load = psutil.getloadavg()[1]
    write_report(REPORT, {"machine": machine(), "load": load, "rows_a_batch": ROWS, "rows": rows})


def measure(settings: Settings, directory: Path, query: str, remembered: int, *, native: bool) -> dict[str, Any]:
    """Run one step in a new process. Returns a row of the report. Raises RuntimeError with the end of the log."""
    folder = directory / f"{query}-{native}"
    command = [sys.executable, "-m", "benchmarks.repeats", "--step", query, str(remembered), str(folder)]
    environment = environment_of(settings) | {"PYTHONPATH": str(ROOT)}
    with (directory / "step.log").open("wb") as log:
        result = subprocess.run(
            command + ["--native"] * native,
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
        )
    if result.returncode:
        raise RuntimeError((directory / "step.log").read_text(encoding="utf-8", errors="replace")[-3000:])
    name = f"{query} (Spark's own)" if native else query
    return {"query": name, "remembered": remembered, **json.loads(result.stdout.splitlines()[-1])}


def compare(row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Add ratios to a row: its costs divided by those of the first row of its query, which remembers no numbers."""
    empty = next(each for each in rows if each["query"] == row["query"])
    for cost in ("cpu_seconds_per_batch", "cpu_seconds_per_timer_batch"):
        if cost in row:
            name = cost.replace("cpu_seconds", "ratio_to_empty").replace("_per_batch", "")
            row[name] = round(row[cost] / empty[cost], 2)


@dataclasses.dataclass(frozen=True, slots=True)
class FolderContext(QueryContext):
    """Reads files instead of topics."""

    folder: Path = Path()

    def read(self, topic: Topic, start: Offsets | None = None) -> DataFrame:
        source = self.folder / topic.name
        source.mkdir(parents=True, exist_ok=True)
        stream = self.spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).option("latestFirst", "false")
        return stream.parquet(str(source))


class Step:
    """The work of one process: restart on a checkpoint, let the query remember numbers, and measure micro-batches."""

    def __init__(self, query: str, folder: Path, *, native: bool) -> None:
        self._query = QUERIES[query]
        self._folder = folder
        self._native = native
        self._topic = topics.HADOOP if query == "export" else topics.POS_INVOICES
        self._watch = Watch(psutil.Process())
        self._files = len(list(folder.glob(f"{self._topic.name}/*.parquet")))
        self._number = int((folder / "numbers").read_text()) if (folder / "numbers").exists() else 0

    def run(self, remembered: int) -> dict[str, Any]:
        settings = read_settings()
        spark = spark_session(settings, "repeats")
        found: dict[str, Any] = {"remembered_at_start": self._number}
        query = self._start(spark, settings, timedelta(hours=1))
        found["cpu_seconds_of_first_batch"] = self._batch(query, ROWS)
        fills = [self._batch(query, FILL, fills=True) for _ in range(-(-(remembered - self._number) // FILL))]
        if fills:
            found["cpu_seconds_per_1000_rows_of_large_batches"] = round(median(fills) / FILL * 1000, 4)
        costs = [self._batch(query, ROWS) for _ in range(WARM_UP + MEASURED)][WARM_UP:]
        found["cpu_seconds_per_batch"] = round(median(costs), 3)
        found["batches"] = costs
        found |= self._sizes(spark, query)
        query.stop()
        if self._query.name == "loyalty":
            found["cpu_seconds_per_timer_batch"] = self._timer_batches(spark, settings)
        (self._folder / "numbers").write_text(str(self._number))
        spark.stop()
        return found

    def _start(self, spark: SparkSession, settings: Settings, timers: timedelta) -> StreamingQuery:
        settings = settings.model_copy(update={"timer_interval": timers})
        context = FolderContext(
            self._query.name,
            spark,
            FolderSchemaIds(),
            settings,
            timedelta(0),
            {} if self._native else self._query.formats,
            self._folder,
        )
        writer = self._query.build(context).format("noop").queryName(self._query.name)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        return writer.trigger(processingTime="100 milliseconds").start()

    def _batch(self, query: StreamingQuery, rows: int, *, fills: bool = False) -> float:
        """Give the query one file of new numbers. Returns the processor seconds until its micro-batch has ended.

        Args:
            fills: give records that are not invoices, of which the query only remembers the positions.
        """
        records = (each | {"value": b"", "headers": None} if fills else each for each in self._records(rows))
        table = pa.Table.from_pylist(list(records), to_arrow_schema(_COLUMNS, timezone="UTC"))
        unfinished = self._folder / "unfinished.parquet"
        pq.write_table(table, unfinished)
        begun, (last, _) = self._cpu_seconds(), _newest(query)
        unfinished.rename(self._folder / self._topic.name / f"{self._files:06}.parquet")
        self._files += 1
        batch, read = last, 0
        # The loyalty query can also have micro-batches that contain only a time of its clock.
        while batch == last or read < rows:
            time.sleep(_POLL_SECONDS)
            batch, read = _newest(query)
        return round(self._cpu_seconds() - begun, 3)

    def _timer_batches(self, spark: SparkSession, settings: Settings) -> float:
        """Processor seconds of a micro-batch that contains only a time of the clock."""
        query = self._start(spark, settings, timedelta(seconds=1))
        self._batch(query, ROWS)
        costs: list[float] = []
        (last, _), begun = _newest(query), self._cpu_seconds()
        while len(costs) < WARM_UP + MEASURED:
            time.sleep(_POLL_SECONDS)
            batch, _ = _newest(query)
            if batch != last:
                last, before, begun = batch, begun, self._cpu_seconds()
                costs.append(begun - before)
        query.stop()
        return round(median(costs[WARM_UP:]), 3)

    def _cpu_seconds(self) -> float:
        self._watch.sample()
        return self._watch.history[-1].cpu_seconds

    def _sizes(self, spark: SparkSession, query: StreamingQuery) -> dict[str, int]:
        """The memory of the Python workers (a shared page counts once), and the sizes of the state."""
        python = list(filter(_is_worker, psutil.Process().children(recursive=True)))
        progress: Any = query.lastProgress
        operator = progress["stateOperators"][-1]
        return {
            "workers": len(python),
            "workers_mib": round(sum(map(proportional_bytes, python)) / 2**20),
            "segment_files_bytes": sum(file_bytes(folder / "segments") for folder in _local_folders(spark)),
            "checkpoint_bytes": file_bytes(self._folder / "checkpoint" / "state"),
            "rocksdb_bytes": operator["customMetrics"].get("rocksdbSstFileSize", 0),
        }

    def _records(self, count: int) -> Iterator[dict[str, Any]]:
        """New records of a till. They differ only in the number, which this replaces in one encoded record."""
        mark = "#" * _DIGITS
        record = _LINE if self._topic is topics.HADOOP else _INVOICE
        value = encoder(self._topic, FolderSchemaIds())(record | {"InvoiceNumber": mark})
        head, tail = value.split(mark.encode())
        now = datetime.now(UTC)
        for number in range(self._number, self._number + count):
            text = f"{number:0{_DIGITS}}".encode()
            headers = [{"key": "ce_id", "value": text}] if self._topic is topics.HADOOP else None
            yield {
                "key": b"STR1",
                "value": head + text + tail,
                "topic": self._topic.name,
                "partition": number % 3,
                "offset": number,
                "timestamp": now,
                "timestampType": 1,
                "headers": headers,
            }
        self._number += count


def _newest(query: StreamingQuery) -> tuple[int, int]:
    """Number and rows of the newest finished micro-batch with rows. Raises RuntimeError if the query has failed."""
    if query.exception():
        raise RuntimeError(f"the query has failed: {query.exception()}")
    progress: Any = query.lastProgress
    return (progress["batchId"], progress["numInputRows"]) if progress else (-1, 0)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "pyspark" in " ".join(process.cmdline()) and "java" not in process.name()
    except psutil.Error:  # the process has ended
        return False


def _local_folders(spark: SparkSession) -> list[Path]:
    """The folders of Spark on this machine."""
    jvm: Any = spark._jvm  # noqa: SLF001  # PySpark has no public method for them
    return [
        Path(folder)
        for folder in jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirsString()
    ]


if __name__ == "__main__":
    main()
