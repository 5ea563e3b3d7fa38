"""Commands whose programs replace the process of the CLI: `loyalty up`, `down`, `demo`, `pipeline`, `api` and others.

The CLI may not import the pipelines or the API. The new program keeps the process id, so it receives signals and a
supervisor sees its exit status.
"""

import os
import sys
from typing import Annotated, NoReturn

import typer

from services.cli.output import read_settings

FORWARD_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that forwards all options, also ``--help``, to its program."""


Folder = Annotated[str | None, typer.Option("--dir", help="Folder of the data. Default: the user's data folder (XDG).")]


def up(directory: Folder = None) -> None:
    """Start Kafka, the pipeline, one API instance and the ledger on this machine."""
    replace_process("infra.local", ["up", *_option("--dir", directory)])


def down(directory: Folder = None) -> None:
    """Stop what `loyalty up` has started. The data stays."""
    replace_process("infra.local", ["down", *_option("--dir", directory)])


def demo(context: typer.Context) -> None:
    """Run a trading day through a stack of its own, and check all results. `loyalty demo --help` shows its options."""
    replace_process("infra.demo", context.args)


def pipeline(context: typer.Context) -> None:
    """Run the Spark pipeline. `loyalty pipeline --help` shows its options."""
    replace_process("pipelines", context.args)


def api(context: typer.Context) -> None:
    """Run one API instance. `loyalty api --help` shows its options."""
    replace_process("api", context.args)


def export(
    context: typer.Context,
    *,
    to: Annotated[str | None, typer.Option(help="Folder of the Parquet files. Any Hadoop URI.")] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Keep running. Without it, export the present records and end.")
    ] = False,
) -> None:
    """Export the masked invoices to Parquet files."""
    folder = to or read_settings().export_dir
    until = [] if continuous else ["--available-now"]
    replace_process("pipelines", ["--query", "export", "--to", folder, *until, *context.args])


def archive(context: typer.Context) -> None:
    """Append the new events of accounts to the Parquet archive, with pseudonyms instead of cards."""
    replace_process("pipelines", ["--query", "archive", "--available-now", *context.args])


def webhooks(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Read the endpoints and their secrets, print the endpoints, and end.")
    ] = False,
) -> None:
    """Deliver loyalty notifications to the endpoints of LOYALTY_WEBHOOKS_FILE."""
    replace_process("services.webhooks", ["--check"] if check else [])


def _option(name: str, value: str | None) -> list[str]:
    return [f"{name}={value}"] if value else []


def replace_process(module: str, arguments: list[str]) -> NoReturn:
    """Replace this process by ``python -m module``."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell is wanted
