"""The rows of var/reports/faults.json and the table of docs/lab/faults.md."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.local.folders import ROOT
from tests.faults import report
from tests.faults.__main__ import SCENARIOS, UNUSED
from tests.faults.report import DOCUMENT, HEADINGS, Row, cells, into_document, read, record


def rows_of_the_document() -> list[list[str]]:
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in tables if len(row) == len(HEADINGS)][1:]


def test_every_fault_of_the_harness_has_its_row() -> None:
    """The document has a row for every fault, run or not, and no other row."""
    assert sorted(SCENARIOS) == sorted(row[0] for row in rows_of_the_document() if row[0] != "---")


@pytest.mark.program
def test_the_harness_does_not_run_what_keeps_its_results_valid() -> None:
    """A result must not stay valid after a change of a module that the harness or one of its processes imports."""
    programs = "tests.faults.__main__, pipelines.__main__, api.__main__, services.ledger.__main__, services.cli"
    command = f"import sys, {programs}; print(*(getattr(each, '__file__', '') for each in sys.modules.values()))"
    run = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = [Path(file).relative_to(ROOT) for file in run.stdout.split() if file.startswith(f"{ROOT}/")]
    assert len(imported) > 100
    assert [] == [file for file in imported for unused in UNUSED if file.is_relative_to(unused)]
    assert all((ROOT / unused).exists() for unused in UNUSED)


def test_a_row_has_figures_times_and_evidence() -> None:
    """A row has figures, times in seconds, a dash for missing values, and shortened evidence."""
    row = Row(
        "kill",
        3,
        0,
        1,
        2,
        14,
        1200,
        2,
        unavailable_seconds=2.5,
        recovery_seconds=61.04,
        evidence="a | b " + "word " * 60,
        commit="4ee218e",
        earlier=7,
    )
    *figures, seen = cells(row)

    assert ["kill", "3", "0", "1", "2", "2 (1,200 operations)", "14", "2 s", "-", "61 s", "4ee218e", "7"] == figures
    assert seen.startswith("a / b word")
    assert seen.endswith("…")
    assert not row.is_survived


def test_a_row_without_an_audit_says_so() -> None:
    """A fault that does not count losses has dashes instead of numbers, also after several injections."""
    row = Row("rotation", 1, None, None, 0)

    assert ["rotation", "2", "-", "-", "0"] == cells(row + row)[:5]
    assert row.is_survived


@pytest.fixture
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of this machine, and a document without rows."""
    names = {"REPORT": "report.json", "DOCUMENT": "faults.md", "KEPT": "faults.json"}
    for name, file in names.items():
        monkeypatch.setattr(report, name, tmp_path / file)
    report.KEPT.write_text("[]", encoding="utf-8")
    report.DOCUMENT.write_text("text <!-- faults -->\nold table\n<!-- /faults --> more text", encoding="utf-8")


@pytest.mark.usefixtures("_own_files")
def test_another_machine_continues_the_rows_of_the_repository() -> None:
    kill = Row("kill", 1, 0, 0, 0, evidence="word " * 60, commit="new")
    record(kill)
    into_document(["kill", "pause"])
    report.REPORT.unlink()  # as on another machine
    record(Row("kill", 2, 0, 0, 0, evidence="last", commit="new"))

    assert {"kill": Row("kill", 3, 0, 0, 0, evidence="last", commit="new")} == read()
    document = report.DOCUMENT.read_text(encoding="utf-8")
    assert document.startswith("text ")
    assert document.endswith("more text")
    assert f"| {' | '.join(cells(kill))} |" in document
    assert "| pause | - |" in document
    assert "old table" not in document


@pytest.mark.usefixtures("_own_files")
def test_the_injections_of_one_commit_add_up() -> None:
    """A run continues the runs before it at the same commit. Evidence of a defect stays."""
    record(Row("kill", 1, 1, 0, 0, recovery_seconds=9, commit="old"))
    record(Row("kill", 1, 0, 0, 0, operations=10, recovery_seconds=2, evidence="first", commit="new"))
    record(Row("pause", 1, 0, 0, 0, commit="old"))
    record(Row("kill", 1, 0, 1, 0, recovery_seconds=3, evidence="defect", commit="new"))
    record(Row("kill", 2, 0, 0, 0, unavailable_seconds=1, evidence="last", commit="new"))

    sums = Row("kill", 4, 0, 1, 0, 0, 10, 0, 1, 3, None, "defect", "new")
    assert {"kill": sums, "pause": Row("pause", 1, 0, 0, 0, commit="old")} == read()


@pytest.mark.usefixtures("_own_files")
def test_a_row_counts_the_survived_injections_of_earlier_commits() -> None:
    record(Row("kill", 3, 0, 0, 0, commit="first"))
    record(Row("kill", 2, 1, 0, 0, commit="defect"))
    record(Row("kill", 4, 0, 0, 0, commit="repaired"))
    record(Row("kill", 1, 0, 0, 0, commit="new"))
    record(Row("kill", 1, 0, 0, 0, commit="new"))

    assert {"kill": Row("kill", 2, 0, 0, 0, commit="new", earlier=7)} == read()
