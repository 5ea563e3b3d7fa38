"""Release 0.1 runs under load, and each of its processes is replaced with this version."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import schemas
from infra.local import jars
from schemas import topics
from services.pos_simulator.simulation import Message
from tests.faults.clerks import Answers
from tests.faults.environment import Environment
from tests.faults.load import Callers, Tills
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.faults.under_load import RATE, Observations, audited_row, prime_cards
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


@contextlib.contextmanager
def of_the_release(directory: Path) -> Iterator[Environment]:
    """A stack whose processes are those of release 0.1. ``Environment.resume`` starts those of this version."""
    checkout = directory / "release"
    _export(checkout)
    environment = Environment(directory)
    stack = environment.stack
    try:
        stack.broker.start()
        with _working_in(checkout):
            code = "from services.cli import app; app()"
            run([sys.executable, "-c", code, "topics", "create"], environment.settings, checkout).check_returncode()
            for service in stack.services:
                service.start(None if service in stack.apis else lambda: True)
        yield environment
    finally:
        environment.__exit__()


def upgraded_under_load(name: str, environment: Environment, seed: int) -> Row:
    """Stop the pipeline, replace all other processes one after the other, and start the new pipeline.

    This is the order of docs/how-to/upgrade.md. The new processes continue with all data. The fault audits the outputs
    of both releases, and so does ``loyalty audit``.
    """
    stack, settings = environment.stack, environment.settings
    callers = Callers(stack, environment.http, prime_cards(seed)[:_READ], environment.histories)
    with callers, JsonTills(stack, seed, RATE):
        environment.until_written(topics.LOYALTY, 20)
        environment.halt(stack.pipeline)
        loyalty(settings, "topics", "create").check_returncode()
        for service in (*stack.apis, *stack.readers):
            environment.halt(service)
            environment.resume(service)
        environment.resume(stack.pipeline)
        recovery = environment.recovered()
    fields = [each["name"] for each in json.loads(schemas.schema_text(_HADOOP_RECORD))["fields"]]
    observations = Observations(callers.readings, Answers(), 0)
    row = audited_row(environment, name, observations, recovery, hadoop_fields=fields)
    audited = loyalty(settings, "audit")
    evidence = f"{row.evidence}; exit status of audit: {audited.returncode} {last_error(audited)}"
    return replace(row, wrong_answers=row.wrong_answers + bool(audited.returncode), evidence=evidence)


def _export(checkout: Path) -> None:
    """Export the files of the release. Raises CalledProcessError if this checkout lacks the history."""
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", RELEASE], cwd=jars.ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={checkout}"], input=archive, check=True)


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
