"""`loyalty pipeline`, `api`, `export` and `archive`: start a process of its own kind in this one's place.

The CLI is below both layers and imports neither. Replacing the process keeps its id: signals reach the pipeline or the
API, and a supervisor sees its exit status.
"""

import os
import sys
from typing import Annotated, NoReturn

import typer

from services.cli.output import read_settings

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command whose options are the other program's, ``--help`` among them."""


def pipeline(context: typer.Context) -> None:
    """Run the Spark pipeline; its own options follow (--help shows them)."""
    become("pipelines", context.args)


def api(context: typer.Context) -> None:
    """Run one API instance; its own options follow (--help shows them)."""
    become("api", context.args)


def export(
    context: typer.Context,
    *,
    to: Annotated[str | None, typer.Option(help="Folder of the Parquet files; any Hadoop URI.")] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run on, instead of ending with what is there.")
    ] = False,
) -> None:
    """Write the masked history to Parquet files."""
    folder = to or read_settings().export_dir
    until = [] if continuous else ["--available-now"]
    become("pipelines", ["--query", "export", "--to", folder, *until, *context.args])


def archive(context: typer.Context) -> None:
    """Append to Parquet what has happened to accounts since the last time, under pseudonyms."""
    become("pipelines", ["--query", "archive", "--available-now", *context.args])


def become(module: str, arguments: list[str]) -> NoReturn:
    """Run ``python -m module`` in this process's place."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell is wanted
