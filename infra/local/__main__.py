"""``make up``, ``make kafka``, ``make down`` and ``make status``. The data of the local stack is in ./var."""

import sys

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from infra.local import jars
from infra.local.interruption import InterruptedBySignalError, interrupt_on_signals
from infra.local.processes import ProcessFailedError
from infra.local.stack import LocalStack
from services.messaging.administration import TopicMismatchError
from services.settings import Settings
from services.start_up import StartUpError

app = typer.Typer(
    add_completion=False,
    help="The local stack: Kafka, the pipeline, one API instance, the ledger, and the webhooks if they have a file.",
)
_INTERRUPTED = 130

console = Console()


@app.command()
def up() -> None:
    """Start all parts that do not run. Data, logs and pid files are in ./var."""
    stack = _stack()
    console.print("Starting the stack. The first start takes about a minute.")
    stack.start(on_part=lambda name: console.print(f"  {name} …"))
    _show(stack)


@app.command()
def kafka() -> None:
    """Start Kafka alone, for example for `loyalty rebuild` after a lost checkpoint."""
    stack = _stack()
    stack.start(on_part=lambda name: console.print(f"  {name} …"), services=[])
    _show(stack)


@app.command()
def down() -> None:
    """Stop all parts. The data stays."""
    _stack().stop(on_part=lambda name: console.print(f"  stopping {name} …"))


@app.command()
def status() -> None:
    """Show all parts. The exit status is 1 if a part does not run."""
    stack = _stack()
    _show(stack)
    if any(process.pid is None for process in stack.processes):
        raise typer.Exit(1)


def _stack() -> LocalStack:
    return LocalStack(jars.ROOT / "var", Settings())


def _show(stack: LocalStack) -> None:
    table = Table("part", "process", "address", "log")
    addresses = [stack.broker.bootstrap_servers, *(service.url for service in stack.services)]
    for process, address in zip(stack.processes, addresses, strict=True):
        state = "[red]not running" if process.pid is None else str(process.pid)
        table.add_row(process.name, state, address, str(process.log_file.relative_to(jars.ROOT)))
    console.print(table)


def main() -> None:
    interrupt_on_signals()
    try:
        app()
    except InterruptedBySignalError:
        sys.exit(_INTERRUPTED)
    except (StartUpError, ProcessFailedError, TopicMismatchError, ValidationError, ValueError) as error:
        sys.exit(f"local stack: {error}")


main()
