"""The settings with which a query starts."""

from contextlib import nullcontext
from datetime import timedelta

import pytest

from pipelines.runtime import query
from pipelines.runtime.query import trigger_interval
from schemas.topics import POS_INVOICES
from services.errors import SettingsError
from services.settings import Settings

HORIZON = Settings().repeat_horizon


@pytest.mark.parametrize(
    ("longest_wait", "seconds"), [("PT0.1S", 0.2), ("PT1S", 0.5), ("PT1M", 2.0), ("PT1H", 10.0), ("P1D", 240.0)]
)
def test_a_query_that_waits_longer_asks_kafka_less_often(longest_wait: str, seconds: float) -> None:
    """An idle stack stays cheap. A backlog does not wait for the whole interval."""
    wait = Settings(archive_interval=longest_wait).archive_interval  # type: ignore[arg-type]  # as in the environment
    assert timedelta(seconds=seconds) == trigger_interval(wait, Settings())


@pytest.mark.parametrize(
    ("age", "refusal"),
    [
        (HORIZON, None),
        (HORIZON + timedelta(days=1), "for P10D, but LOYALTY_REPEAT_HORIZON is P9D"),
        (None, "for ever"),
    ],
)
def test_a_query_remembers_an_invoice_for_as_long_as_its_topic(
    monkeypatch: pytest.MonkeyPatch, age: timedelta | None, refusal: str | None
) -> None:
    """Otherwise the points of a duplicate would count twice."""
    monkeypatch.setattr(query, "max_record_age", lambda *_: age)
    with pytest.raises(SettingsError, match=refusal) if refusal else nullcontext():
        query._check_repeat_horizon(POS_INVOICES, Settings())
