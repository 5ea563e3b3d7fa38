"""The report: one row for each fault in var/reports/faults.json, on the screen and in docs/lab/faults.md.

docs/lab/faults.json has the rows in the repository, so that a run on another machine can continue them.
"""

import json
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from infra.local.folders import ROOT
from infra.site.markdown import table, write_part

REPORT = ROOT / "var" / "reports" / "faults.json"
DOCUMENT = ROOT / "docs" / "lab" / "faults.md"
KEPT = DOCUMENT.with_suffix(".json")
_LONGEST_SEEN = 140


@dataclass(frozen=True)
class Row:
    """The effects of a fault.

    Attributes:
        injected: number of injections.
        lost: number of missing outputs. None if the fault does not count them.
        doubled: number of outputs with a second effect. None if the fault does not count them.
        wrong_answers: number of wrong totals, balances and responses.
        again: number of duplicates by id, which readers ignore.
        operations: number of commands and reads that were checked for linearizability.
        not_linearizable: number of customers whose history is not linearizable. They also count as wrong answers.
        unavailable_seconds: the longest time without a balance for one caller. None without callers.
        recovery_seconds: the longest time from the end of a fault until the points of a new invoice were served.
            None if nothing had to recover.
        slowest_command_seconds: the longest time from the first request of a command to its response.
            None without commands.
        evidence: a description of the observations, or of the first that shows a defect.
        commit: the commit of the code. ``+`` marks uncommitted changes.
        earlier: the number of injections on earlier commits that lost, doubled and falsified nothing.
    """

    fault: str
    injected: int
    lost: int | None
    doubled: int | None
    wrong_answers: int
    again: int = 0
    operations: int = 0
    not_linearizable: int = 0
    unavailable_seconds: float | None = None
    recovery_seconds: float | None = None
    slowest_command_seconds: float | None = None
    evidence: str = ""
    commit: str = ""
    earlier: int = 0

    @property
    def is_survived(self) -> bool:
        return not (self.lost or self.doubled or self.wrong_answers)

    def __add__(self, other: "Row") -> "Row":
        """The effects of the injections of both rows: the sums of the numbers, and the longer times."""
        changes: dict[str, Any] = {name: _merged(sum, getattr(self, name), getattr(other, name)) for name in _SUMS}
        changes |= {name: _merged(max, getattr(self, name), getattr(other, name)) for name in _TIMES}
        return replace(self, **changes, evidence=(other if self.is_survived else self).evidence)


_SUMS = ("injected", "lost", "doubled", "wrong_answers", "again", "operations", "not_linearizable")
_TIMES = ("unavailable_seconds", "recovery_seconds", "slowest_command_seconds")


def _merged(merge: Callable[[list[float]], float], *values: float | None) -> float | None:
    known = [each for each in values if each is not None]
    return merge(known) if known else None


def read_of(commit: str) -> dict[str, Row]:
    """The rows of a commit by fault."""
    return {fault: row for fault, row in read().items() if row.commit == commit}


def read() -> dict[str, Row]:
    """The rows by fault: those of this machine, or those of the repository before the first run."""
    path = REPORT if REPORT.exists() else KEPT
    return {each["fault"]: Row(**each) for each in json.loads(path.read_text(encoding="utf-8"))}


def record(row: Row) -> None:
    """Add a row to the row of the same fault and commit. It replaces the row of an earlier commit."""
    rows = read()
    before = rows.get(row.fault)
    if before and before.commit == row.commit:
        rows[row.fault] = before + row
    else:
        rows[row.fault] = replace(row, earlier=injected_before(row.commit, row.fault))
    _write(REPORT, rows.values())


def injected_before(commit: str, fault: str) -> int:
    """The number of injections of a fault on earlier commits that did no harm."""
    row = read().get(fault, Row(fault, 0, 0, 0, 0))
    return row.earlier + (row.injected if row.commit != commit and row.is_survived else 0)


def _write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*map(asdict, rows)], indent=2) + "\n", encoding="utf-8")


HEADINGS = (
    "fault", "times", "lost", "doubled", "wrong", "not linearizable", "again by id", "no read for", "slowest command",
    "recovery", "commit", "earlier", "seen",
)  # fmt: skip


def show(console: Console, rows: list[Row]) -> None:
    shown = Table(*HEADINGS)
    for row in rows:
        shown.add_row(*cells(row), style="green" if row.is_survived else "red")
    console.print(shown)


def cells(row: Row) -> list[str]:
    """The row's cells in the table of docs/lab/faults.md."""
    judged = f"{row.not_linearizable} ({row.operations:,} operations)" if row.operations else "-"
    figures = [row.injected, row.lost, row.doubled, row.wrong_answers, judged, row.again]
    seconds = [row.unavailable_seconds, row.slowest_command_seconds, row.recovery_seconds]
    times = ["-" if each is None else f"{each:.0f} s" for each in seconds]
    ends = [row.commit, str(row.earlier), _shortened(row.evidence)]
    return [row.fault, *("-" if each is None or not row.injected else str(each) for each in figures), *times, *ends]


def _shortened(evidence: str) -> str:
    return textwrap.shorten(evidence.replace("|", "/"), _LONGEST_SEEN, placeholder=" …")


def into_document(faults: Iterable[str]) -> None:
    """Write the rows of these faults into the document, and into docs/lab/faults.json."""
    found = read()
    rows = [found.get(fault, Row(fault, 0, 0, 0, 0, evidence="not run")) for fault in faults]
    write_part(DOCUMENT, "faults", table(HEADINGS, map(cells, rows)))
    _write(KEPT, [replace(row, evidence=_shortened(row.evidence)) for row in rows if row.injected])
