"""``make faults``: every fault on the real stack, audited; exit status 0 only if nothing was lost, doubled or wrong."""

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console

from infra.local.interruption import interrupt_on_signals
from infra.local.processes import ProcessFailedError
from tests.faults import alone, damage, refusals, report, schema_change, under_load
from tests.faults.environment import Environment, NoEvidenceError
from tests.faults.report import Row

_ON_A_STACK = under_load.SCENARIOS | damage.SCENARIOS | refusals.SCENARIOS | refusals.LAST
_ALONE = alone.SCENARIOS | schema_change.SCENARIOS
FAULTS = (*_ON_A_STACK, *_ALONE)
"""Names, in the order in which they are injected."""

console = Console()


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Run the faults whose name contains this; can be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated days and of what is hit when.")] = 1,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data and logs of each stack.")] = False,
    together: Annotated[
        float | None,
        typer.Option(help="So many minutes: inject those that need no stack of their own once, and audit once."),
    ] = None,
    document: Annotated[
        bool, typer.Option("--document", help="Inject nothing: write what is known into docs/lab/faults.md.")
    ] = False,
) -> None:
    """Inject faults into stacks of their own, under load, and audit what came of each."""
    if document:
        report.into_document(FAULTS)
        return
    wanted = [name for name in FAULTS if any(part in name for part in only or [""])]
    rows: list[Row] = []
    with Stacks(keep=keep) as stacks:
        if together:
            rows += under_load.run_together((only or [""])[0], stacks.environment(), seed, together)
            report.write(rows)
            wanted = []
        for number, name in enumerate(wanted):
            console.print(f"{name} …")
            started = time.monotonic()
            # Each with days of its own: on one stack a seed of before would publish nothing but repeats.
            rows.append(_row(name, stacks, seed + number))
            report.write(rows)
            console.print(f"  {time.monotonic() - started:.0f} s, {rows[-1]}", highlight=False)
    report.show(console, rows)
    if not rows or not all(row.is_survived for row in rows):
        raise typer.Exit(1)


class Stacks:
    """Directories, and the stack on which one fault after the other is injected, for as long as it survives them."""

    def __init__(self, *, keep: bool) -> None:
        self._keep, self._held = keep, ExitStack()
        self._environment: Environment | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def directory(self) -> Path:
        """A new one, until ``discard``."""
        directory = Path(tempfile.mkdtemp(prefix="faults-"))
        if self._keep:
            console.print(f"  data: {directory}")
        else:
            self._held.callback(shutil.rmtree, directory, ignore_errors=True)
        return directory

    def environment(self) -> Environment:
        """The running stack, started if there is none."""
        if self._environment is None:
            self._environment = self._held.enter_context(Environment(self.directory()))
        return self._environment

    def discard(self) -> None:
        """Stop what runs; the next fault gets a new one."""
        self._environment = None
        self._held.close()


def _row(name: str, stacks: Stacks, seed: int) -> Row:
    try:
        if name in _ON_A_STACK:
            row = _ON_A_STACK[name](name, stacks.environment(), seed)
        else:
            stacks.discard()
            row = _ALONE[name](name, stacks.directory(), seed)
    except (NoEvidenceError, ProcessFailedError) as error:
        # Nobody knows what is lost where nothing comes any more.
        row = Row(name, 1, 1, 0, 0, evidence=f"did not recover: {error}"[:2_000])
    if not row.is_survived:
        stacks.discard()
    return row


if __name__ == "__main__":
    interrupt_on_signals()
    typer.run(main)
