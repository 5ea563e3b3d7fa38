"""``make demo``: a trading day through a stack of its own, every result checked; exit status 0 only if all agree."""

import fcntl
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import httpx
import typer
from confluent_kafka import KafkaException
from pydantic import ValidationError
from rich.console import Console

from infra.containers.project import ContainersError
from infra.containers.stack import ContainerStack
from infra.demo import report, trading_day
from infra.demo.oracle import expect
from infra.demo.run import DemoFailedError, Result, progress_bars, run, timed
from infra.local import jars
from infra.local.interruption import InterruptedBySignalError, interrupt_on_signals
from infra.local.processes import ProcessFailedError
from infra.local.stack import LocalStack, PortTakenError, private_settings
from infra.security.broker import BrokerSecurity
from infra.security.folder import LOCAL_HOSTS, SecurityFolder
from services.messaging.administration import TopicMismatchError
from services.messaging.avro import UndecodableError
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import UnknownSchemaIdError, schema_ids
from services.pos_simulator import Options
from services.settings import Settings

VAR = jars.ROOT / "var"

_MISMATCH, _INTERRUPTED = 1, 130
_KNOWN_ERRORS = (
    DemoFailedError,
    ContainersError,
    ProcessFailedError,
    PortTakenError,
    TopicMismatchError,
    PublishError,
    UndecodableError,
    UnknownSchemaIdError,
    KafkaException,
    httpx.HTTPError,
    ValidationError,
    OSError,
)

console = Console()


def demo_settings(directory: Path) -> Settings:
    """Settings of a short life on a small machine."""
    return private_settings(
        directory,
        spark_master="local[2]",
        # Its first batches are most of what it does: the second compiler would only take their time.
        spark_java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        sales_interval=timedelta(seconds=2),
        export_interval=timedelta(seconds=2),
        # Nothing of it is kept, so no batch need come to its end.
        stop_timeout=timedelta(seconds=1),
    )


def main(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            exists=True, dir_okay=False, readable=True, help="Recorded invoices, JSON lines; none: simulated."
        ),
    ] = None,
    invoices: Annotated[
        int, typer.Option(min=1, envvar="N", help="Simulated messages, repeats and broken ones among them.")
    ] = 2_000,
    rate: Annotated[float, typer.Option(min=0, envvar="RATE", help="Messages a second; 0: as fast as possible.")] = 200,
    var: Annotated[Path, typer.Option(help="Holds its data (demo/) and its figures (reports/demo.json).")] = VAR,
    *,
    containers: Annotated[bool, typer.Option("--containers", help="In containers, as compose-demo.")] = False,
    secured: Annotated[bool, typer.Option("--secured", help="With it, on a Kafka secured as in production.")] = False,
) -> None:
    """Send a trading day, or recorded invoices, through Kafka, the pipeline and the API, and check every result."""
    if secured and not containers:
        raise typer.BadParameter("--secured is for --containers")
    name = f"{'secured-' * secured}compose-demo" if containers else "demo"
    directory = var.resolve() / name
    settings = demo_settings(directory)
    stack: LocalStack | ContainerStack = LocalStack(directory, settings)
    if containers:
        stack = ContainerStack(directory, settings, security=_security(var / "security") if secured else None)
    try:
        with _alone(directory):
            result = _demo(files or [], Options(count=invoices), rate, stack)
    except InterruptedBySignalError:
        console.print("demo: interrupted; everything it started has been stopped")
        raise typer.Exit(_INTERRUPTED) from None
    except _KNOWN_ERRORS as error:
        sys.exit(f"demo: {error}")
    report.show(console, result)
    report.write(var / "reports" / f"{name}.json", report.figures(result))
    if result.mismatches:
        raise typer.Exit(_MISMATCH)


def _security(directory: Path) -> BrokerSecurity:
    folder = SecurityFolder(directory)
    folder.complete(LOCAL_HOSTS)
    return BrokerSecurity(folder)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the directory: a second demo there would wipe it under the first."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFailedError(f"another demo is running in {directory}") from None
        yield


def _demo(files: list[Path], options: Options, rate: float, stack: LocalStack | ContainerStack) -> Result:
    settings, directory = stack.settings, stack.directory
    ids = schema_ids(settings)
    sent = list(trading_day.from_files(files, ids) if files else trading_day.simulated(options, ids))
    expected = expect(sent, settings.loyalty_factor)
    stack.stop()  # what an earlier demo that was killed may have left running
    shutil.rmtree(directory, ignore_errors=True)
    phases: dict[str, float] = {}
    try:
        with timed(phases, "start the stack"):
            console.print("Starting a stack of its own; this takes about a minute.")
            stack.start(on_part=lambda name: console.print(f"  {name} …"))
        result = run(stack, sent, expected, rate, progress_bars(console))
    except InterruptedBySignalError:
        with _undisturbed():
            stack.stop()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        with timed(phases, "stop it"), _undisturbed():
            stack.stop()
    if not result.mismatches:
        shutil.rmtree(directory)
    return replace(result, phases={**phases, **result.phases})


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Whoever presses Ctrl-C twice must not keep the first from cleaning up."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    interrupt_on_signals()
    typer.run(main)
