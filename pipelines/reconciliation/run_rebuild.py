"""``python -m pipelines.rebuild``, or ``loyalty rebuild``: make a new checkpoint of the loyalty query, and report."""

import dataclasses

import typer

from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.reconciliation.rebuild import RebuildError, Rebuilt, rebuild
from pipelines.reconciliation.run_audit import session
from pipelines.runtime.query_table import RepeatHorizonError
from services.cli.audit import SHOWN, From, FromOption
from services.cli.output import MISUSED, AsJson, console, print_json, stop
from services.messaging.administration import TimestampTypeError


def main(*, source: FromOption = From.TOPICS, as_json: AsJson = False) -> None:
    """Make a new checkpoint of the loyalty query, with the accounts as their events make them.

    The pipeline must be stopped. The checkpoint of before is moved aside. The output names cards.
    """
    with session("loyalty-rebuild") as context:
        try:
            rebuilt = rebuild(context, archive=source is From.PARQUET)
        except (RebuildError, CheckpointMismatchError, RepeatHorizonError, TimestampTypeError) as error:
            stop(str(error), MISUSED)
    if as_json:
        print_json(dataclasses.asdict(rebuilt))
    else:
        _show(rebuilt)


def _show(rebuilt: Rebuilt) -> None:
    out = console()
    out.print(f"{rebuilt.checkpoint}: {rebuilt.accounts:,} accounts; {rebuilt.late:,} events processed now")
    if rebuilt.aside:
        out.print(f"the checkpoint of before is {rebuilt.aside}")
    for found in rebuilt.differences[:SHOWN]:
        out.print(f"{found.whose}: {found.where}: {found.what}", markup=False, highlight=False)
    if len(rebuilt.differences) > SHOWN:
        out.print(f"… and {len(rebuilt.differences) - SHOWN:,} more differences (--json)", highlight=False)
    for note in rebuilt.notes:
        out.print(f"note: {note}", markup=False, highlight=False)


if __name__ == "__main__":
    typer.run(main)
