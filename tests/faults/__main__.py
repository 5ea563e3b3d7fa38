"""``make faults``: every fault on the real stack, audited; exit status 0 only if nothing was lost, doubled or wrong."""

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.local.interruption import interrupt_on_signals
from infra.local.processes import ProcessFailedError
from tests.faults import alone, damage, report, schema_change, under_load
from tests.faults.environment import Environment, NoEvidenceError
from tests.faults.report import Row

_SCENARIOS = alone.SCENARIOS | damage.SCENARIOS | schema_change.SCENARIOS

console = Console()


def main(
    only: Annotated[str, typer.Option(help="Run the faults whose name contains this.")] = "",
    seed: Annotated[int, typer.Option(help="Of the simulated days and of what is hit when.")] = 1,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data and logs of each stack.")] = False,
) -> None:
    """Inject faults into stacks of their own, under load, and audit what came of each."""
    rows = []
    for name, run in _faults().items():
        if only in name:
            console.print(f"{name} …")
            started = time.monotonic()
            rows.append(_row(name, run, seed, keep=keep))
            report.write(rows)
            console.print(f"  {time.monotonic() - started:.0f} s, {rows[-1]}", highlight=False)
    report.show(console, rows)
    if not rows or not all(row.is_survived for row in rows):
        raise typer.Exit(1)


def _faults() -> dict[str, Callable[[Path, int], Row]]:
    """Name to a function of a directory and a seed."""

    def on_a_stack(fault: under_load.Fault) -> Callable[[Path, int], Row]:
        def run(directory: Path, seed: int) -> Row:
            with Environment(directory) as environment:
                return under_load.run(fault, environment, seed)

        return run

    return {
        **{fault.name: on_a_stack(fault) for fault in under_load.FAULTS},
        **{name: partial(run, name) for name, run in _SCENARIOS.items()},
    }


def _row(name: str, run: Callable[[Path, int], Row], seed: int, *, keep: bool) -> Row:
    directory = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        return run(directory, seed)
    except (NoEvidenceError, ProcessFailedError) as error:
        # Nobody knows what is lost where nothing comes any more.
        return Row(name, 1, 1, 0, 0, evidence=f"did not recover: {error}"[:2_000])
    finally:
        if keep:
            console.print(f"  data: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    interrupt_on_signals()
    typer.run(main)
