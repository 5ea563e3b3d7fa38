"""The log of the JVM on the stderr of the pipeline."""

import json
import os
import threading
import time

import pytest

from pipelines.runtime import java_log
from tests.support.waiting import wait_for

WARNING = "2026-11-23T17:39:38.653Z WARN StateStore: the disk is full\n"
NOISE = (
    "WARNING: Using incubator modules: jdk.incubator.vector\n"
    "2026-11-23T17:39:38.653Z WARN StateStore: Error running maintenance threadSparkEnv not active, cannot do "
    "maintenance on StateStores\n"
)


def forwarded(text: str, capfd: pytest.CaptureFixture[str], *, as_json: bool) -> str:
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    java_log.forward(reading, as_json=as_json)
    return capfd.readouterr().err


def test_lines_pass_except_those_of_a_healthy_pipeline(capfd):
    assert WARNING == forwarded(NOISE + WARNING, capfd, as_json=False)


def test_each_record_is_json_with_the_names_of_the_other_log_lines(capfd):
    """A stack trace belongs to the line before it. A line of a Python worker is JSON already."""
    trace, own = "java.io.IOException\n\tat org.apache.spark.Ä", '{"event": "of a worker"}\n'
    text = f"{NOISE}{WARNING}{trace}\n{own}Killed\n{WARNING}"
    first, second, third, fourth = map(json.loads, forwarded(text, capfd, as_json=True).splitlines())
    expected = {"timestamp": "2026-11-23T17:39:38.653Z", "level": "warning", "logger": "StateStore"}
    assert expected | {"event": "the disk is full", "exception": trace} == first
    assert json.loads(own) == second
    assert "Killed" == third["event"]
    assert expected | {"event": "the disk is full"} == fourth


def test_lines_without_a_record_are_one_json_object(capfd):
    """For example, the traceback of a Python worker that has no log."""
    (only,) = forwarded("Traceback:\n  File\nMemoryError\n", capfd, as_json=True).splitlines()
    found = json.loads(only)
    assert ("Traceback:", "  File\nMemoryError", "error") == (found["event"], found["exception"], found["level"])


def test_a_record_is_written_after_a_pause(capfd):
    """It does not wait for the next record. A line can arrive in parts."""
    reading, writing = os.pipe()
    copying = threading.Thread(target=java_log.forward, args=(reading,), kwargs={"as_json": True})
    copying.start()
    written = []

    def has_written() -> bool:
        written.append(capfd.readouterr().err)
        return "the disk is full" in "".join(written)

    try:
        os.write(writing, WARNING[:30].encode())
        time.sleep(2 * java_log._PAUSE_SECONDS)  # the pause inside of a line does not end its record
        os.write(writing, WARNING[30:].encode())
        wait_for("the record", has_written)
    finally:
        os.close(writing)
        copying.join()
    (record,) = map(json.loads, "".join([*written, capfd.readouterr().err]).splitlines())
    assert ("the disk is full", "warning", "StateStore") == (record["event"], record["level"], record["logger"])


def test_the_log_continues_after_its_disk_was_full(capfd, monkeypatch):
    """Only the lines of this time are lost. Otherwise no line of the JVM would pass until the process restarts."""
    write, stderr, full = os.write, os.dup(2), os.open("/dev/full", os.O_WRONLY)

    def write_and_free_space(to: int, line: bytes) -> int:
        try:
            return write(to, line)
        finally:
            if to == 2:
                os.dup2(stderr, 2)

    monkeypatch.setattr(os, "write", write_and_free_space)
    os.dup2(full, 2)
    assert WARNING == forwarded("lost\n" + WARNING, capfd, as_json=False)
    os.close(stderr)
    os.close(full)
