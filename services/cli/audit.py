"""The options of `loyalty audit`, `rebuild` and `returns`. A program of the pipelines then replaces this process."""

from enum import StrEnum
from typing import Annotated

import typer

from services.audit.facts import Source
from services.cli.output import AsJson
from services.cli.processes import announce_command, replace_process
from services.cli.status import ApiUrl

SHOWN = 20


class From(StrEnum):
    """The source of the events."""

    TOPICS = "topics"
    PARQUET = "parquet"


class Part(StrEnum):
    """A part that the audit can omit."""

    LEDGER = "ledger"
    BALANCES = "balances"
    STATE = "state"


PARTS = {Part.LEDGER: Source.LEDGER, Part.BALANCES: Source.BALANCE, Part.STATE: Source.STATE}

FromOption = Annotated[
    From,
    typer.Option(
        "--from", help="parquet: also read the archive (LOYALTY_ARCHIVE_DIR), which has events that the topics lack."
    ),
]
WithoutOption = Annotated[
    list[Part] | None, typer.Option("--without", help="Omit this part. Repeat the option for several parts.")
]
WithoutLedgerOption = Annotated[
    bool,
    typer.Option("--without-ledger", help="Do not read the ledger. Use this only if the installation has no ledger."),
]
AcceptLostEventsOption = Annotated[
    bool,
    typer.Option(
        "--accept-lost-events",
        help="Continue although recorded entries have no event. The accounts lose the points of these entries.",
    ),
]
ShowOption = Annotated[int, typer.Option("--show", min=0, help="Number of differences to print.")]


def audit(
    *,
    source: FromOption = From.TOPICS,
    api: ApiUrl = None,
    without: WithoutOption = None,
    show: ShowOption = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Compute all accounts from the events, and compare them with the outputs.

    The outputs are the topic loyalty, the ledger, the balances of the API and the state of Spark. The exit status is 0
    if all are equal, 1 if there is a difference, and 2 if a part cannot be read. The output contains card numbers.
    """
    options = [f"--from={source}", f"--show={show}"]
    if api:
        options.append(f"--api={api}")
    options += [f"--without={part}" for part in without or ()]
    if as_json:
        options.append("--json")
    replace_process("pipelines.reconciliation.audit", options)


def rebuild(
    *,
    source: FromOption = From.TOPICS,
    without_ledger: WithoutLedgerOption = False,
    accept_lost_events: AcceptLostEventsOption = False,
    show: ShowOption = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Create a new checkpoint of the loyalty query, with accounts computed from the events.

    Stop the pipeline first. The command renames the old checkpoint. The output contains card numbers.
    """
    announce_command("rebuild", source=source)
    options = [f"--from={source}", f"--show={show}", *["--without-ledger"] * without_ledger, *["--json"] * as_json]
    options += ["--accept-lost-events"] * accept_lost_events
    replace_process("pipelines.reconciliation.rebuild", options)


def returns(*, as_json: AsJson = False) -> None:
    """List the returns whose purchases have not arrived, or belong to customers without an account.

    A return is settled when its purchase arrives, if the purchase belongs to a customer of the programme.

    The list is in the state of the loyalty query, so this command needs its checkpoint. The output names no card.
    """
    replace_process("pipelines.reconciliation.waiting_returns", ["--json"] * as_json)
