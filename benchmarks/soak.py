"""Run everything that ``make up`` starts for hours, at a steady rate of invoices and redemptions (``make soak``).

The soak has a warm-up and four quarters. It samples memory, threads, file descriptors and disk, and measures latencies
as ``benchmarks.latency`` does. At the end ``loyalty audit`` recomputes all accounts. Writes var/reports/soak.json,
var/reports/soak-samples.json and var/reports/soak.svg, the last two also after a failure. The soak fails if a part of
the stack ends, or if the audit finds a difference.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.latency import BALANCE, REDEEMING_CARDS, REDEMPTION, Load, Samples, measure, started
from benchmarks.machine import machine
from benchmarks.pipeline import proportional_bytes
from benchmarks.reports import publish_report, write_report
from benchmarks.resources import every
from benchmarks.time_series import picture
from infra.local.stack import LocalStack, private_settings
from tests.support.programs import last_error, loyalty

REPORT = Path("var/reports/soak.json")
SAMPLES = REPORT.with_name("soak-samples.json")
PICTURE = REPORT.with_suffix(".svg")

QUARTERS = ("quarter 1", "quarter 2", "quarter 3", "quarter 4")
MEASURES = ("memory_mib", "threads", "descriptors")
"""The sampled figures of each part of the stack, including its child processes. A shared page counts once."""

DISK = "disk_mib"
REDEMPTIONS_A_SECOND = 2.0
_SAMPLE_SECONDS = 20.0
"""Sample rarely, because the kernel visits all pages to compute the shared memory."""

_LONGEST_AUDIT_SECONDS = 4 * 3600.0
_MIB = 2**20


@dataclass
class Resources:
    """Samples of all parts of a stack.

    Attributes:
        times: seconds since the epoch of each sample.
        values: one value for each time, by part and measure. 0 if the part did not run.
    """

    stack: LocalStack
    times: list[float] = field(default_factory=list)
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def sample(self) -> None:
        found: dict[tuple[str, str], float] = {("all", DISK): _disk_bytes(self.stack.directory) / _MIB}
        for part in self.stack.processes:
            found |= {(part.name, name): value for name, value in zip(MEASURES, _used(part.pid), strict=True)}
        for key, value in found.items():
            self.values.setdefault(key, [0.0] * len(self.times)).append(value)
        self.times.append(time.time())

    def mean(self, key: tuple[str, str], period: tuple[float, float]) -> float:
        """The mean of the samples between two times."""
        chosen = [value for moment, value in zip(self.times, self.values[key], strict=True) if _within(moment, period)]
        return float(np.mean(chosen)) if chosen else float("nan")

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample until the end of the block, then write the samples and the picture, also after a failure."""
        self.sample()
        try:
            with every(_SAMPLE_SECONDS, self.sample):
                yield
        finally:
            self._save()

    def _save(self) -> None:
        series = {f"{part}, {name}": values for (part, name), values in self.values.items()}
        write_report(SAMPLES, {"seconds_since_epoch": self.times, "values": series})
        PICTURE.write_text(picture(self.times, shown(self.values)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=4, help="duration after the warm-up")
    parser.add_argument("--rate", type=int, default=100, help="invoices per second")
    parser.add_argument("--warm-up", type=float, default=300, help="seconds before the first quarter")
    parser.add_argument("--customers", type=int, default=50_000, help="number of customers")
    options = parser.parse_args()
    seconds = options.hours * 3600 / len(QUARTERS)
    loads = [Load(None, options.warm_up, options.rate, REDEMPTIONS_A_SECOND)]
    loads += [Load(name, seconds, options.rate, REDEMPTIONS_A_SECOND) for name in QUARTERS]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        settings = private_settings(directory, pipeline_drivers=2)
        with started(directory, settings, ()) as stack:
            resources = Resources(stack)
            try:
                with resources.sampled():
                    samples = measure(stack, loads, options.customers)
            finally:
                stack.check()
            # Write the report before the audit, because the audit of several hundred thousand invoices takes many
            # minutes.
            circumstances = {"machine": machine(), "options": vars(options)}
            publish_report(REPORT, circumstances | {"rows": [*rows(resources, samples)]})
            _until_lapsed(stack)
            audited = loyalty(settings, "audit", timeout=_LONGEST_AUDIT_SECONDS)
    if audited.returncode:
        sys.exit(f"soak: loyalty audit ended with status {audited.returncode}: {last_error(audited)}")


def _until_lapsed(stack: LocalStack) -> None:
    """Wait until the reservations of the load have lapsed. Otherwise the audit compares these customers again."""
    with httpx.Client(base_url=stack.api_url, trust_env=False) as client:
        for card in REDEEMING_CARDS:
            while client.get(f"/v1/customers/{card}/balance").json()["ReservedLoyaltyPoints"] != "0.00":
                time.sleep(_SAMPLE_SECONDS)


def rows(resources: Resources, samples: Samples) -> Iterator[dict[str, Any]]:
    """A row for each measure of each part, and for each latency: a figure for each quarter, and the growth.

    The growth is the last quarter divided by the second one, or for a latency by the first one.
    """
    for part, name in resources.values:
        quarters = [resources.mean((part, name), samples.periods[quarter]) for quarter in QUARTERS]
        yield _row(f"{part}, {name}", quarters, quarters[1])
    for work in (BALANCE, REDEMPTION):
        for percent in (50, 99):
            quarters = [float(np.percentile(samples.milliseconds[work, quarter], percent)) for quarter in QUARTERS]
            yield _row(f"{work}, p{percent} ms", quarters, quarters[0])


def shown(values: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, dict[str, Sequence[float]]]:
    """The lines of all charts. There is a chart for each measure, with a line for each part."""
    return {
        name: {part: series for (part, measured), series in values.items() if measured == name}
        for name in (*MEASURES, DISK)
    }


def _row(what: str, quarters: Sequence[float], base: float) -> dict[str, Any]:
    return {"what": what, "quarters": [round(each, 1) for each in quarters], "growth": round(quarters[-1] / base, 3)}


def _used(pid: int | None) -> tuple[float, float, float]:
    """The measures of a process and its descendants. Zeros if it does not run."""
    memory = threads = descriptors = 0.0
    try:
        leader = psutil.Process(pid) if pid else None
        members = [leader, *leader.children(recursive=True)] if leader else []
    except psutil.Error:
        return memory, threads, descriptors
    for member in members:
        try:
            used = proportional_bytes(member) / _MIB, member.num_threads(), member.num_fds()
        except psutil.Error:
            continue
        memory, threads, descriptors = memory + used[0], threads + used[1], descriptors + used[2]
    return memory, threads, descriptors


def _disk_bytes(directory: Path) -> int:
    size = 0
    for file in directory.rglob("*"):
        try:
            size += file.stat().st_blocks * 512 if file.is_file() else 0
        except OSError:
            continue
    return size


def _within(moment: float, period: tuple[float, float]) -> bool:
    return period[0] <= moment <= period[1]


if __name__ == "__main__":
    main()
