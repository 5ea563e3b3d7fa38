"""``make fuzz``: feed bad inputs to every fuzz target, and write the results to var/reports/fuzz.json.

A run continues the earlier runs of the same commit. The exit status is 0 if nothing crashed and nothing hung.
"""

import os
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from infra.local.folders import ROOT
from infra.local.interruption import interrupt_on_signals
from tests.fuzz import report
from tests.fuzz.runner import process_for, run_chunk, save
from tests.fuzz.target import FuzzTarget
from tests.fuzz.targets import TARGETS, target_named
from tests.support.checkout import commit

FAILURES = ROOT / "var" / "reports" / "fuzz"

console = Console()


def main(
    inputs: Annotated[
        int,
        typer.Option(
            help="Number of inputs of each target, including earlier runs of this commit. Slow targets get fewer."
        ),
    ] = 10_000,
    only: Annotated[list[str] | None, typer.Option(help="Run only targets whose name contains this text.")] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Run only this chunk, in this process, to reproduce a failure.")
    ] = None,
    stack: Annotated[
        int | None, typer.Option(help="Send this number of records and of connections to a running stack instead.")
    ] = None,
    *,
    document: Annotated[bool, typer.Option("--document", help="Write the last results into docs/lab/fuzz.md.")] = False,
) -> None:
    """Feed bad inputs to the fuzz targets."""
    if document:
        report.into_document()
        return
    wanted = [target for target in TARGETS.values() if any(part in target.name for part in only or [""])]
    if not wanted:
        raise typer.BadParameter(f"no target has such a name: choose from {', '.join(TARGETS)}", param_hint="--only")
    if chunk is not None:
        for target in wanted:
            console.print(run_chunk(target_named(target.name), chunk, target.chunk))
        return
    now = commit()
    if stack is not None:
        # Only this run needs the imports of a whole stack.
        from tests.fuzz import stack as running

        for row in running.run(stack, now, FAILURES):
            report.write(row)
        wanted = []
    for target in wanted:
        _run(target, int(inputs * target.share), now)
    rows = [row for row in report.rows() if row.commit == now]
    report.show(console, rows)
    if any(row.crashes or row.hangs for row in rows):
        console.print(f"The inputs that failed are in {FAILURES}.", highlight=False)
        raise typer.Exit(1)


def _run(target: FuzzTarget, inputs: int, now: str) -> None:
    row = report.row_of(target.name, now)
    with process_for(partial(target_named, target.name)) as work:
        first_rss = None
        while row.inputs < inputs:
            number = row.inputs // target.chunk
            console.print(f"{target.name}: {row.inputs:,} of {inputs:,} inputs", highlight=False)
            found = work(number, target.chunk)
            save(FAILURES, target.name, number, found)
            if found.rss is None:
                first_rss = None
            elif first_rss is None:
                first_rss = found.rss
            grown = 0 if found.rss is None or first_rss is None else found.rss - first_rss
            row = row.after(found, target.chunk, grown)
            report.write(row)


if __name__ == "__main__":
    os.nice(19)
    interrupt_on_signals()
    typer.run(main)
