"""``make faults``: inject every fault into a real stack, and audit the result.

The exit status is 0 only if nothing was lost, doubled or wrong.
"""

import os
import time
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from infra.local.interruption import interrupt_on_signals
from infra.local.processes import ProcessFailedError
from tests.faults import (
    backlog,
    cards,
    changes,
    damage,
    infrastructure,
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
from tests.faults.scenario import Scenario
from tests.faults.stacks import Stacks
from tests.support.checkout import commit

_SCENARIOS: dict[str, Scenario[Any]] = (
    under_load.SCENARIOS
    | streams.SCENARIOS
    | damage.SCENARIOS
    | refusals.SCENARIOS
    | changes.SCENARIOS
    | infrastructure.SCENARIOS
    | cards.SCENARIOS
    | schema_change.SCENARIOS
    | reconciliation.SCENARIOS
    | returns.SCENARIOS
    | rotation.SCENARIOS
    | upgrade.SCENARIOS
    | backlog.SCENARIOS
)
SCENARIOS = dict(sorted(_SCENARIOS.items(), key=lambda item: item[1].stack is not Environment))
"""All faults by name, in the order of injection. Faults of the default stack come first, because they share it."""

_SEEDS = 100_000
"""The number of seeds of each fault. A fault also uses seeds that are up to 10,000 larger than its own."""

UNUSED = (
    ".ci",
    "Makefile",
    "api/client",
    "docker-compose.secured.yml",
    "docker-compose.yml",
    "infra/contracts",
    "infra/grafana",
    "infra/kubernetes",
    "infra/otel",
    "infra/prometheus",
    "infra/supply_chain",
    "mkdocs.yml",
    "services/webhooks",
    "tests/conftest.py",
    "tests/containers",
    "tests/contracts",
    "tests/fuzz",
    "tests/install",
    "tests/integration",
    "tests/prometheus",
    "tests/spark",
    "tests/unit",
)
"""Code that this program does not run. After a change of this code, the results stay valid."""

console = Console()


def main(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Inject only faults whose name contains this text. Repeat the option for several texts."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated days and of the random choices.")] = 1,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data and logs of each stack.")] = False,
    times: Annotated[
        int, typer.Option(min=1, help="Inject each fault until it has this number of injections at this commit.")
    ] = 1,
    document: Annotated[
        bool, typer.Option("--document", help="Inject nothing. Write the last results into docs/lab/faults.md.")
    ] = False,
) -> None:
    """Inject faults into running stacks under load, and audit the result of each."""
    if document:
        report.into_document(SCENARIOS)
        return
    wanted = [name for name in SCENARIOS if any(part in name for part in only or [""])]
    now = commit(*UNUSED)
    with Stacks(keep=keep, on_directory=lambda directory: console.print(f"  data: {directory}")) as stacks:
        for name in wanted:
            for number in range(1, times + 1):
                before = report.read_of(now).get(name)
                if before and before.injected >= number:
                    continue
                console.print(f"{name}, {number} of {times} …")
                started = time.monotonic()
                # On the same stack, a seed that was used before would publish only duplicates. A fault with variants
                # takes the variant after the last one, also on another commit.
                own_seed = seed + _SEEDS * [*SCENARIOS].index(name) + report.injected_before(now, name) + number
                row = replace(_row(name, stacks, own_seed), commit=now)
                report.record(row)
                console.print(f"  {time.monotonic() - started:.0f} s, {row}", highlight=False)
    rows = [row for fault, row in report.read_of(now).items() if fault in wanted]
    report.show(console, rows)
    if not rows or not all(row.is_survived for row in rows):
        raise typer.Exit(1)


def _row(name: str, stacks: Stacks, seed: int) -> Row:
    scenario = SCENARIOS[name]
    if scenario.needs_root and os.geteuid() != 0:
        return Row(name, 0, 0, 0, 0, evidence="not run: only root can mount small disks")
    if not stacks.is_usable_for(scenario):
        stacks.discard()  # outside of the try block: an error at the end of the old stack is not a result of this fault
    try:
        row = scenario.inject(name, stacks.stack_for(scenario), seed)
    except (NoEvidenceError, ProcessFailedError) as error:
        # Without recovery no audit is possible, so the fault counts as lost and doubled.
        row = Row(name, 1, 1, 0, 0, evidence=f"did not recover: {error}"[:2_000])
    if not row.is_survived:
        stacks.discard()
    return row


if __name__ == "__main__":
    interrupt_on_signals()
    typer.run(main)
