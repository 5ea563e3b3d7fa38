"""The archive inside of the pipeline process: it stops no other query, and it can be switched off."""

from contextlib import ExitStack
from datetime import timedelta

import pytest
import typer
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from typer.testing import CliRunner

import pipelines.__main__ as pipeline
from pipelines.checkpoints.lock import CheckpointInUseError, hold
from pipelines.driver.watch import QueryWatch
from pipelines.queries.query_table import QUERIES
from services.errors import UserError
from services.settings import Settings
from tests.unit.pipelines.process.pipeline_process import Clock, ProcessOf, Running
from tests.unit.pipelines.stop_signals import without_wait


def test_the_check_of_an_optional_query_stops_no_other_query(process_of: ProcessOf, clock: Clock) -> None:
    """Its start reports the error."""
    process = process_of({"sales": Running(clock, 0.0, is_active=False), "archive": Running(clock, 0.0)})
    process.refusals["archive"] = UserError("another key")
    process.watch(lambda _: None)
    process.run()
    assert ["sales", "archive"] == process.started


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_an_archive_that_refuses_to_start_stops_no_other_query(
    process_of: ProcessOf, clock: Clock, *, available_now: bool, status: int
) -> None:
    """For example, Kafka has deleted records. The error says how only the archive skips them."""
    process = process_of({"archive": UserError("it would skip records"), "sales": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    with capture_logs() as logs:
        assert status == process.run(available_now=available_now)
    assert ["archive", "sales"] == process.started
    assert "it would skip records. The other queries run without the archive" in logs[0]["reason"]


def test_a_run_to_the_end_names_the_archive_that_refused_to_start(process_of: ProcessOf, clock: Clock) -> None:
    """A repetition of the command would not help."""
    queries = {"archive": UserError("it would skip records"), "sales": Running(clock, 0.0, is_active=False)}
    process = process_of(queries)
    with capture_logs() as logs:
        assert 1 == process.run(without_wait(), available_now=True)
    assert "some queries have not read the last record" in logs[-1]["event"]
    assert ["archive"] == logs[-1]["queries"]


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_an_archive_that_runs_elsewhere_stops_no_other_query(
    process_of: ProcessOf, settings: Settings, clock: Clock, *, available_now: bool, status: int
) -> None:
    """An old scheduled run can hold the lock. A run to the end then lacks the records of the archive."""
    process = process_of({"sales": Running(clock, 0.0), "archive": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    with hold(QUERIES["archive"].checkpoint(settings)), capture_logs() as logs:
        assert status == process.run(available_now=available_now)
    assert ["sales"] == process.started
    assert "stop it first. The other queries run without the archive" in logs[0]["reason"]


def test_an_archive_beside_the_pipeline_says_that_the_pipeline_archives(settings: Settings) -> None:
    """An operator needs `loyalty archive` only while the pipeline is stopped."""
    with hold(QUERIES["archive"].checkpoint(settings)), capture_logs() as logs:
        assert 2 == pipeline.run(settings, ["archive"], available_now=True)
    (line,) = logs
    assert "a running pipeline archives by itself within LOYALTY_ARCHIVE_INTERVAL" in line["reason"]


def test_the_archive_locks_its_checkpoint_at_its_first_start_until_the_end(
    process_of: ProcessOf, settings: Settings, clock: Clock
) -> None:
    """It runs after the end of the scheduled run that held the lock. Between two runs nobody else can write."""
    checkpoint = QUERIES["archive"].checkpoint(settings)
    archive = Running(clock, 0.0)
    process = process_of({"sales": Running(clock, 0.0), "archive": archive})
    elsewhere = ExitStack()
    elsewhere.enter_context(hold(checkpoint))

    def is_locked() -> None:
        with pytest.raises(CheckpointInUseError), hold(checkpoint):
            pass

    def watch(queries: QueryWatch) -> None:
        elsewhere.close()
        for _ in range(2):
            queries.start(["archive"])
            is_locked()
        process.stop()

    archive.stop = is_locked  # type: ignore[method-assign]
    process.watch(watch)
    assert 0 == process.run()
    assert ["sales", "archive", "archive"] == process.started
    with hold(checkpoint):
        pass


@pytest.mark.parametrize(
    ("interval", "arguments", "expected"),
    [
        ("PT1H", ["--available-now"], ["fan-out", "loyalty", "sales", "export", "archive"]),
        ("PT1H", ["--query", "archive", "--query", "loyalty"], ["loyalty", "archive"]),
        ("PT0S", ["--available-now"], ["fan-out", "loyalty", "sales", "export"]),
        ("PT0S", ["--query", "sales", "--query", "archive"], ["sales"]),
        ("PT0S", ["--query", "archive", "--available-now"], ["archive"]),
        ("PT0S", ["--query", "archive"], None),
    ],
)
def test_an_interval_of_zero_switches_the_archive_off(
    run: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    interval: str,
    arguments: list[str],
    expected: list[str] | None,
) -> None:
    """`loyalty archive`, which somebody runs by hand, still archives."""
    monkeypatch.setenv("LOYALTY_ARCHIVE_INTERVAL", interval)
    app = typer.Typer()
    app.command()(pipeline.main)
    result = CliRunner().invoke(app, arguments)
    assert (0 if expected else 2) == result.exit_code
    assert [expected] * (expected is not None) == run


def test_the_metrics_say_whether_the_archive_is_switched_off(process_of: ProcessOf, clock: Clock) -> None:
    """Otherwise ArchiveFallsBehind would fire for a week."""
    process = process_of({"sales": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    for interval in (timedelta(hours=1), timedelta(0)):
        process.run(archive_interval=interval)
        assert interval.total_seconds() == REGISTRY.get_sample_value("loyalty_archive_interval_seconds")
