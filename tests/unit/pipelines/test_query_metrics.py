"""Progress reports of Spark as metrics."""

from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from pipelines.runtime.query_metrics import announce, report
from services.open_telemetry import add_ids
from tests.support.traces import tracing_in_memory


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
    progress["observedMetrics"] = {"identified": {"rows": 9}, "unique": {"rows": 7}, "dead letters": {"rows": 4}}
    progress["observedMetrics"]["returns"] = {"waiting": 2}
    waiting = REGISTRY.get_sample_value("loyalty_returns_total", {"step": "waiting"}) or 0
    for _ in range(2):
        report(progress)
    found = {
        name: REGISTRY.get_sample_value(f"loyalty_query_{name}_total", {"query": "sums"})
        for name in ("forgetting_seconds", "repeats_dropped", "rows_dropped_by_watermark", "dead_letters")
    }
    sums = {"forgetting_seconds": 3.0, "repeats_dropped": 10.0, "rows_dropped_by_watermark": 4.0, "dead_letters": 8.0}
    assert sums == found
    assert waiting + 4 == REGISTRY.get_sample_value("loyalty_returns_total", {"step": "waiting"})


def test_a_query_is_shown_before_its_first_micro_batch() -> None:
    """An idle query after a restart has its position and 0 micro-batches. Its first report continues them."""
    announce("idle", {"hadoop": {0: 7}})
    found = REGISTRY.get_sample_value
    assert 0 == found("loyalty_query_batches_total", {"query": "idle"})
    assert 0 == found("loyalty_query_input_rows_total", {"query": "idle"})
    assert 0 == found("loyalty_query_dead_letters_total", {"query": "idle"})
    position = {"query": "idle", "topic": "hadoop", "partition": "0"}
    assert 7 == found("loyalty_query_position", position)
    kafka = {"description": "KafkaV2[Subscribe[hadoop]]", "numInputRows": 2, "endOffset": {"hadoop": {"0": 9}}}
    progress = {"name": "idle", "batchId": 1, "batchDuration": 5, "stateOperators": [], "sources": [kafka]}
    report(progress | {"timestamp": "is not parsed while tracing is off"})
    assert 9 == found("loyalty_query_position", position)
    assert 0 == found("loyalty_query_lag_records", position)


def test_the_lag_of_a_partition_is_never_negative() -> None:
    """A partition that has lost its newest records ends before the position."""
    kafka = {"description": "KafkaV2[Subscribe[hadoop]]", "numInputRows": 0}
    kafka |= {"endOffset": {"hadoop": {"0": 9, "1": 9}}, "latestOffset": {"hadoop": {"0": 12, "1": 4}}}
    report({"name": "late", "batchId": 1, "batchDuration": 5, "stateOperators": [], "sources": [kafka]})
    labels = [{"query": "late", "topic": "hadoop", "partition": each} for each in "01"]
    assert [3, 0] == [REGISTRY.get_sample_value("loyalty_query_lag_records", each) for each in labels]


def test_the_rows_of_the_clock_are_no_records() -> None:
    """A pipeline without traffic writes no line, and counts nothing."""
    kafka = {"description": "KafkaV2[Subscribe[pos-invoices]]", "numInputRows": 0}
    clock = {"description": "PythonTableProvider(loyalty-clock)", "numInputRows": 1}
    progress = {"name": "timed", "batchId": 1, "batchDuration": 5, "stateOperators": [], "numInputRows": 1}
    progress["timestamp"] = "is not parsed while tracing is off"
    with capture_logs() as logs:
        report({**progress, "sources": [kafka, clock]})
        report({**progress, "sources": [{**kafka, "numInputRows": 3}, clock], "numInputRows": 4})
    assert [("batch", 3)] == [(line["event"], line["rows"]) for line in logs]
    assert 3 == REGISTRY.get_sample_value("loyalty_query_input_rows_total", {"query": "timed"})


def test_a_micro_batch_is_a_span_with_its_own_time() -> None:
    """The span is in the trace that Spark's observation names. The log line of the micro-batch has its ids."""
    trace, sender = "1" * 32, "2" * 16
    kafka = {"description": "KafkaV2[Subscribe[pos-invoices]]", "numInputRows": 3}
    progress = {"name": "timed", "batchId": 7, "batchDuration": 1_500, "stateOperators": [], "sources": [kafka]}
    progress["timestamp"] = "2026-11-23T03:00:00.250Z"
    progress["observedMetrics"] = {"traces pos-invoices": {"sample": [f"00-{trace}-{sender}-01"]}}
    with tracing_in_memory() as exporter, capture_logs(processors=[add_ids]) as logs:
        report(progress)
    (span,) = exporter.get_finished_spans()
    assert (trace, sender) == (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}")
    assert [1_795_402_800_250, 1_795_402_801_750] == [round(time / 1e6) for time in (span.start_time, span.end_time)]
    assert {"batch": 7, "rows": 3} == dict(span.attributes)
    assert [(trace, f"{span.context.span_id:016x}")] == [(line["trace_id"], line["span_id"]) for line in logs]
