"""Run ``make test`` several times under load, and count the tests that do not always pass (``make verdict``).

A run belongs to the current commit. Another call continues the runs of the same commit. Writes
var/reports/verdict.json: one row for each run, and a summary.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.machine import machine
from benchmarks.reports import publish_report
from infra.local.folders import ROOT
from tests.support.checkout import commit

REPORT = ROOT / "var" / "reports" / "verdict.json"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of ``make test``.

    Attributes:
        load: the number of busy processes during the run.
        seconds: the duration of the command, including lint and set-up.
        status: the exit status of make.
        passed: the number of tests that passed.
        failed: the names of tests that failed. If this is empty and the status is not 0, lint failed or no test ran.
    """

    commit: str
    load: int
    seconds: float
    status: int
    passed: int
    failed: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="number of runs of this commit with this load")
    parser.add_argument("--load", type=int, default=8, help="number of busy processes during each run")
    options = parser.parse_args()
    now = commit()
    runs = [run for run in read_runs() if run.commit == now]
    while sum(run.load == options.load for run in runs) < options.runs:
        runs.append(run_tests(now, options.load))
        publish_report(REPORT, report(runs))


def read_runs(path: Path = REPORT) -> list[Run]:
    if not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return [Run(**row | {"failed": tuple(row["failed"])}) for row in rows]


def report(runs: Sequence[Run]) -> dict[str, Any]:
    return {"machine": machine(), **summary(runs), "runs": [dataclasses.asdict(run) for run in runs]}


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The median seconds by load, and the number of failures by test.

    A flake is a test that failed in some runs but not in all of them.
    """
    loads = sorted({run.load for run in runs})
    failures = Counter(name for run in runs for name in run.failed)
    return {
        "seconds": {str(load): median(run.seconds for run in runs if run.load == load) for load in loads},
        "flakes": {name: count for name, count in failures.items() if count < len(runs)},
        "failures": {name: count for name, count in failures.items() if count == len(runs)},
    }


def run_tests(code: str, load: int) -> Run:
    with tempfile.TemporaryDirectory() as directory, busy(load):
        results = Path(directory) / "tests.xml"
        environment = os.environ | {"PYTEST_ADDOPTS": f"--junit-xml={results}"}
        begun = time.monotonic()
        status = subprocess.run(["make", "test"], cwd=ROOT, env=environment, check=False).returncode
        seconds = round(time.monotonic() - begun, 1)
        passed, failed = outcomes(results)
    return Run(code, load, seconds, status, passed, failed)


def outcomes(results: Path) -> tuple[int, tuple[str, ...]]:
    """The number of passed tests, and the names of failed tests, from a file of ``--junit-xml``."""
    if not results.exists():
        return 0, ()
    passed, failed = 0, []
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - pytest wrote the file
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" not in kinds:
            passed += 1
    return passed, tuple(failed)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run this number of processes that always want a core."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
