"""The local stack: ``make up``, ``kafka``, ``down`` and ``status``; ``loyalty up``, ``kafka`` and ``down``.

The data of the stack is in the folder ``var`` of the folder that ``infra.local.folders`` chooses.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from infra.local import folders, jars
from infra.local.interruption import InterruptedBySignalError, interrupt_on_signals
from infra.local.java import JavaNotFoundError
from infra.local.processes import ManagedProcess, ProcessFailedError
from infra.local.stack import LocalStack, Service
from services.cli.output import INTERRUPTED, AsJson, clear_errors, print_json, read_settings
from services.cli.processes import Folder

app = typer.Typer(
    add_completion=False,
    help="The local stack: Kafka, the pipeline, one API instance, the ledger, and the webhooks if they have a file.",
)

_KNOWN_ERRORS = (ProcessFailedError, JavaNotFoundError, jars.JarsError)

console = Console(emoji=False)


@app.command()
def up(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Start all parts that do not run. Data, logs and pid files are in the folder var."""
    stack = _start(directory, as_json=as_json)
    with clear_errors():
        stack.ensure_key()
    if as_json:
        print_json({"parts": parts_of(stack), "api_key_file": str(stack.key_file)})
        return
    _show(stack)
    console.print(f"Console: {stack.api_url}/")
    console.print(f"API key with all scopes: {_shown(stack.key_file)} (only you can read the file)")
    if (access := stack.settings.api_access) != "authenticated":
        who = "on this machine" if access == "loopback" else "who reaches its port"
        console.print(f"The API answers everybody {who} without a key: LOYALTY_API_ACCESS is {access}.")


@app.command()
def kafka(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Start Kafka alone, for example for `loyalty rebuild` after a lost checkpoint."""
    stack = _start(directory, as_json=as_json, services=[])
    if as_json:
        print_json({"parts": parts_of(stack)})
        return
    _show(stack)


@app.command()
def down(directory: Folder = None, *, as_json: AsJson = False) -> None:
    """Stop all parts. The data stays."""
    console.stderr = as_json
    stopped: list[str] = []

    def on_part(process: ManagedProcess) -> None:
        stopped.append(process.name)
        console.print(f"  stopping {process.name}, for at most {process.stop_timeout:.0f} s …")

    stack = _stack(directory)
    stack.stop(on_part)
    if as_json:
        print_json({"stopped": stopped})
    elif not stopped:
        typer.echo(f"No part runs in {stack.directory}, so there is nothing to stop.")


@app.command()
def status(directory: Folder = None) -> None:
    """Show all parts. The exit status is 1 if a part does not run."""
    stack = _stack(directory)
    _show(stack)
    if any(process.pid is None for process in stack.processes):
        raise typer.Exit(1)


def _stack(directory: str | None) -> LocalStack:
    with clear_errors():
        home = folders.enter(directory)
    settings = read_settings()
    if not folders.IS_CHECKOUT:
        settings = settings.model_copy(update={"spark_jars_dir": jars.folder("spark")})
    with clear_errors():
        return LocalStack(home / "var", settings)


def _start(directory: str | None, *, as_json: bool, services: Sequence[Service] | None = None) -> LocalStack:
    """Start Kafka and these services (None: all). With ``as_json``, only JSON goes to standard output."""
    console.stderr = as_json
    stack = _stack(directory)
    jars.provide(console.print)
    if services is None:
        console.print("Starting the stack. This takes one or two minutes.")
    with clear_errors():
        stack.start(on_part=lambda name: console.print(f"  {name} …"), services=services)
    return stack


def parts_of(stack: LocalStack) -> list[dict[str, Any]]:
    """The parts with their process ids (None: not running), addresses and logs, in the order of their start."""
    addresses = [stack.broker.bootstrap_servers, *(service.url for service in stack.services)]
    return [
        {"name": process.name, "pid": process.pid, "address": address, "log": str(process.log_file)}
        for process, address in zip(stack.processes, addresses, strict=True)
    ]


def _shown(path: Path) -> str:
    """The path, relative to the working directory if possible. ``var`` can be a symbolic link to another place."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _show(stack: LocalStack) -> None:
    table = Table("part", "process", "address", "log")
    for part in parts_of(stack):
        state = "[red]not running" if part["pid"] is None else str(part["pid"])
        table.add_row(part["name"], state, part["address"], _shown(Path(part["log"])))
    console.print(table)
    if not folders.IS_CHECKOUT:
        console.print(
            f"The data is in {Path.cwd()}. Run other commands in this folder, because their paths are relative."
        )


def main() -> None:
    interrupt_on_signals()
    try:
        app()
    except InterruptedBySignalError:
        sys.exit(INTERRUPTED)
    except _KNOWN_ERRORS as error:
        sys.exit(f"local stack: {error}")


if __name__ == "__main__":
    main()
