"""The identities by which the queries find duplicates."""

from datetime import datetime

import pytest

from pipelines.deduplication.stream import invoice_identity
from pipelines.queries.export import _line_identity

POSITIONS = (
    "topic string, partition int, offset long, timestamp timestamp, invoice_number string, reason string, "
    "headers array<struct<key: string, value: binary>>"
)
MONDAY, TUESDAY = datetime(2026, 3, 2), datetime(2026, 3, 3)  # noqa: DTZ001 - Spark takes the time of the session


@pytest.mark.parametrize("identity", [invoice_identity, _line_identity])
def test_an_invalid_record_of_a_topic_that_was_created_again_is_no_duplicate(spark, identity):
    """It has the position of an old record. It must become a dead letter, too. A replay has the same append time."""
    records = [("hadoop", 0, 17, time, None, "not Avro", None) for time in (MONDAY, MONDAY, TUESDAY)]
    rows = spark.createDataFrame(records, POSITIONS).select(identity().alias("identity")).collect()
    old, replayed, new = (row.identity for row in rows)
    assert old == replayed != new
