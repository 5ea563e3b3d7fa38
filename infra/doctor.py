"""``loyalty doctor`` checks whether this machine can run the system, and says how to solve each problem."""

import ctypes
import math
import re
import shutil
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer

from infra.docker.healthy import is_healthy
from infra.local import folders
from infra.local.java import JavaNotFoundError, find_java_home
from infra.local.ports import api_url_of, url_of
from services.cli.output import FAILED, AsJson, read_settings, report, table
from services.cli.processes import Folder
from services.messaging.publishing import PublishError, require_broker
from services.settings import Settings
from services.start_up import StartUpError, local_folder, require_port, require_writable

MEMORY = {1: 3.5, 2: 5.5}
"""GiB by number of Spark drivers: what the kernel leaves of 4 GB and of 6 GB (docs/lab)."""

DISK = 2.0
"""GiB for the Kafka logs, checkpoints and stores of some days of experiments."""

_GIB = 2**30
_CLOCK_NOT_SYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""


class State(StrEnum):
    """The result of a check. The system cannot run only if there is a problem."""

    GOOD = "good"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(NamedTuple):
    """The result of one check. ``advice`` says what to do; empty if there is nothing to do."""

    name: str
    state: State
    found: str
    advice: str = ""


def examine(settings: Settings) -> Iterator[Check]:
    """Run all checks. None of them changes anything."""
    yield java()
    yield memory(settings.pipeline_drivers)
    yield from ports(settings)
    yield from disks(settings)
    yield clock()


def java() -> Check:
    try:
        return Check("java", State.GOOD, str(find_java_home()))
    except JavaNotFoundError as error:
        return Check("java", State.PROBLEM, "not found", f"{error}. The API and the ledger need no Java")


def memory(drivers: int, facts: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> Check:
    """Compare the memory with the needs of this number of drivers. Respects the limit of a container (cgroups 2)."""
    try:
        kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", facts.read_text(encoding="ascii"), re.MULTILINE))
    except OSError as error:
        return Check(
            "memory",
            State.WARNING,
            f"cannot read {facts}: {error.strerror}",
            f"check that the machine has {_gigabytes(drivers)} GB",
        )
    total, available = (int(kilobytes.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    allowed = limit.read_text(encoding="ascii").strip() if limit.exists() else "max"
    total = min(total, int(allowed)) if allowed.isdigit() else total
    found = f"{total / _GIB:.1f} GiB, {min(available, total) / _GIB:.1f} GiB available"
    if total < MEMORY[drivers] * _GIB:
        fewer = ", set LOYALTY_PIPELINE_DRIVERS=1" if total >= MEMORY[1] * _GIB else ""
        advice = f"use a machine with {_gigabytes(drivers)} GB{fewer}, or run the parts on several machines"
        return Check("memory", State.PROBLEM, found, advice)
    if available < MEMORY[drivers] / 2 * _GIB:
        return Check("memory", State.WARNING, found, f"stop other programs: the pipeline may need {2 * drivers} GiB")
    return Check("memory", State.GOOD, found)


def _gigabytes(drivers: int) -> int:
    return math.ceil(MEMORY[drivers])


def ports(settings: Settings) -> Iterator[Check]:
    """Check that each port is free, or that its part of the system already uses it."""
    metrics = settings.metrics_host
    kafka_host, _, kafka_port = settings.kafka_bootstrap_servers.rpartition(":")
    if kafka_host in {"127.0.0.1", "localhost"}:
        variable = "LOYALTY_KAFKA_BOOTSTRAP_SERVERS"
        if kafka_port.isdecimal() and 0 < int(kafka_port) < 2**16:
            yield _port("kafka", kafka_host, int(kafka_port), variable, partial(_is_kafka, settings))
        else:
            found = f"{settings.kafka_bootstrap_servers} has no port from 1 to 65535"
            yield Check("port of kafka", State.PROBLEM, found, f"set {variable} to host:port")
    answers = partial(is_healthy, f"{api_url_of(settings)}/livez")
    yield _port("api", settings.api_host, settings.api_port, "LOYALTY_API_PORT", answers)
    parts = [
        ("pipeline", settings.metrics_port, "LOYALTY_METRICS_PORT"),
        ("ledger", settings.ledger_metrics_port, "LOYALTY_LEDGER_METRICS_PORT"),
        ("webhooks", settings.webhooks_metrics_port, "LOYALTY_WEBHOOKS_METRICS_PORT"),
    ]
    if settings.pipeline_drivers > 1:
        parts.append(("background", settings.background_metrics_port, "LOYALTY_BACKGROUND_METRICS_PORT"))
    for name, port, variable in parts:
        yield _port(name, metrics, port, variable, partial(is_healthy, f"{url_of(metrics, port)}/livez"))


def _port(name: str, host: str, port: int, variable: str, is_own: Callable[[], bool]) -> Check:
    try:
        require_port(host, port, variable)
    except StartUpError as error:
        if is_own():
            return Check(f"port of {name}", State.GOOD, f"{host}:{port} is in use: {name} runs already")
        return Check(f"port of {name}", State.PROBLEM, *_cause_and_advice(error))
    return Check(f"port of {name}", State.GOOD, f"{host}:{port} is free")


def _is_kafka(settings: Settings) -> bool:
    try:
        require_broker(settings)
    except PublishError:
        return False
    return True


def disks(settings: Settings) -> Iterator[Check]:
    """Check that each local folder of data can be written and has DISK free."""
    data_folders = {
        "LOYALTY_CHECKPOINT_DIR": settings.checkpoint_dir,
        "LOYALTY_EXPORT_DIR": settings.export_dir,
        "LOYALTY_ARCHIVE_DIR": settings.archive_dir,
        "LOYALTY_STATE_DIR": str(settings.state_dir),
    }
    for variable, text in data_folders.items():
        folder = local_folder(text)
        if folder is None:
            continue
        name = f"disk of {variable}"
        try:
            require_writable(folder, variable)
        except StartUpError as error:
            yield Check(name, State.PROBLEM, *_cause_and_advice(error))
            continue
        present = next(each for each in (folder, *folder.parents) if each.exists())
        free = shutil.disk_usage(present).free
        state = State.GOOD if free >= DISK * _GIB else State.PROBLEM
        advice = "" if state is State.GOOD else f"free {DISK:g} GiB, or set {variable} to a folder on another disk"
        yield Check(name, state, f"{folder}: {free / _GIB:.1f} GiB free", advice)


def clock() -> Check:
    """Ask the kernel whether the clock is synchronised. Times of entries, tokens and signatures depend on the clock."""
    try:
        # A structure of zeros changes nothing. 512 bytes are more than struct timex has.
        answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (AttributeError, OSError):
        answer = -1
    if answer == _CLOCK_NOT_SYNCHRONISED:
        advice = "start a time service, such as chrony or systemd-timesyncd: entries and tokens contain times"
        return Check("clock", State.WARNING, "not synchronised", advice)
    if answer < 0:
        return Check("clock", State.WARNING, "not known", "check that a time service sets the clock")
    return Check("clock", State.GOOD, "synchronised")


def _cause_and_advice(error: StartUpError) -> tuple[str, str]:
    """Split the message of a StartUpError into what happened and what to do."""
    cause, _, advice = str(error).partition("): ")
    return f"{cause})", advice


def main(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Check Java, memory, ports, disk and clock. The exit status is 1 if the system cannot run here."""
    folders.enter(directory)
    checks = [*examine(read_settings())]
    rows = ((check.name, check.state, check.found, check.advice) for check in checks)
    found = {"checks": [check._asdict() for check in checks]}
    report(found, table("check", "state", "found", "what to do", rows=rows), as_json=as_json)
    if any(check.state is State.PROBLEM for check in checks):
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    typer.run(main)
