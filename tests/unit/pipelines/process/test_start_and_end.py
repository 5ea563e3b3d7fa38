"""When queries start and stop, the status of the process, and the checkpoints that it holds."""

import logging
import threading
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

import pipelines.__main__ as pipeline
from infra.local.stack import private_settings
from pipelines.checkpoints.lock import CheckpointInUseError, hold
from pipelines.queries.query_table import QUERIES
from pipelines.sinks.foreach_batch import BatchFailedError
from services.errors import UserError
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings
from tests.unit.pipelines.process.pipeline_process import Clock, ProcessOf, Running
from tests.unit.pipelines.stop_signals import without_wait


@pytest.mark.parametrize(("error", "status"), [(None, 0), ("java.lang.OutOfMemoryError", 1)])
def test_the_status_says_whether_a_query_has_failed(
    process_of: ProcessOf, clock: Clock, error: str | None, status: int
) -> None:
    """A supervisor starts the pipeline again after a failure only. The other queries stop between two batches."""
    ended = Running(clock, 0.0, error=error, is_active=False)
    other = Running(clock, 3.0 if error else 0.0, is_active=error is not None)
    process = process_of({"sales": ended, "fan-out": other})
    assert status == process.run(without_wait(), available_now=True)
    assert "between batches" == other.stopped


def test_no_query_starts_before_all_have_been_checked(process_of: ProcessOf, clock: Clock) -> None:
    """After the loss of all checkpoints, each attempt of the supervisor would let the fan-out write older records."""
    process = process_of({"fan-out": Running(clock, 0.0), "loyalty": Running(clock, 0.0)})
    process.refusals["loyalty"] = UserError("the checkpoint is new")
    process.watch(lambda _: None)
    with pytest.raises(UserError, match="the checkpoint is new"):
        process.run()
    assert [] == process.started


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("sales", UserError("another setting")),
        ("sales", PublishError("Kafka does not answer")),
        ("sales", SchemaRegistryUnavailableError("no registry")),
    ],
)
def test_the_process_does_not_run_without_another_query(
    process_of: ProcessOf, clock: Clock, name: str, error: UserError
) -> None:
    """After an outage of Kafka, the supervisor starts all queries again."""
    process = process_of({"fan-out": Running(clock, 0.0), name: error})
    process.watch(lambda _: None)
    with pytest.raises(type(error)):
        process.run()


@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_a_stop_before_the_last_record_is_a_failure_of_a_run_to_the_end(
    process_of: ProcessOf, clock: Clock, *, available_now: bool, status: int
) -> None:
    """`loyalty archive && next-step` must not continue after half of the records. A service has no last record."""
    running = Running(clock, 3.0)
    process = process_of({"archive": running})
    stopping = threading.Event()
    process.watch(lambda _: process.stop())
    assert status == process.run(stopping, available_now=available_now)
    assert (True, "between batches") == (stopping.is_set(), running.stopped)


def test_a_run_to_the_end_that_ends_before_the_signal_succeeds(process_of: ProcessOf, clock: Clock) -> None:
    process = process_of({"archive": Running(clock, 0.0, is_active=False)})
    process.watch(lambda _: process.stop())
    assert 0 == process.run(available_now=True)


@pytest.mark.parametrize("slow_step", ["require_broker", "spark_session"])
@pytest.mark.parametrize(("available_now", "status"), [(False, 0), (True, 1)])
def test_a_signal_during_the_start_is_not_lost(
    process_of: ProcessOf, monkeypatch: pytest.MonkeyPatch, slow_step: str, *, available_now: bool, status: int
) -> None:
    """The first process of a container gets no signal that it does not handle. No query starts any more."""
    process = process_of({"sales": None})
    step = getattr(pipeline, slow_step)
    monkeypatch.setattr(pipeline, slow_step, lambda settings: (process.stop(), step(settings))[1])
    assert status == process.run(available_now=available_now)
    assert [] == process.started


def test_no_query_starts_after_a_stop_signal(
    process_of: ProcessOf, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start takes seconds. A supervisor could kill the process before the last query has started and stopped."""
    process = process_of({"sales": Running(clock, 3.0), "fan-out": Running(clock, 3.0)})
    start = process._start
    monkeypatch.setattr(process, "_start", lambda *given: (process.stop(), start(*given))[1])
    assert 0 == process.run()
    assert ["sales"] == process.started
    assert "between batches" == process.queries["sales"].stopped


def test_a_batch_that_a_stop_interrupts_is_no_error_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query reports an error of a batch. Any other error of py4j stays in the log."""
    loggers = [logging.getLogger(name) for name in ("", "py4j", "py4j.clientserver")]
    for logger in loggers:
        monkeypatch.setattr(logger, "filters", [])
        monkeypatch.setattr(logger, "level", logger.level)
    pipeline._quieten_py4j()
    found = {}
    for error in (BatchFailedError("java.lang.InterruptedException"), KeyError("rows")):
        record = loggers[-1].makeRecord("", logging.ERROR, "", 0, "", (), (type(error), error, None))
        found[type(error)] = bool(loggers[-1].filter(record))
    assert {BatchFailedError: False, KeyError: True} == found


def test_a_query_that_is_named_twice_runs_once(run: list[list[str]]) -> None:
    """Its second lock would say that another process uses the checkpoint."""
    with pytest.raises(SystemExit):
        pipeline.main(["sales", "fan-out", "sales"], available_now=True)
    assert [["fan-out", "sales"]] == run


@pytest.mark.parametrize(("setting", "names"), [("export_dir", [*QUERIES]), ("archive_dir", ["archive"])])
def test_a_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, names: list[str]
) -> None:
    """The reason names the folder and the variable. No folder and no file appears, also in the other folders."""
    (tmp_path / "file").touch()
    settings = private_settings(tmp_path, **{setting: str(tmp_path / "file" / "below")})
    monkeypatch.setattr(pipeline, "_run", lambda *_, **__: pytest.fail("a query starts"))
    with capture_logs() as logs:
        assert 2 == pipeline.run(settings, names, available_now=False)
    (line,) = logs
    assert f"cannot write to {tmp_path / 'file' / 'below'}" in line["reason"]
    assert f"set LOYALTY_{setting.upper()} to another folder" in line["reason"]
    assert [tmp_path / "file"] == list(tmp_path.iterdir())


def test_a_second_process_starts_no_query(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that write one checkpoint damage it. The refusal names the checkpoint."""
    checkpoint = QUERIES["fan-out"].checkpoint(settings)
    monkeypatch.setattr(pipeline, "_run", lambda *_, **__: pytest.fail("a query starts"))
    with hold(checkpoint), capture_logs() as logs:
        assert 2 == pipeline.run(settings, ["sales", "fan-out"], available_now=True)
    (line,) = logs
    assert "refused to start" == line["event"]
    assert checkpoint in line["reason"]


def test_a_query_that_starts_again_does_not_ask_for_the_schema_ids(process_of: ProcessOf, clock: Clock) -> None:
    """It must not depend on the Schema Registry."""
    process = process_of({"sales": Running(clock, 0.0), "archive": Running(clock, 0.0, is_active=False)})
    process.watch(lambda queries: (queries.start(["sales", "archive"]), process.stop()))
    process.run()
    assert 4 == len(process.ids)
    assert 1 == len({id(each) for each in process.ids})


def test_the_metrics_say_whether_lost_records_are_skipped(process_of: ProcessOf, clock: Clock) -> None:
    """The alert DataLossAccepted reminds the operator to remove the setting."""
    process = process_of({"sales": Running(clock, 0.0)})
    process.watch(lambda _: process.stop())
    for accepts in (True, False):
        process.run(accept_data_loss=accepts)
        assert accepts == REGISTRY.get_sample_value("loyalty_pipeline_accepts_data_loss")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("value", "warnings"), [("true", 1), ("false", 0)])
def test_a_start_that_skips_lost_records_says_so(monkeypatch: pytest.MonkeyPatch, value: str, warnings: int) -> None:
    """The setting can stay in a file of settings, and then hides later losses."""
    monkeypatch.setenv("LOYALTY_ACCEPT_DATA_LOSS", value)
    with capture_logs() as logs, pytest.raises(SystemExit):
        pipeline.main()
    assert warnings == sum("LOYALTY_ACCEPT_DATA_LOSS is true" in each["event"] for each in logs)


def test_the_process_holds_the_checkpoints_of_all_its_queries(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are free again when it ends."""
    checkpoints = [QUERIES[name].checkpoint(settings) for name in ("sales", "fan-out")]

    def refused(*_: object, **__: object) -> int:
        for checkpoint in checkpoints:
            with pytest.raises(CheckpointInUseError), hold(checkpoint):
                pass
        return 0

    monkeypatch.setattr(pipeline, "_run", refused)
    assert 0 == pipeline.run(settings, ["sales", "fan-out"], available_now=True)
    for checkpoint in checkpoints:
        with hold(checkpoint):
            pass
