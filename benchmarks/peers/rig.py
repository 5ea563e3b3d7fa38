"""A pipeline and an API with their own broker, and invoices at a steady rate."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from infra.local import jars
from infra.local.ports import HOST
from infra.local.processes import ManagedProcess, ProcessFailedError
from infra.local.stack import environment_of
from services.messaging.administration import create_topics
from services.settings import Settings
from tests.support.processes import ApiProcess

_START_SECONDS = 600.0


@dataclass(frozen=True)
class Rig:
    settings: Settings
    pipeline: psutil.Process
    api: ApiProcess


@contextmanager
def rig(settings: Settings, directory: Path, queries: Sequence[str]) -> Iterator[Rig]:
    """Start pipeline and API, and wait until they are ready.

    Args:
        queries: names of the queries. Empty for the default of the pipeline.

    Raises ProcessFailedError if the pipeline does not start, or ends before the caller has finished.
    """
    settings = settings.model_copy(
        update={"checkpoint_dir": str(directory / "checkpoints"), "export_dir": str(directory / "parquet")}
    )
    create_topics(settings)
    process = ManagedProcess("pipeline", directory / "run", directory / "log", stop_timeout=120)
    command = [sys.executable, "-m", "pipelines", *(word for query in queries for word in ("--query", query))]
    process.start(command, environment_of(settings), jars.ROOT, lambda: _is_ready(settings), _START_SECONDS)
    try:
        own = settings.model_copy(update={"state_dir": directory / "api"})
        with ApiProcess(own, directory / "log" / "api.log") as api:
            api.wait_until_ready()
            yield Rig(settings, psutil.Process(process.pid), api)
            if process.pid is None:
                raise ProcessFailedError(f"the pipeline ended during the measurement. {process.last_lines()}")
    finally:
        process.stop()


def _is_ready(settings: Settings) -> bool:
    try:
        text = httpx.get(f"http://{HOST}:{settings.metrics_port}/metrics", timeout=5, trust_env=False).text
    except httpx.HTTPError:
        return False
    return "\nloyalty_pipeline_ready 1" in text
