"""Measure build time, size, start time and memory of the containers (``make bench-containers``).

Builds use a copy of the checkout, so that one build can have a changed line of code. The memory is the largest figure
of the engine, read every two seconds while the stack processes a day. It excludes page cache that can be freed. Writes
var/reports/containers.json.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import machine
from benchmarks.reports import publish_report
from infra.containers.project import ComposeProject, ContainersError, engine
from infra.containers.stack import ContainerStack
from infra.demo.oracle import expect
from infra.demo.trading_day import simulated
from infra.local.folders import ROOT
from infra.local.stack import private_settings
from schemas import topics
from services.messaging.publishing import connected_producer, publish
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options
from tests.support.threads import BackgroundThreads

REPORT = Path("var/reports/containers.json")
IMAGES = [f"retail-loyalty-{name}" for name in ("kafka", "postgres", "pipeline", "api", "cli")]
CHANGED = "services/settings.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cold", action="store_true", help="also measure a build without the cache of the builder")
    parser.add_argument("--invoices", type=int, default=1_000, help="number of invoices of the day")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = {
            "machine": machine(),
            "options": vars(options),
            "build_seconds": builds(Path(directory, "checkout"), cold=options.cold),
            "image_megabytes": {image: megabytes(image) for image in IMAGES},
            **process_a_day(Path(directory, "stack"), options.invoices),
        }
    publish_report(REPORT, report)


def builds(checkout: Path, *, cold: bool) -> dict[str, float]:
    """Seconds to build all images: without cache (``cold``), without changes, and with one changed line of code."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    certificates = [str(path.relative_to(ROOT)) for path in (ROOT / "infra/docker/ca").glob("*.crt")]
    for name in [*files.rstrip("\0").split("\0"), *certificates]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    project = ComposeProject("loyalty-bench", files=[checkout / "docker-compose.yml"])
    taken = {}
    if cold:
        taken["cold"] = seconds(lambda: project.compose("build", "--no-cache"))
    project.build()
    taken["nothing changed"] = seconds(project.build)
    with (checkout / CHANGED).open("a", encoding="utf-8") as code:
        code.write(f"# {time.time()}\n")
    taken["a line of code changed"] = seconds(project.build)
    return taken


def seconds(action: Callable[[], Any]) -> float:
    started = time.monotonic()
    action()
    return round(time.monotonic() - started, 1)


def megabytes(image: str) -> int:
    return round(int(engine("inspect", "--format", "{{.Size}}", image)) / 1e6)


def process_a_day(directory: Path, count: int) -> dict[str, Any]:
    """Seconds from the start to the first and the last balance of a day, and the memory of each container."""
    settings = private_settings(directory, export_interval=timedelta(seconds=10), stop_timeout=timedelta(seconds=1))
    stack = ContainerStack(directory, settings, environment={"LOYALTY_API_ACCESS": "anyone"})
    stack.project.build()
    day = list(simulated(Options(count=count, seed=3), schema_ids(settings)))
    readings = list(expect(day, settings.loyalty_factor).readings.values())
    memory, taken = Memory(stack), {}
    started = time.monotonic()

    def lap(name: str) -> None:
        taken[name] = round(time.monotonic() - started, 1)

    try:
        with memory:
            stack.project.up()
            lap("containers")
            name = settings.name_of(topics.POS_INVOICES)
            publish(((each.key, each.value) for each in day), connected_producer(settings, "benchmark", [name]), name)
            wait_for_balance(stack, *readings[0])
            lap("first balance")
            stack.wait_until_ready()
            wait_for_balance(stack, *readings[-1])
            lap("last balance")
    finally:
        stack.stop()
    return {"seconds_from_start": taken, "memory_megabytes": memory.largest}


def wait_for_balance(stack: ContainerStack, card: str, sequence: int) -> None:
    """Poll until the balance of a customer has this sequence number."""
    with httpx.Client(timeout=60, trust_env=False) as http:
        while True:
            stack.check()
            with suppress(httpx.TransportError):
                parameters = {"minSequence": sequence, "timeout": 10}
                url = f"{stack.api_url}/v1/customers/{card}/balance"
                if http.get(url, params=parameters).status_code == httpx.codes.OK:
                    return
            time.sleep(0.2)


class Memory(BackgroundThreads):
    """The largest memory of each service, in megabytes."""

    def __init__(self, stack: ContainerStack) -> None:
        self._stack = stack
        super().__init__(self._watch)
        self.largest: dict[str, int] = {}

    def _watch(self) -> None:
        while not self.stopping.wait(2):
            with suppress(ContainersError):  # the container has just ended
                self._sample()

    def _sample(self) -> None:
        services = {
            container.id: container.service for container in self._stack.project.containers() if container.is_up
        }
        if not services:
            return
        format_ = "{{.ID}} {{.MemUsage}}"
        for line in engine("stats", "--no-stream", "--no-trunc", "--format", format_, *services).splitlines():
            identity, used, *_ = line.split()
            service = services[identity]
            self.largest[service] = max(self.largest.get(service, 0), in_megabytes(used))


def in_megabytes(text: str) -> int:
    """Parse memory as the engine prints it: 74.09MiB, 1.2GiB."""
    factors = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "B": 1}
    unit = next(unit for unit in factors if text.endswith(unit))
    return round(float(text.removesuffix(unit)) * factors[unit] / 1e6)


if __name__ == "__main__":
    main()
