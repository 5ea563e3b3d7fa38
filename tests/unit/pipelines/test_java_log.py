"""The log of the JVM on the stderr of the pipeline."""

import json
import os

import pytest

from pipelines.runtime import java_log

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


def test_each_line_is_json_with_the_names_of_the_other_log_lines(capfd):
    trace, own = "\tat org.apache.spark.Ä\n", '{"event": "of a worker"}\n'
    first, second, third = map(json.loads, forwarded(WARNING + trace + own, capfd, as_json=True).splitlines())
    expected = {"timestamp": "2026-11-23T17:39:38.653Z", "level": "warning", "logger": "StateStore"}
    assert expected | {"event": "the disk is full"} == first
    assert ("\tat org.apache.spark.Ä", "error") == (second["event"], second["level"])
    assert json.loads(own) == third


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
