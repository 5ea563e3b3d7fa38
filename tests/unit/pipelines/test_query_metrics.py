"""Progress reports of Spark as metrics."""

from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from pipelines.runtime.query_metrics import report


def test_every_operator_of_a_query_counts() -> None:
    """Duplicates, late rows and removal times are sums over the operators of a query, and over its observations."""
    dedupe = {
        "operatorName": "dedupeWithinWatermark",
        "numRowsTotal": 0,
        "memoryUsedBytes": 1,
        "numRowsDroppedByWatermark": 1,
        "allRemovalsTimeMs": 1_200,
        "customMetrics": {"numDroppedDuplicateRows": 3},
    }
    aggregate = {**dedupe, "operatorName": "stateStoreSave", "allRemovalsTimeMs": 300, "customMetrics": {}}
    operators = [dedupe, aggregate]
    progress = {"name": "sums", "numInputRows": 0, "batchDuration": 5, "sources": [], "stateOperators": operators}
    progress["observedMetrics"] = {"identified": {"rows": 9}, "unique": {"rows": 7}}
    for _ in range(2):
        report(progress)
    found = {
        name: REGISTRY.get_sample_value(f"loyalty_query_{name}_total", {"query": "sums"})
        for name in ("forgetting_seconds", "repeats_dropped", "rows_dropped_by_watermark")
    }
    assert {"forgetting_seconds": 3.0, "repeats_dropped": 10.0, "rows_dropped_by_watermark": 4.0} == found


def test_the_rows_of_the_clock_are_no_records() -> None:
    """A pipeline without traffic writes no line, and counts nothing."""
    kafka = {"description": "KafkaV2[Subscribe[pos-invoices]]", "numInputRows": 0}
    clock = {"description": "PythonTableProvider(loyalty-clock)", "numInputRows": 1}
    progress = {"name": "timed", "batchId": 1, "batchDuration": 5, "stateOperators": [], "numInputRows": 1}
    progress["timestamp"] = "2026-11-23T03:00:00.000Z"
    with capture_logs() as logs:
        report({**progress, "sources": [kafka, clock]})
        report({**progress, "sources": [{**kafka, "numInputRows": 3}, clock], "numInputRows": 4})
    assert [("batch", 3)] == [(line["event"], line["rows"]) for line in logs]
    assert 3 == REGISTRY.get_sample_value("loyalty_query_input_rows_total", {"query": "timed"})
