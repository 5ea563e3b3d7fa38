"""`loyalty audit` and `loyalty rebuild`: their options, and the programs that take them in this process's place."""

from enum import StrEnum
from typing import Annotated

import typer

from services.audit.facts import Source
from services.cli.output import AsJson
from services.cli.processes import become

SHOWN = 20


class From(StrEnum):
    """Where events come from."""

    TOPICS = "topics"
    PARQUET = "parquet"


class Part(StrEnum):
    """What can be left out."""

    LEDGER = "ledger"
    BALANCES = "balances"
    STATE = "state"


PARTS = {Part.LEDGER: Source.LEDGER, Part.BALANCES: Source.BALANCE, Part.STATE: Source.STATE}

FromOption = Annotated[
    From, typer.Option("--from", help="parquet: what the topics have lost comes from LOYALTY_ARCHIVE_DIR.")
]
ApiOption = Annotated[
    str | None, typer.Option("--api", help="URL that serves the balances; default: that of the settings.")
]
WithoutOption = Annotated[
    list[Part] | None, typer.Option("--without", help="Leave this out of the comparison; can be repeated.")
]
ShowOption = Annotated[int, typer.Option("--show", min=0, help="Differences that are shown.")]


def audit(
    *,
    source: FromOption = From.TOPICS,
    api: ApiOption = None,
    without: WithoutOption = None,
    show: ShowOption = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Recompute every account; compare with it the loyalty topic, the ledger, served balances and Spark's state.

    Ends with 0 if all agree, 1 if anything differs, 2 if something could not be read. The output names cards.
    """
    left_out = [f"--without={part}" for part in without or ()]
    at = [f"--api={api}"] if api else []
    become(
        "pipelines.reconciliation.audit",
        [f"--from={source}", f"--show={show}", *at, *left_out, *_json(as_json=as_json)],
    )


def rebuild(*, source: FromOption = From.TOPICS, as_json: AsJson = False) -> None:
    """Make a new checkpoint of the loyalty query, with the accounts as their events make them.

    The pipeline must be stopped. The checkpoint of before is moved aside. The output names cards.
    """
    become("pipelines.reconciliation.rebuild", [f"--from={source}", *_json(as_json=as_json)])


def _json(*, as_json: bool) -> list[str]:
    return ["--json"] if as_json else []
