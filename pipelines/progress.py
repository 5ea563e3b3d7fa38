"""Progress of the queries as Prometheus metrics. Spark commits no consumer offsets: lag is seen here or nowhere."""

import json
from typing import Any

import structlog
from prometheus_client import Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

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
_LAG = Gauge("loyalty_query_lag_records", "Records of a partition not yet read.", ["query", "topic", "partition"])
_STATE_ROWS = Gauge("loyalty_query_state_rows", "Rows in the state store.", ["query", "operator"])
_STATE_BYTES = Gauge("loyalty_query_state_memory_bytes", "Memory of the state store.", ["query", "operator"])
_WATERMARK_DROPS = Counter(
    "loyalty_query_rows_dropped_by_watermark_total", "Rows that came too late; anything but 0 is a loss.", ["query"]
)
_REPEATS = Counter("loyalty_query_repeats_dropped_total", "Repeats of a record that had already been seen.", ["query"])


class ProgressMetrics(StreamingQueryListener):
    """Turns every progress report into metrics, and starts and ends of queries into log lines."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        log.info("query started", query=event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        query = progress.name or ""
        _ROWS.labels(query).inc(progress.numInputRows)
        _BATCHES.labels(query).inc()
        _BATCH_SECONDS.labels(query).observe(progress.batchDuration / 1000)
        for source in progress.sources:
            if source.description.startswith("Kafka"):  # pipelines.clock has no partitions
                _report_offsets(query, source)
        for operator in progress.stateOperators:
            name = operator.operatorName
            _STATE_ROWS.labels(query, name).set(operator.numRowsTotal)
            _STATE_BYTES.labels(query, name).set(operator.memoryUsedBytes)
            _WATERMARK_DROPS.labels(query).inc(operator.numRowsDroppedByWatermark)
            _REPEATS.labels(query).inc(operator.customMetrics.get("numDroppedDuplicateRows", 0))
        if progress.numInputRows:
            log.info(
                "batch", query=query, batch=progress.batchId, rows=progress.numInputRows, ms=progress.batchDuration
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing has changed since the last progress."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        log.info("query ended", query_id=str(event.id), failed=event.exception is not None)


def _report_offsets(query: str, source: Any) -> None:
    """Position and lag of one Kafka source: its offsets are JSON, {topic: {partition: offset}}."""
    positions, ends = (json.loads(offsets or "{}") for offsets in (source.endOffset, source.latestOffset))
    for topic, partitions in positions.items():
        for partition, position in partitions.items():
            _POSITION.labels(query, topic, partition).set(position)
            end = ends.get(topic, {}).get(partition, position)
            _LAG.labels(query, topic, partition).set(max(0, end - position))
