"""``make faults``: inject every fault into the real stack, and audit the result.

The exit status is 0 only if nothing was lost, doubled or wrong.
"""

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console

from infra.local.interruption import interrupt_on_signals
from infra.local.processes import ProcessFailedError
from tests.faults import (
    alone,
    backlog,
    cards,
    changes,
    damage,
    reconciliation,
    refusals,
    report,
    returns,
    rotation,
    schema_change,
    streams,
    under_load,
    upgrade,
)
from tests.faults.environment import Environment, NoEvidenceError
from tests.faults.report import Row
from tests.support.checkout import commit

_ON_A_STACK = (
    under_load.SCENARIOS
    | streams.SCENARIOS
    | damage.SCENARIOS
    | changes.ON_A_STACK
    | refusals.SCENARIOS
    | refusals.LAST
)
_ALONE = (
    alone.SCENARIOS
    | changes.SCENARIOS
    | cards.SCENARIOS
    | schema_change.SCENARIOS
    | reconciliation.SCENARIOS
    | returns.SCENARIOS
    | rotation.SCENARIOS
    | upgrade.SCENARIOS
    | backlog.SCENARIOS
)
FAULTS = (*_ON_A_STACK, *_ALONE)
"""The names of all faults, in the order of injection."""

console = Console()


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Run only faults whose name contains this text. Can be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated days and of the random choices.")] = 1,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data and logs of each stack.")] = False,
    times: Annotated[
        int, typer.Option(min=1, help="Inject each fault until this commit has this number of injections.")
    ] = 1,
    document: Annotated[
        bool, typer.Option("--document", help="Inject nothing. Write the last results into docs/lab/faults.md.")
    ] = False,
) -> None:
    """Inject faults into running stacks under load, and audit the result of each."""
    if document:
        report.into_document(FAULTS)
        return
    wanted = [name for name in FAULTS if any(part in name for part in only or [""])]
    now = commit()
    # Each run has its own seed. A used seed would publish only duplicates on the same stack.
    seeds = count(seed + sum(row.injected for row in report.read_of(now).values()))
    with Stacks(keep=keep) as stacks:
        for number, name in product(range(1, times + 1), wanted):
            before = report.read_of(now).get(name)
            if before and before.injected >= number:
                continue
            console.print(f"{name}, {number} of {times} …")
            started = time.monotonic()
            row = replace(_row(name, stacks, next(seeds)), commit=now)
            report.record(row)
            console.print(f"  {time.monotonic() - started:.0f} s, {row}", highlight=False)
    rows = [row for fault, row in report.read_of(now).items() if fault in wanted]
    report.show(console, rows)
    if not rows or not all(row.is_survived for row in rows):
        raise typer.Exit(1)


class Stacks:
    """The directories, and the stack that is reused until a fault is not survived."""

    def __init__(self, *, keep: bool) -> None:
        self._keep, self._resources = keep, ExitStack()
        self._environment: Environment | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def directory(self) -> Path:
        """A new directory, which ``discard`` deletes."""
        directory = Path(tempfile.mkdtemp(prefix="faults-"))
        if self._keep:
            console.print(f"  data: {directory}")
        else:
            self._resources.callback(shutil.rmtree, directory, ignore_errors=True)
        return directory

    def environment(self) -> Environment:
        """The running stack. Starts one if there is none."""
        if self._environment is None:
            self._environment = self._resources.enter_context(Environment(self.directory()))
        return self._environment

    def discard(self) -> None:
        """Stop the stack and delete its directories. The next fault gets a new stack."""
        self._environment = None
        self._resources.close()


def _row(name: str, stacks: Stacks, seed: int) -> Row:
    try:
        if name in _ON_A_STACK:
            row = _ON_A_STACK[name](name, stacks.environment(), seed)
        else:
            stacks.discard()
            row = _ALONE[name](name, stacks.directory(), seed)
    except (NoEvidenceError, ProcessFailedError) as error:
        # Without recovery no audit is possible, so the fault counts as lost and doubled.
        row = Row(name, 1, 1, 0, 0, evidence=f"did not recover: {error}"[:2_000])
    if not row.is_survived:
        stacks.discard()
    return row


if __name__ == "__main__":
    interrupt_on_signals()
    typer.run(main)
