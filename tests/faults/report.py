"""The report: a row for each fault in var/reports/faults.json, on the screen and in docs/lab/faults.md."""

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from infra.local import jars

REPORT = jars.ROOT / "var" / "reports" / "faults.json"
DOCUMENT = jars.ROOT / "docs" / "lab" / "faults.md"
BEGIN, END = "<!-- faults -->", "<!-- /faults -->"
_LONGEST_SEEN = 140


@dataclass(frozen=True)
class Row:
    """The effects of a fault.

    Attributes:
        injected: number of injections.
        lost: number of missing outputs.
        doubled: number of outputs with a second effect.
        wrong_answers: number of wrong totals, balances and responses.
        again: number of duplicates by id, which readers ignore.
        operations: number of commands and reads that the checker of linearizability judged.
        not_linearizable: number of customers whose history it refused. They are wrong answers too.
        unavailable_seconds: the longest time without a balance for one caller. None without callers.
        recovery_seconds: the longest time from the end of a fault until a new invoice was served.
            None if nothing had to recover.
        slowest_command_seconds: the longest time from the first request of a command to its response.
            None without commands.
        evidence: a description of the observations.
    """

    fault: str
    injected: int
    lost: int
    doubled: int
    wrong_answers: int
    again: int = 0
    operations: int = 0
    not_linearizable: int = 0
    unavailable_seconds: float | None = None
    recovery_seconds: float | None = None
    slowest_command_seconds: float | None = None
    evidence: str = ""

    @property
    def is_survived(self) -> bool:
        return not (self.lost or self.doubled or self.wrong_answers)


def write(rows: list[Row], path: Path = REPORT) -> None:
    """Write the rows into the file. They replace earlier rows of the same faults."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    now = {row.fault: asdict(row) for row in rows}
    kept = {each["fault"]: each for each in before}
    path.write_text(json.dumps(list((kept | now).values()), indent=2) + "\n", encoding="utf-8")


HEADINGS = (
    "fault", "times", "lost", "doubled", "wrong", "not linearizable", "again by id", "no read for", "slowest command",
    "recovery", "seen",
)  # fmt: skip


def show(console: Console, rows: list[Row]) -> None:
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*_cells(row), style="green" if row.is_survived else "red")
    console.print(table)


def markdown(rows: list[Row]) -> str:
    """The table of docs/lab/faults.md."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *(_cells(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Row) -> list[str]:
    judged = f"{row.not_linearizable} ({row.operations:,} operations)" if row.operations else "-"
    figures = [row.injected, row.lost, row.doubled, row.wrong_answers, judged, row.again]
    seconds = [row.unavailable_seconds, row.slowest_command_seconds, row.recovery_seconds]
    times = ["-" if each is None else f"{each:.0f} s" for each in seconds]
    seen = textwrap.shorten(row.evidence.replace("|", "/"), _LONGEST_SEEN, placeholder=" …")
    return [row.fault, *(str(each) if row.injected else "-" for each in figures), *times, seen]


def into_document(faults: Iterable[str]) -> None:
    """Write the last row of each of these faults into the document, also of those that never ran."""
    known = {each["fault"]: Row(**each) for each in json.loads(REPORT.read_text(encoding="utf-8"))}
    rows = [known.get(fault) or Row(fault, 0, 0, 0, 0, evidence="not run") for fault in faults]
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{markdown(rows)}\n{END}{after}", encoding="utf-8")
