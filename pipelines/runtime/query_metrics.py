"""Prometheus metrics of the queries. Spark commits no consumer offsets, so only these metrics show the lag."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import structlog
from prometheus_client import Counter, Gauge, Histogram
from pyspark import SparkContext

from pipelines.checkpoints.reader import Positions
from pipelines.columns.observations import DEAD_LETTER_ROWS, IDENTIFIED, RETURNS, ROWS, UNIQUE
from pipelines.columns.traces import SAMPLE, SAMPLES
from services import tracing

log = structlog.get_logger()

READY = Gauge("loyalty_pipeline_ready", "1 after all queries have started.")
ARCHIVE_INTERVAL = Gauge("loyalty_archive_interval_seconds", "The setting LOYALTY_ARCHIVE_INTERVAL. 0: no archive.")
ACCEPTS_DATA_LOSS = Gauge("loyalty_pipeline_accepts_data_loss", "1 with the setting LOYALTY_ACCEPT_DATA_LOSS.")
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
    "Unread records of a partition at the last micro-batch.",
    ["query", "topic", "partition"],
)
_STATE_BYTES = Gauge("loyalty_query_state_memory_bytes", "Memory of the state store.", ["query", "operator"])
_LATE_ROWS = Counter(
    "loyalty_query_rows_dropped_by_watermark_total", "Rows that were dropped as late; each is a loss.", ["query"]
)
_DUPLICATES = Counter("loyalty_query_repeats_dropped_total", "Duplicates that were dropped.", ["query"])
_DEAD_LETTERS = Counter("loyalty_query_dead_letters_total", "Invalid records that became dead letters.", ["query"])
_REMOVAL_SECONDS = Counter(
    "loyalty_query_forgetting_seconds_total", "Time that tasks spent searching for state to remove.", ["query"]
)
_RETURN_STEPS = Counter(
    "loyalty_returns_total",
    "Returns in the index of invoices, by step: waiting and settled count returns that came before their purchases.",
    ["step"],
)


class ProgressMetrics:
    """Turns progress reports into metrics, and logs the starts and ends of queries.

    Spark's JVM calls this listener directly, without PySpark's listener in between. PySpark's listener asks the JVM for
    every value of a report. That takes hundreds of calls, and after each map the JVM searches all jars for a missing
    class. For the loyalty query that took 5 % of the JVM's processor time (docs/lab/queries.md). A report as JSON is
    one call.
    """

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    @cached_property
    def _jlistener(self) -> Any:
        jvm: Any = SparkContext._jvm  # noqa: SLF001  # PySpark has no public way to avoid its own listener
        return jvm.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        # Spark gives only the id of a query that ends.
        self._names[event.id().toString()] = event.name()
        log.info("query started", query=event.name())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        report(json.loads(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """The query waits for records. The next progress report has its offsets."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        query_id = event.id().toString()
        log.info("query ended", query=self._names.get(query_id, query_id), failed=event.exception().isDefined())


def announce(query: str, positions: Positions) -> None:
    """Show the metrics of a query, with the positions of its checkpoint, before its first micro-batch.

    An idle query may wait long for this micro-batch.
    """
    for counter in (_ROWS, _BATCHES, _DEAD_LETTERS):
        counter.labels(query)
    for topic, partitions in positions.items():
        for partition, position in partitions.items():
            _POSITION.labels(query, topic, partition).set(position)


def report(progress: Mapping[str, Any]) -> None:
    """Update the metrics from the JSON of Spark's StreamingQueryProgress."""
    query = progress["name"] or ""
    # The clock of the loyalty query gives a row every few seconds. These rows are not records.
    sources = [source for source in progress["sources"] if source["description"].startswith("Kafka")]
    rows = sum(source["numInputRows"] for source in sources)
    observed = progress.get("observedMetrics", {})
    _ROWS.labels(query).inc(rows)
    _BATCHES.labels(query).inc()
    _BATCH_SECONDS.labels(query).observe(progress["batchDuration"] / 1000)
    for source in sources:
        _report_offsets(query, source)
    for operator in progress["stateOperators"]:
        _report_state(query, operator)
    _report_observations(query, observed)
    if rows:
        with tracing.batch(
            f"micro-batch of {query}",
            ([(tracing.TRACEPARENT, found)] for found in _traces(observed)),
            progress["timestamp"],
            progress["batchDuration"] / 1000,
            batch=progress["batchId"],
            rows=rows,
        ):
            log.info("batch", query=query, batch=progress["batchId"], rows=rows, ms=progress["batchDuration"])


def _report_offsets(query: str, source: Mapping[str, Any]) -> None:
    """Position and lag of one Kafka source. Its offsets are {topic: {partition: offset}}, or null."""
    ends = source.get("latestOffset") or {}
    for topic, partitions in (source.get("endOffset") or {}).items():
        for partition, position in partitions.items():
            _POSITION.labels(query, topic, partition).set(position)
            end = ends.get(topic, {}).get(partition, position)
            _LAG.labels(query, topic, partition).set(max(0, end - position))


def _report_state(query: str, operator: Mapping[str, Any]) -> None:
    name = operator["operatorName"]
    _STATE_BYTES.labels(query, name).set(operator["memoryUsedBytes"])
    _LATE_ROWS.labels(query).inc(operator["numRowsDroppedByWatermark"])
    _REMOVAL_SECONDS.labels(query).inc(operator["allRemovalsTimeMs"] / 1000)
    # Only the deduplication of Spark has this metric. A checkpoint of release 0.1 uses it.
    _DUPLICATES.labels(query).inc(operator.get("customMetrics", {}).get("numDroppedDuplicateRows", 0))


def _report_observations(query: str, observed: Mapping[str, Any]) -> None:
    if UNIQUE in observed:
        _DUPLICATES.labels(query).inc(observed[IDENTIFIED][ROWS] - observed[UNIQUE][ROWS])
    _DEAD_LETTERS.labels(query).inc(observed.get(DEAD_LETTER_ROWS, {}).get(ROWS, 0))
    for step, number in (observed.get(RETURNS) or {}).items():
        _RETURN_STEPS.labels(step).inc(number)


def _traces(observed: Mapping[str, Any]) -> Iterator[str]:
    """The traces that ``columns.traces.sample`` has found."""
    for name, of_topic in observed.items():
        if name.startswith(SAMPLES):
            yield from of_topic[SAMPLE] or ()
