"""Changes around a running stack: another partition, clocks that are wrong, a read-only disk, another export format."""

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.cimpl import NewPartitions

from schemas import topics
from services.messaging.clients import admin
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from tests.faults.alone import Scenario, small_disks
from tests.faults.environment import Environment
from tests.faults.refusals import refused
from tests.faults.report import Row
from tests.faults.under_load import OnAStack, audited_row, load
from tests.support.kafka import publish_invoices

_MS_PER_YEAR = 365 * 24 * 3_600_000
_WRONG_YEARS = (-40, -10, -1, 1, 10, 100)
_OTHER_SEED = 5_000


def wrong_clocks(name: str, environment: Environment, seed: int) -> Row:
    """Tills whose clocks are years slow or fast publish among the others."""
    chance = random.Random(seed)
    invoices = _other_invoices(environment.settings, seed)
    for each in invoices:
        each["CreatedTime"] += chance.choice(_WRONG_YEARS) * _MS_PER_YEAR
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY)
        publish_invoices(environment.settings, *invoices)
        recovery = environment.recovered()
    return audited_row(environment, name, observations, [recovery], f"{len(invoices)} invoices with a wrong time")


def _other_invoices(settings: Settings, seed: int) -> list[dict[str, Any]]:
    """Invoices of all stores that the tills of the load do not publish."""
    messages = Simulation(Options(300, seed + _OTHER_SEED, customers=200), schema_ids(settings)).messages()
    return [dict(message.invoice) for message in messages if message.invoice]


def partition_added(name: str, directory: Path, seed: int) -> Row:
    """Add a partition to pos-invoices. Then stores move to other partitions, and their invoices lose their order."""
    with Environment(directory) as environment:
        with load(environment, seed) as observations:
            environment.until_written(topics.LOYALTY, 20)
            _add_partition(environment.settings)
            # A new producer knows the partition at once.
            publish_invoices(environment.settings, *_other_invoices(environment.settings, seed))
            recovery = environment.recovered()
        added, records = max(environment.ends(topics.POS_INVOICES).items())
        row = audited_row(environment, name, observations, [recovery], f"{records} records in partition {added}")
    return replace(row, wrong_answers=row.wrong_answers + (not records))


def _add_partition(settings: Settings) -> None:
    topic = topics.POS_INVOICES
    wanted = [NewPartitions(settings.name_of(topic), topic.partitions + 1)]
    client = admin(settings)
    for future in client.create_partitions(wanted).values():
        future.result()


def read_only_checkpoints(name: str, directory: Path, seed: int) -> Row:
    """Start the pipeline while the disk of its checkpoints is read-only. It must refuse, and continue afterwards."""
    if os.geteuid() != 0:
        return Row(name, 0, 0, 0, 0, evidence="not run: mounting small disks needs root")
    folder = directory / "checkpoints"
    with small_disks([folder]), Environment(directory) as environment:
        pipeline = environment.stack.pipeline
        with load(environment, seed) as observations:
            environment.until_written(topics.LOYALTY, 20)
            environment.halt(pipeline)
            _remount(folder, "ro")
            refusal = refused(environment.settings)
            _remount(folder, "rw")
            environment.resume(pipeline)
            recovery = environment.recovered()
        row = audited_row(environment, name, observations, [recovery], f"refused: {refusal}")
    return replace(row, wrong_answers=row.wrong_answers + (not refusal))


def _remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def delta_writer_killed(name: str, directory: Path, seed: int) -> Row:
    """Kill the pipeline that writes the export as a Delta table."""
    with Environment(directory, export_format="delta") as environment:
        with load(environment, seed) as observations:
            environment.until_written(topics.HADOOP, 20)
            environment.restart(environment.stack.pipeline)
            recovery = environment.recovered()
        return audited_row(environment, name, observations, [recovery])


ON_A_STACK: dict[str, OnAStack] = {"tills whose clocks are years slow or fast": wrong_clocks}
SCENARIOS: dict[str, Scenario] = {
    "a partition added to pos-invoices": partition_added,
    "checkpoints on a read-only disk": read_only_checkpoints,
    "kill -9 of the writer of the Delta table": delta_writer_killed,
}
