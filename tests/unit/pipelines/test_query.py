"""The settings with which a query starts."""

from datetime import timedelta

import pytest

from pipelines.runtime.query import trigger_interval
from services.settings import Settings


@pytest.mark.parametrize(
    ("longest_wait", "seconds"), [("PT0.1S", 0.2), ("PT1S", 0.5), ("PT1M", 2.0), ("PT1H", 10.0), ("P1D", 240.0)]
)
def test_a_query_that_waits_longer_asks_kafka_less_often(longest_wait: str, seconds: float) -> None:
    """An idle stack stays cheap. A backlog does not wait for the whole interval."""
    wait = Settings(archive_interval=longest_wait).archive_interval  # type: ignore[arg-type]  # as in the environment
    assert timedelta(seconds=seconds) == trigger_interval(wait, Settings())
