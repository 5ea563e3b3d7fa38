"""The results of audits in their topic: services.audit.runs."""

from confluent_kafka import Producer

from pipelines.reconciliation.report import Report
from services.audit.runs import publish_run, read_runs
from services.settings import Settings


def test_the_newest_run_comes_first(mocked_broker: tuple[Settings, Producer]) -> None:
    """Runs can end in another order than that of their records."""
    settings, broker = mocked_broker
    broker.list_topics("audit-runs", timeout=10)  # creates it
    run = Report(0, 0, 0, {}, [], [], [], []).run(1_000, str)
    for ended in (2, 3, 1):
        publish_run({**run, "EndedTime": ended}, settings)
    assert [3, 2, 1] == [each["EndedTime"] for each in read_runs(settings)]
