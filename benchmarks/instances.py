"""API processes of a benchmark, and their requests per second of processor time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks import load
from services.settings import Settings
from tests.support.processes import ROOT, ApiProcess


def per_core(
    processes: list[psutil.Process],
    url: str,
    paths: list[str],
    seconds: float,
    rates: list[float] | None = None,
    tokens: Sequence[str] = (),
) -> float:
    """Requests per second of processor time of the servers, under full load.

    Args:
        rates: gets the requests per second of elapsed time.
    """
    load.run(url, paths, rate=None, seconds=0.3, tokens=tokens)
    before = cpu_seconds(processes)
    measured = load.run(url, paths, rate=None, seconds=seconds, tokens=tokens)
    if set(measured.statuses) != {200}:
        raise RuntimeError(f"{url} answered {measured.statuses}")
    if rates is not None:
        rates.append(measured.requests_per_second)
    return len(measured.latencies) / (cpu_seconds(processes) - before)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def start_instance(
    settings: Settings, directory: Path, name: str, standbys: int = 0, checkout: Path = ROOT
) -> ApiProcess:
    own = {"state_dir": state_dir_of(directory, name), "standby_replicas": standbys}
    return ApiProcess(settings.model_copy(update=own), directory / f"{name}.log", checkout)


def state_dir_of(directory: Path, name: str) -> Path:
    return directory / "instances" / name


def metadata(instance: ApiProcess) -> list[dict[str, Any]]:
    instances: list[dict[str, Any]] = instance.http.get("/v1/stores/customer-balances/metadata").json()["instances"]
    return instances


def owners(instance: ApiProcess) -> int:
    return sum(bool(each["active"]) for each in metadata(instance))


def served_by(instance: ApiProcess, path: str) -> str:
    return str(instance.http.get(path).headers["loyalty-served-by"])


def process_of(instance: ApiProcess) -> psutil.Process:
    return psutil.Process(instance.pid)
