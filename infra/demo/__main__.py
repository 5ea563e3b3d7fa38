"""``make demo`` sends a trading day through a separate stack and checks all results.

The exit status is 1 if a result is wrong.
"""

import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Annotated

import httpx
import typer
from confluent_kafka import KafkaException
from pydantic import ValidationError
from rich.console import Console

from infra.containers.project import ContainersError
from infra.containers.stack import ContainerStack
from infra.demo import report, trading_day
from infra.demo.helpdesk import HelpdeskError, expect_day, plan
from infra.demo.oracle import Version, expect
from infra.demo.run import DemoFailedError, Result, progress_bars, run, timed
from infra.local import folders, jars
from infra.local.interruption import InterruptedBySignalError, ignore_signals, interrupt_on_signals
from infra.local.java import JavaNotFoundError
from infra.local.processes import ProcessFailedError
from infra.local.stack import LocalStack, private_settings
from infra.security.folder import LOCAL_HOSTS, SecurityFolder
from pipelines.checkpoints.lock import CheckpointInUseError, hold
from services.cli.output import FAILED, INTERRUPTED, AsJson, print_json
from services.errors import UserError
from services.messaging.avro import UndecodableError
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.invoicing import TIME_ZONE, opening, since_opening
from services.pos_simulator.simulation import Options
from services.settings import ExportFormat, Settings

_RETURNS, _EXCHANGES, _OFFLINE = 0.04, 0.02, 0.05
"""Shares of the simulated invoices. Even a short day has some invoices of each kind."""

_KNOWN_ERRORS = (
    DemoFailedError,
    HelpdeskError,
    UserError,
    ContainersError,
    ProcessFailedError,
    UndecodableError,
    KafkaException,
    httpx.HTTPError,
    ValidationError,
    OSError,
    JavaNotFoundError,
    jars.JarsError,
)

console = Console(emoji=False)


def demo_settings(directory: Path, export_format: ExportFormat) -> Settings:
    """Settings of a short run on a small machine."""
    return private_settings(
        directory,
        export_format=export_format,
        spark_master="local[2]",
        # Only the first compiler of the JVM: the run is too short to profit from the second one.
        spark_java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m",
        sales_interval=timedelta(seconds=2),
        export_interval=timedelta(seconds=2),
        # The demo deletes the data, so running micro-batches need not end.
        stop_timeout=timedelta(seconds=1),
    )


def main(  # noqa: PLR0913  # one argument for each option
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            readable=True,
            help="Files of recorded invoices as JSON Lines. Default: simulated invoices.",
        ),
    ] = None,
    invoices: Annotated[
        int, typer.Option(min=1, help="Number of simulated messages, including duplicates and broken messages.")
    ] = 2_000,
    rate: Annotated[float, typer.Option(min=0, help="Messages per second. 0: as fast as possible.")] = 200,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder for the data (demo/) and the results (reports/demo.json). Default: var."),
    ] = None,
    export_format: Annotated[
        ExportFormat, typer.Option(help="Format of the exported files that are compared.")
    ] = "parquet",
    *,
    containers: Annotated[bool, typer.Option("--containers", help="Run the stack in containers.")] = False,
    secured: Annotated[
        bool, typer.Option("--secured", help="With --containers: use a Kafka that is secured as in production.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--open", help="Keep the stack running after the checks, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send a trading day or recorded invoices through Kafka, the pipeline and the API, and check all results."""
    console.stderr = as_json
    if secured and not containers:
        raise typer.BadParameter("--secured works only with --containers: add it")
    if containers and export_format == "delta":
        raise typer.BadParameter("--export-format delta works only without --containers: leave one of them out")
    recorded = [file.resolve() for file in files or []]
    var = folder.resolve() if folder else folders.enter() / "var"
    name = f"{'secured-' * secured}compose-demo" if containers else "demo"
    directory = var / name
    settings = demo_settings(directory, export_format)
    stack: LocalStack | ContainerStack = LocalStack(directory, settings)
    if containers:
        security = SecurityFolder(var / "security") if secured else None
        if security:
            security.complete(LOCAL_HOSTS)
        stack = ContainerStack(directory, settings, security=security)
    try:
        jars.provide(console.print)
        # A second demo would delete the data of the first one.
        with hold(str(directory)):
            # The programme uses the times of the receipts, so the receipts must be recent.
            day = datetime.now(TIME_ZONE).date() - timedelta(days=1)
            options = Options(count=invoices, day=day, returns=_RETURNS, exchanges=_EXCHANGES, offline=_OFFLINE)
            result = _demo(recorded, options, rate, stack, stay=stay)
    except InterruptedBySignalError:
        console.print("demo: interrupted. All its processes are stopped.")
        raise typer.Exit(INTERRUPTED) from None
    except CheckpointInUseError:
        sys.exit(f"demo: another demo runs in {directory}: wait until it ends, or use --dir with another folder")
    except _KNOWN_ERRORS as error:
        sys.exit(f"demo: {error}")
    report.show(console, result)
    _show_address(stack, stay=stay)
    report.write(var / "reports" / f"{name}.json", report.figures(result))
    if as_json:
        print_json(report.figures(result))
    if result.mismatches:
        raise typer.Exit(FAILED)


def _demo(
    files: list[Path], options: Options, rate: float, stack: LocalStack | ContainerStack, *, stay: bool
) -> Result:
    settings, directory = stack.settings, stack.directory
    ids = schema_ids(settings)
    sent = list(trading_day.from_files(files, ids) if files else trading_day.simulated(options, ids))
    helpdesk = None
    if files or isinstance(stack, ContainerStack):
        expected = expect(sent, settings.loyalty_factor)
    else:
        morning, afternoon = (opening(options.day) + since_opening(part) for part in (0, 0.5))
        versions = {
            morning: Version(settings.loyalty_factor, valid_days=90),
            afternoon: Version(settings.loyalty_factor * 2, valid_days=60, is_pending=True),
        }
        sent, helpdesk = plan(sent, versions, ids)
        expected = expect_day(sent, helpdesk, settings.loyalty_factor)
    stack.stop()  # A killed demo leaves its stack running.
    shutil.rmtree(directory, ignore_errors=True)
    phases: dict[str, float] = {}
    try:
        with timed(phases, "start the stack"):
            console.print("Starting a separate stack. This takes about a minute.")
            if isinstance(stack, LocalStack) and helpdesk:
                stack.start(services=[])
                helpdesk.publish_programme(settings)
            stack.start(on_part=lambda name: console.print(f"  {name} …"))
            if isinstance(stack, LocalStack) and stack.settings.api_access == "authenticated":
                stack.ensure_key()
        result = run(stack, sent, expected, rate, progress_bars(console), helpdesk)
        if stay:
            _wait_for_the_user(stack, result)
    except InterruptedBySignalError:
        ignore_signals()  # A second Ctrl-C must not interrupt the clean-up.
        stack.stop()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        ignore_signals()
        with timed(phases, "stop the stack"):
            stack.stop()
    if not result.mismatches:
        shutil.rmtree(directory)
    return replace(result, phases={**phases, **result.phases})


def _show_address(stack: LocalStack | ContainerStack, *, stay: bool) -> None:
    # The ports of containers are known only while they run, and `make compose-demo` cannot keep them running.
    if not stay and isinstance(stack, LocalStack):
        console.print(f"The console was at {stack.api_url}/. `make demo OPEN=1` keeps it open.")


def _wait_for_the_user(stack: LocalStack | ContainerStack, result: Result) -> None:
    """Keep the stack running until Ctrl-C."""
    console.print(f"The trading day has {len(result.mismatches)} mismatches. The console is at {stack.api_url}/")
    if result.found.balances:
        console.print(f"A card to look for: {next(iter(result.found.balances))}")
    if isinstance(stack, LocalStack) and stack.settings.api_access == "authenticated":
        console.print(f"Sign in with the key in {stack.key_file}")
    console.print("Ctrl-C stops the stack and deletes its data.")
    with suppress(InterruptedBySignalError):
        Event().wait()


if __name__ == "__main__":
    interrupt_on_signals()
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="loyalty demo")
