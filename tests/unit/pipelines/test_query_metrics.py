"""Progress reports of Spark as metrics."""

from prometheus_client import REGISTRY

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
