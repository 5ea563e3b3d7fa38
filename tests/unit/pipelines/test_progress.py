"""What is made of Spark's progress reports."""

from prometheus_client import REGISTRY
from pyspark.sql.streaming.listener import SourceProgress

from pipelines.progress import _report_offsets


def report(query: str, end: str, latest: str) -> None:
    """A report on one Kafka source, as PySpark makes it."""
    source = SourceProgress("KafkaV2[Subscribe[t]]", "None", end, latest, 0, 0.0, 0.0, {})
    _report_offsets(query, source)


def sample(name: str, query: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"query": query, "topic": "t", "partition": "0"})


def test_position_and_lag_are_reported() -> None:
    """The offset that is read next, and how many records stand behind it."""
    report("told", '{"t":{"0":7}}', '{"t":{"0":10}}')
    assert (7.0, 3.0) == (sample("loyalty_query_position", "told"), sample("loyalty_query_lag_records", "told"))


def test_a_batch_that_failed_says_nothing_of_offsets() -> None:
    """Spark reports it without an end, which PySpark turns into the text None: what was known stays."""
    report("failed", '{"t":{"0":7}}', "None")
    report("failed", "None", "None")
    assert 7.0 == sample("loyalty_query_position", "failed")
