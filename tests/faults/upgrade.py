"""Release 0.1 runs under load, and each of its processes is replaced with this version."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyspark

import schemas
from infra.local.folders import ROOT
from infra.local.stack import Service
from schemas import topics
from services.pos_simulator.simulation import Message
from services.settings import Settings
from tests.faults.auditor import Earlier, Observations
from tests.faults.environment import Environment, NoEvidenceError
from tests.faults.load import Callers, Tills
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.faults.under_load import RATE, audited_row, prime_cards
from tests.support.kafka import records_of
from tests.support.programs import last_error, loyalty, run

RELEASE = "4b8fb42"
"""The commit of release 0.1, whose data is also in tests/data/release-0.1."""

_HADOOP_RECORD = "history/HadoopRecord-1.avsc"
"""The hadoop records of release 0.1. Later records have more fields."""

_READ = 12


class JsonTills(Tills):
    """Tills that publish JSON, which every release can read. Release 0.1 does not know the schemas of this version."""

    def encode(self, message: Message) -> bytes:
        return message.value if message.invoice is None else json.dumps(message.invoice).encode()


class StackOfTheRelease(Environment):
    """A stack whose processes must not end by themselves.

    The supervisor would start this version in their place, and the fault would not test the release.
    """

    def restart(self, service: Service) -> None:
        """Raise NoEvidenceError."""
        raise NoEvidenceError(f"{service.process.name} needs a restart. {service.process.last_lines()}")


@contextlib.contextmanager
def of_the_release(directory: Path) -> Iterator[StackOfTheRelease]:
    """A stack whose processes are those of release 0.1. ``Environment.resume`` starts those of this version."""
    checkout = _checkout(directory)
    _export(checkout)
    environment = StackOfTheRelease(directory)
    stack = environment.stack
    try:
        stack.broker.start()
        _loyalty_of_the_release(environment, "topics", "create")
        with _working_in(checkout):
            for service in stack.services:
                service.start(None if service in stack.apis else lambda: True)
        yield environment
    finally:
        environment.__exit__()


def upgraded_under_load(name: str, environment: Environment, seed: int) -> Row:
    """Stop the pipeline, finish its micro-batches, replace all other processes, and start the new pipeline.

    This is the order of docs/how-to/upgrade.md. The new processes continue with all data. The fault audits the outputs
    of both releases, and so does ``loyalty audit``.
    """
    stack, settings = environment.stack, environment.settings
    callers = Callers(stack, environment.http, prime_cards(seed)[:_READ], environment.histories)
    with callers, JsonTills(stack, seed, RATE):
        environment.until_written(topics.LOYALTY, 20)
        environment.halt(stack.pipeline)
        _loyalty_of_the_release(environment, "pipeline", "--available-now")
        earlier, written = _written_by_the_release(settings)
        loyalty(settings, "topics", "create").check_returncode()
        for service in (*stack.apis, *stack.readers):
            environment.halt(service)
            environment.resume(service)
        environment.resume(stack.pipeline)
        recovery = environment.recovered()
    observations = Observations(callers.readings, histories=environment.histories)
    row = audited_row(environment, name, observations, recovery, written, earlier)
    audited = loyalty(settings, "audit")
    evidence = f"{row.evidence}; exit status of audit: {audited.returncode} {last_error(audited)}"
    return replace(row, wrong_answers=row.wrong_answers + bool(audited.returncode), evidence=evidence)


def _checkout(directory: Path) -> Path:
    return directory / "release"


def _loyalty_of_the_release(environment: Environment, *arguments: str) -> None:
    """Run the command ``loyalty`` of release 0.1. Raises NoEvidenceError if it fails."""
    checkout, code = _checkout(environment.directory), "from services.cli import app; app()"
    command = [sys.executable, "-c", code, *arguments]
    ended = run(command, environment.settings, checkout, PYTHONPATH=str(checkout))
    if ended.returncode:
        seen = f"status {ended.returncode} {last_error(ended)}"
        raise NoEvidenceError(f"loyalty {' '.join(arguments)} of release 0.1: {seen}")


def _written_by_the_release(settings: Settings) -> tuple[Earlier, str]:
    """What release 0.1 wrote, and a description. Raises NoEvidenceError if it wrote no accounts."""
    fields = [each["name"] for each in json.loads(schemas.schema_text(_HADOOP_RECORD))["fields"]]
    entries, balances = records_of(settings, topics.LOYALTY), records_of(settings, topics.LOYALTY_BALANCES)
    written = f"{len(entries)} entries and {len(balances)} balances of release 0.1"
    if not entries or not balances or any(each["NextExpiryPoints"] is not None for each in balances):
        raise NoEvidenceError(f"not {written}, because it wrote none, or this version wrote some of them")
    return Earlier(fields, {(each["CustomerCardNo"], each["Sequence"]) for each in balances}), written


def _export(checkout: Path) -> None:
    """Export the files of the release. Raises CalledProcessError if this checkout lacks the history."""
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", RELEASE], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={checkout}"], input=archive, check=True)
    # The release refuses every other PySpark than 4.2.0. The calls that it sends are the same in our version.
    calls = checkout / "pipelines" / "state_calls.py"
    calls.write_text(calls.read_text("utf-8").replace('"4.2.0"', f'"{pyspark.__version__}"'), "utf-8")


@contextlib.contextmanager
def _working_in(checkout: Path) -> Iterator[None]:
    """Let processes that start in the block import the modules of this folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(checkout)
    try:
        with contextlib.chdir(checkout):
            yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


SCENARIOS: dict[str, Scenario[Environment]] = {
    "each process of release 0.1 replaced by this version": Scenario(upgraded_under_load, of_the_release, most=1)
}
