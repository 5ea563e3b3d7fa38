"""Progress of the queries as Prometheus metrics. Spark commits no consumer offsets: lag is seen here or nowhere."""

import json
from collections.abc import Mapping
from typing import Any

import structlog
from prometheus_client import Counter, Gauge, Histogram
from pyspark import SparkContext

log = structlog.get_logger()

READY = Gauge("loyalty_pipeline_ready", "1 once all queries have started.")
_ROWS = Counter("loyalty_query_input_rows_total", "Records read.", ["query"])
_BATCHES = Counter("loyalty_query_batches_total", "Micro-batches completed.", ["query"])
_BATCH_SECONDS = Histogram(
    "loyalty_query_batch_duration_seconds",
    "Duration of a micro-batch.",
    ["query"],
    buckets=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
)
_POSITION = Gauge("loyalty_query_position", "Offset of the next record to read.", ["query", "topic", "partition"])
_LAG = Gauge(
    "loyalty_query_lag_records",
    "Records of a partition not yet read, as the last micro-batch found it.",
    ["query", "topic", "partition"],
)
_STATE_ROWS = Gauge("loyalty_query_state_rows", "Rows in the state store.", ["query", "operator"])
_STATE_BYTES = Gauge("loyalty_query_state_memory_bytes", "Memory of the state store.", ["query", "operator"])
_WATERMARK_DROPS = Counter(
    "loyalty_query_rows_dropped_by_watermark_total", "Rows that came too late; anything but 0 is a loss.", ["query"]
)
_REPEATS = Counter("loyalty_query_repeats_dropped_total", "Repeats of a record that had already been seen.", ["query"])
_FORGETTING = Counter(
    "loyalty_query_forgetting_seconds_total", "Time that tasks spent looking for what to forget.", ["query"]
)


class ProgressMetrics:
    """Turns every progress report into metrics, and starts and ends of queries into log lines.

    It is the listener that Spark's JVM calls, not PySpark's in between. That one asks the JVM for every value of a
    report, hundreds of calls, and at the end of each map the JVM searches all jars for classes that do not exist: for
    the loyalty query 5 % of the JVM's processor time (docs/lab/benchmarks.md). As JSON a report is one call.
    """

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    @property
    def _jlistener(self) -> Any:
        jvm: Any = SparkContext._jvm  # noqa: SLF001  # PySpark has no public way past its own listener
        return jvm.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        log.info("query started", query=event.name())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        report(json.loads(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """There is nothing to read, or too little for a query that waits: its offsets come with the next progress."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        log.info("query ended", query_id=event.id().toString(), failed=event.exception().isDefined())


def report(progress: Mapping[str, Any]) -> None:
    """Take over a report, as the JSON of Spark's StreamingQueryProgress has it."""
    query = progress["name"] or ""
    _ROWS.labels(query).inc(progress["numInputRows"])
    _BATCHES.labels(query).inc()
    _BATCH_SECONDS.labels(query).observe(progress["batchDuration"] / 1000)
    for source in progress["sources"]:
        if source["description"].startswith("Kafka"):  # pipelines.clock has no partitions
            _report_offsets(query, source)
    for operator in progress["stateOperators"]:
        name = operator["operatorName"]
        _STATE_ROWS.labels(query, name).set(operator["numRowsTotal"])
        _STATE_BYTES.labels(query, name).set(operator["memoryUsedBytes"])
        _WATERMARK_DROPS.labels(query).inc(operator["numRowsDroppedByWatermark"])
        _FORGETTING.labels(query).inc(operator["allRemovalsTimeMs"] / 1000)
        _REPEATS.labels(query).inc(operator.get("customMetrics", {}).get("numDroppedDuplicateRows", 0))
    if progress["numInputRows"]:
        log.info(
            "batch",
            query=query,
            batch=progress["batchId"],
            rows=progress["numInputRows"],
            ms=progress["batchDuration"],
        )


def _report_offsets(query: str, source: Mapping[str, Any]) -> None:
    """Position and lag of one Kafka source; its offsets are {topic: {partition: offset}}; null: none."""
    ends = source.get("latestOffset") or {}
    for topic, partitions in (source.get("endOffset") or {}).items():
        for partition, position in partitions.items():
            _POSITION.labels(query, topic, partition).set(position)
            end = ends.get(topic, {}).get(partition, position)
            _LAG.labels(query, topic, partition).set(max(0, end - position))
