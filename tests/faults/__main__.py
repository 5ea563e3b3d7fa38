"""``make faults``: every fault on the real stack, audited; exit status 0 only if nothing was lost, doubled or wrong."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.local.interruption import interrupt_on_signals
from tests.faults import report, under_load
from tests.faults.environment import Environment, NoEvidenceError
from tests.faults.report import Row

console = Console()


def main(
    only: Annotated[str, typer.Option(help="Run the faults whose name contains this.")] = "",
    seed: Annotated[int, typer.Option(help="Of the simulated days and of what is hit when.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data and logs of each stack.")] = False,
) -> None:
    """Inject faults into a stack of its own, under load, and audit what came of them."""
    rows = []
    for number, fault in enumerate(under_load.FAULTS):
        if only in fault.name:
            started = time.monotonic()
            console.print(f"{fault.name} …")
            rows.append(_run(fault, seed + number, keep=keep))
            report.write(rows)
            console.print(f"  {time.monotonic() - started:.0f} s, {rows[-1]}")
    report.show(console, rows)
    if not rows or not all(row.is_survived for row in rows):
        raise typer.Exit(1)


def _run(fault: under_load.Fault, seed: int, *, keep: bool) -> Row:
    directory = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        with Environment(directory) as environment:
            return under_load.run(fault, environment, seed)
    except NoEvidenceError as error:
        return Row(fault.name, fault.times, 1, 0, 0, evidence=f"did not recover: {error}"[:2_000])
    finally:
        if keep:
            console.print(f"  data: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    interrupt_on_signals()
    typer.run(main)
