"""The table of docs/lab/faults.md."""

from tests.faults.__main__ import FAULTS
from tests.faults.report import DOCUMENT, HEADINGS, Row, markdown


def rows_of_the_document() -> list[list[str]]:
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in tables if len(row) == len(HEADINGS)][1:]


def test_every_fault_of_the_harness_has_its_row() -> None:
    """The document has a row for every fault, run or not, and no other row."""
    assert sorted(FAULTS) == sorted(row[0] for row in rows_of_the_document() if row[0] != "---")


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
    )
    line = markdown([row]).splitlines()[-1]

    assert line.startswith("| kill | 3 | 0 | 1 | 2 | 2 (1,200 operations) | 14 | 2 s | - | 61 s | a / b word")
    assert line.endswith("… |")
    assert not row.is_survived
