"""The report: a row a fault, in var/reports/faults.json and as a table."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from infra.local import jars

REPORT = jars.ROOT / "var" / "reports" / "faults.json"


@dataclass(frozen=True)
class Row:
    """What a fault did.

    Attributes:
        injected: how often.
        lost: outputs that are missing, in effect.
        doubled: outputs that are there once too often, in effect.
        wrong_answers: totals, balances and answers that are not true.
        again: records that came once more under their id, which readers ignore; for the record.
        unavailable_seconds: the longest time one caller asked for a balance in vain; None where nobody asked.
        recovery_seconds: from the fault's end until an invoice published then was served, the longest of all times;
            None where nothing had to recover.
        slowest_command_seconds: from the first try of a command to its answer, at most; None where there were none.
        evidence: what was seen, in words.
    """

    fault: str
    injected: int
    lost: int
    doubled: int
    wrong_answers: int
    again: int = 0
    unavailable_seconds: float | None = None
    recovery_seconds: float | None = None
    slowest_command_seconds: float | None = None
    evidence: str = ""

    @property
    def is_survived(self) -> bool:
        return not (self.lost or self.doubled or self.wrong_answers)


def write(rows: list[Row], path: Path = REPORT) -> None:
    """Put the rows into the file, in place of those of the same faults of earlier runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    now = {row.fault: asdict(row) for row in rows}
    kept = {each["fault"]: each for each in before}
    path.write_text(json.dumps(list((kept | now).values()), indent=2) + "\n", encoding="utf-8")


def show(console: Console, rows: list[Row]) -> None:
    table = Table("fault", "times", "lost", "doubled", "wrong", "again by id", "unavailable", "recovery", "seen")
    for row in rows:
        colour = "green" if row.is_survived else "red"
        figures = [row.injected, row.lost, row.doubled, row.wrong_answers, row.again]
        table.add_row(
            f"[{colour}]{row.fault}",
            *map(str, figures),
            _seconds(row.unavailable_seconds),
            _seconds(row.recovery_seconds),
            row.evidence,
        )
    console.print(table)


def markdown(rows: list[Row]) -> str:
    """The table of docs/reliability.md."""
    head = (
        "| fault | times | lost | doubled | wrong answers | again by id | unavailable | recovery | seen |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {row.fault} | {row.injected} | {row.lost} | {row.doubled} | {row.wrong_answers} | {row.again} | "
        f"{_seconds(row.unavailable_seconds)} | {_seconds(row.recovery_seconds)} | {row.evidence} |\n"
        for row in rows
    )


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
