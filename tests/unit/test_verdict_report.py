"""The report of several runs of the tests."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.reports import write_report
from benchmarks.verdict import Run, busy, outcomes, read_runs, report, summary

GOOD = Run("abc", 8, 900.0, 0, 5, ())


def test_a_flake_failed_in_some_runs_only() -> None:
    runs = [
        GOOD,
        dataclasses.replace(GOOD, seconds=1000.0, status=2, failed=("a",)),
        dataclasses.replace(GOOD, load=0, seconds=600.0),
    ]
    assert {"seconds": {"0": 600.0, "8": 950.0}, "flakes": {"a": 1}, "failures": {}} == summary(runs)
    assert {"a": 1} == summary(runs[1:2])["failures"]


def test_another_call_continues_the_runs(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    assert [] == read_runs(path)
    runs = [GOOD, dataclasses.replace(GOOD, failed=("a", "b"))]
    write_report(path, report(runs))
    assert runs == read_runs(path)


@pytest.mark.program
def test_outcomes_are_those_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 0\n"
        "def test_skipped(): pytest.skip()\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError\n"
        "def test_error(broken): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--junit-xml=found.xml", "test_it.py"]
    subprocess.run(command, cwd=tmp_path, check=False, capture_output=True)
    assert (1, ("test_it::test_bad", "test_it::test_error")) == outcomes(tmp_path / "found.xml")
    assert (0, ()) == outcomes(tmp_path / "missing.xml")


@pytest.mark.program
def test_busy_processes_end() -> None:
    before = {*psutil.Process().children()}
    with busy(2):
        started = {*psutil.Process().children()} - before
        assert len(started) == 2
    assert not any(process.is_running() for process in started)
