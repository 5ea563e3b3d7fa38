"""Runs one contender over the whole workload, measures it, and checks its output."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.peers.workload import LOYALTY, Workload
from benchmarks.pipeline import Variant, Watch, run_to_the_end
from infra.local.folders import ROOT

WARM_UP = 0.25
"""The share of the invoices at the start of a run that the figures exclude."""

_QUIET_SECONDS = 5.0
"""A contender that writes nothing for this time is at the end of its input."""

_POLL_SECONDS = 2.0
"""Poll rarely, because polls cost processor time. The end of a run comes from the append times of the broker."""

_TIMEOUT_SECONDS = 240.0
_STOP_SECONDS = 60.0
_LOG_BYTES = 2_000

Figures = dict[str, float]


class PeerFailedError(RuntimeError):
    """A peer has ended, or makes no progress. The message has the end of its log."""


@dataclass(frozen=True)
class Command:
    """A process of a peer."""

    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


@contextmanager
def running(commands: Sequence[Command], directory: Path) -> Iterator[list[Watch]]:
    """Start these processes in a directory for their logs, sample them, and end them with SIGTERM."""
    directory.mkdir(parents=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOYALTY_")}
    watches = []
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((directory / f"{number}.log").open("wb"))
            process = psutil.Popen(
                list(command.arguments),
                env=inherited | command.environment,
                cwd=directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_stop, process)
            watches.append(Watch(process))
        for watch in watches:
            stack.enter_context(watch.sampled())
        yield watches


def _stop(process: psutil.Popen) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(_STOP_SECONDS)


def run_peer(commands: Sequence[Command], workload: Workload, branch: str, directory: Path) -> Figures:
    """Let a peer read all input. Raises PeerFailedError, WrongOutputError."""
    started = time.time()
    with running(commands, directory) as watches:
        _wait_for_outputs(workload, branch, watches, directory)
    times = workload.compare(branch, balances=False)
    begin, end = times[int(len(times) * WARM_UP)] / 1000, times[-1] / 1000
    invoices = workload.options.count * sum(time / 1000 > begin for time in times) / len(times)
    steady = sum(watch.cpu_seconds_at(end) - watch.cpu_seconds_at(begin) for watch in watches)
    whole = sum(watch.cpu_seconds_at(end) for watch in watches)
    return {
        "invoices_per_second": round(invoices / (end - begin), 1),
        "cpu_seconds_per_1000_invoices": round(steady / invoices * 1000, 3),
        "cpu_seconds_per_1000_invoices_with_start": round(whole / workload.options.count * 1000, 3),
        "peak_memory_mib": round(sum(watch.peak_bytes for watch in watches) / 2**20),
        "seconds": round(end - started, 1),
    }


def _wait_for_outputs(workload: Workload, branch: str, watches: Sequence[Watch], directory: Path) -> None:
    """Wait until all output is written.

    The number of offsets is not enough, because transactions add markers. So this also waits for a time without new
    records.
    """
    due, there, moved = workload.records(branch), 0, time.monotonic()
    while there < due or time.monotonic() - moved < _QUIET_SECONDS:
        time.sleep(_POLL_SECONDS)
        ended = any(watch.process.status() == psutil.STATUS_ZOMBIE for watch in watches)
        if ended or time.monotonic() - moved > _TIMEOUT_SECONDS:
            state = "has ended" if ended else "makes no progress"
            raise PeerFailedError(f"{directory.name} {state} with {there} of {due} records:\n{_last_lines(directory)}")
        if (now := workload.ends(branch)) != there:
            there, moved = now, time.monotonic()


def _last_lines(directory: Path) -> str:
    logs = (log.read_text(encoding="utf-8", errors="replace")[-_LOG_BYTES:] for log in sorted(directory.glob("*.log")))
    return "\n".join(logs)


def run_ours(
    workload: Workload, branch: str, directory: Path, warm_up: int | None = None, **changes: object
) -> Figures:
    """Let the query of this checkout read all input. Raises WrongOutputError, RuntimeError.

    Args:
        warm_up: the number of micro-batches that the figures exclude. None for the share WARM_UP.
        changes: changes of the settings.
    """
    settings = workload.settings.model_copy(update={"checkpoint_dir": str(directory), **changes})
    batches = warm_up or max(1, round(WARM_UP * workload.options.count / settings.max_offsets_per_trigger))
    log = directory.with_suffix(".log")
    started = time.time()
    figures = run_to_the_end(Variant(branch, ROOT), settings, log, warm_up=batches)
    ended = time.time()
    workload.compare(branch, balances=branch == LOYALTY)
    return figures | {"seconds": round(ended - started, 1)}
