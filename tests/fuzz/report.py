"""The report: one row for each fuzz target in var/reports/fuzz.json, on the screen and in docs/lab/fuzz.md."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from infra.local.folders import ROOT
from infra.site.markdown import table, write_part
from tests.fuzz.runner import Chunk
from tests.fuzz.target import Outcome

REPORT = ROOT / "var" / "reports" / "fuzz.json"
DOCUMENT = ROOT / "docs" / "lab" / "fuzz.md"


@dataclass(frozen=True)
class Row:
    """The results of one target.

    Attributes:
        seconds: the time for all inputs.
        crashes: number of inputs that raised an error, ended the process, or got a wrong answer.
        hangs: number of inputs that took too long.
        answered: number of inputs that took effect, or got an error that says what is wrong.
        accepted: number of answered inputs that took effect.
        set_aside: number of inputs that became dead letters, or were skipped and counted.
        rss_growth: the largest growth of the memory of a process after its first chunk, in bytes.
        slowest_seconds: the longest time for one input.
        commit: the commit of the code. ``+`` marks uncommitted changes.
    """

    target: str
    commit: str
    inputs: int = 0
    seconds: float = 0.0
    crashes: int = 0
    hangs: int = 0
    answered: int = 0
    accepted: int = 0
    set_aside: int = 0
    rss_growth: int = 0
    slowest_seconds: float = 0.0

    def after(self, chunk: Chunk, inputs: int, grown: int) -> "Row":
        """The row with the results of one more chunk."""
        outcomes = chunk.outcomes
        accepted = outcomes[Outcome.ACCEPTED]
        return replace(
            self,
            inputs=self.inputs + inputs,
            seconds=round(self.seconds + chunk.seconds, 1),
            crashes=self.crashes + outcomes["crash"],
            hangs=self.hangs + outcomes["hang"],
            answered=self.answered + accepted + outcomes[Outcome.REFUSED],
            accepted=self.accepted + accepted,
            set_aside=self.set_aside + outcomes[Outcome.SET_ASIDE],
            rss_growth=max(self.rss_growth, grown),
            slowest_seconds=round(max(self.slowest_seconds, chunk.slowest_seconds), 3),
        )


def rows(path: Path = REPORT) -> list[Row]:
    return [Row(**each) for each in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def row_of(target: str, commit: str, path: Path = REPORT) -> Row:
    """The row of a target at this commit, or an empty row."""
    return next((row for row in rows(path) if (row.target, row.commit) == (target, commit)), Row(target, commit))


def write(row: Row, path: Path = REPORT) -> None:
    """Write a row into the file. It replaces the row of its target."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {each.target: asdict(each) for each in rows(path)}
    path.write_text(json.dumps([*(kept | {row.target: asdict(row)}).values()], indent=2) + "\n", encoding="utf-8")


HEADINGS = (
    *("target", "inputs", "seconds", "crashes", "hangs", "accepted", "answered", "set aside"),
    *("memory", "slowest", "commit"),
)


def show(console: Console, found: list[Row]) -> None:
    shown = Table(*HEADINGS)
    for row in found:
        shown.add_row(*_cells(row), style="red" if row.crashes or row.hangs else "green")
    console.print(shown)


def _cells(row: Row) -> list[str]:
    counts = [row.crashes, row.hangs, row.accepted, row.answered, row.set_aside]
    grown = f"+{row.rss_growth / 2**20:.0f} MiB"
    return [
        *(row.target, f"{row.inputs:,}", f"{row.seconds:,.0f}"),
        *(f"{each:,}" for each in counts),
        *(grown, f"{row.slowest_seconds:.2f} s", row.commit),
    ]


def into_document() -> None:
    """Write the rows into the document, sorted by target."""
    found = sorted(rows(), key=lambda row: row.target)
    write_part(DOCUMENT, "fuzz", table(HEADINGS, map(_cells, found)))
