"""The process of the pipeline, its settings and its time, without Spark and Kafka."""

from functools import partial
from pathlib import Path

import pytest

import pipelines.__main__ as pipeline
from pipelines.driver import stop as stop_module
from services.settings import Settings, read_settings
from tests.unit.pipelines.process.pipeline_process import Clock, Process, ProcessOf, Running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(stop_module, "time", found)
    monkeypatch.setattr(stop_module, "plans_batch", Running.plans_batch)
    monkeypatch.setattr(stop_module, "begin_no_batch", Running.begin_no_batch)
    monkeypatch.setattr(stop_module, "stop", lambda query: query.stop())
    return found


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOYALTY_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("LOYALTY_ARCHIVE_DIR", str(tmp_path / "archive"))
    return read_settings()


@pytest.fixture
def process_of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> ProcessOf:
    """Makes a process with these queries."""
    return partial(Process, monkeypatch, settings)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The queries of each run of the command, which starts none of them."""
    found: list[list[str]] = []
    monkeypatch.setattr(pipeline, "run", lambda _, names, **__: found.append(names) or 0)
    monkeypatch.setattr(pipeline, "_quieten_py4j", lambda: None)
    monkeypatch.setattr(pipeline, "configure_logging", lambda _: None)
    return found
