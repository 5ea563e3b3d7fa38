"""``make fuzz``: give bad inputs to every door, and write what happened to var/reports/fuzz.json.

A run continues the one before it at the same commit. The exit status is 0 if nothing crashed and nothing hung.
"""

import os
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from infra.local import jars
from infra.local.interruption import interrupt_on_signals
from tests.fuzz import report
from tests.fuzz.door import Door
from tests.fuzz.doors import DOORS, door_named
from tests.fuzz.runner import process_for, run_chunk, save
from tests.support.checkout import commit

FAILURES = jars.ROOT / "var" / "reports" / "fuzz"

console = Console()


def main(
    inputs: Annotated[
        int,
        typer.Option(
            help="The number of inputs of each door, with those of earlier runs. Slow doors get a share of it."
        ),
    ] = 10_000,
    only: Annotated[list[str] | None, typer.Option(help="Only doors whose name contains this text.")] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Run only this chunk, in this process: makes a failure again.")
    ] = None,
    stack: Annotated[
        int | None, typer.Option(help="Send this number of records and of connections to a running stack instead.")
    ] = None,
    *,
    document: Annotated[bool, typer.Option("--document", help="Write the last results into docs/lab/fuzz.md.")] = False,
) -> None:
    """Give bad inputs to the doors."""
    if document:
        report.into_document()
        return
    wanted = [door for door in DOORS.values() if any(part in door.name for part in only or [""])]
    if not wanted:
        raise typer.BadParameter(f"no door has such a name: choose from {', '.join(DOORS)}", param_hint="--only")
    if chunk is not None:
        for door in wanted:
            console.print(run_chunk(door_named(door.name), chunk, door.chunk))
        return
    now = commit()
    if stack is not None:
        # It imports Spark's clients and brokers.
        from tests.fuzz import stack as running

        for row in running.run(stack, now, FAILURES):
            report.write(row)
        wanted = []
    for door in wanted:
        _run(door, int(inputs * door.share), now)
    rows = [row for row in report.rows() if row.commit == now]
    report.show(console, rows)
    if any(row.crashes or row.hangs for row in rows):
        console.print(f"The inputs that failed are in {FAILURES}.", highlight=False)
        raise typer.Exit(1)


def _run(door: Door, inputs: int, now: str) -> None:
    row = report.row_of(door.name, now)
    with process_for(partial(door_named, door.name)) as work:
        first_rss = None
        while row.inputs < inputs:
            number = row.inputs // door.chunk
            console.print(f"{door.name}: {row.inputs:,} of {inputs:,} inputs", highlight=False)
            found = work(number, door.chunk)
            save(FAILURES, door.name, number, found)
            if found.rss is None:
                first_rss = None
            elif first_rss is None:
                first_rss = found.rss
            grown = 0 if found.rss is None or first_rss is None else found.rss - first_rss
            row = row.after(found, door.chunk, grown)
            report.write(row)


if __name__ == "__main__":
    os.nice(19)
    interrupt_on_signals()
    typer.run(main)
