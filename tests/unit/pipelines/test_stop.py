"""The end of the pipeline process, and its start without Kafka."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkRuntimeError
from structlog.testing import capture_logs

import pipelines.__main__ as pipeline
from services.messaging import publishing
from services.settings import read_settings

_EVENTS = {
    ConnectionRefusedError("refused"): "Spark's JVM has ended",
    Py4JNetworkError("no answer"): "Spark's JVM has ended",
    PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}): "Spark failed",
}
"""What the log says of an error. The last one comes while Spark starts."""


@pytest.mark.parametrize("error", _EVENTS)
@pytest.mark.parametrize(("stopped", "available_now", "status"), [(True, False, 0), (True, True, 1), (False, False, 1)])
def test_a_lost_jvm_is_an_error_unless_the_process_stops(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    *,
    stopped: bool,
    available_now: bool,
    status: int,
) -> None:
    """A supervisor may send SIGTERM to the JVM, too. Then every call of the JVM fails, and this is no failure.

    But a run to the last record has not reached it.
    """

    def lose_the_jvm(_: object, __: object, ___: ExitStack, stopping: threading.Event, **____: bool) -> int:
        if stopped:
            stopping.set()
        raise error

    monkeypatch.setattr(pipeline, "_run", lose_the_jvm)
    monkeypatch.setattr(pipeline, "require_port", lambda *_: None)
    monkeypatch.setenv("LOYALTY_CHECKPOINT_DIR", str(tmp_path))

    with capture_logs() as logs:
        assert status == pipeline.run(read_settings(), ["loyalty"], available_now=available_now)
    assert (_EVENTS[error] == logs[-1]["event"]) == (not stopped)


def test_without_kafka_the_process_ends_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the address. The status is 1, because a later start can succeed."""
    monkeypatch.setattr(publishing, "BROKER_TIMEOUT", 0.1)
    monkeypatch.setattr(pipeline, "spark_session", None)
    monkeypatch.setenv("LOYALTY_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("LOYALTY_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")

    with capture_logs() as logs:
        assert 1 == pipeline.run(read_settings(), ["loyalty"], available_now=True)

    (line,) = logs
    assert "stopped without Kafka" == line["event"]
    assert "no Kafka broker answers at 127.0.0.1:1: start Kafka" in line["reason"]
