"""Changes around a running stack: a new partition, wrong clocks, a read-only disk, another export format."""

import random
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.cimpl import NewPartitions

from schemas import topics
from services.messaging.clients import admin
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from tests.faults.environment import Environment
from tests.faults.infrastructure import small_disks
from tests.faults.refusals import refused
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.faults.under_load import audited_row, load
from tests.support.kafka import producer_of, publish_invoices

_MS_PER_YEAR = 365 * 24 * 3_600_000
_WRONG_YEARS = (-40, -10, -1, 1, 10, 100)
_OTHER_SEED = 5_000


def wrong_clocks(name: str, environment: Environment, seed: int) -> Row:
    """Publish invoices of tills whose clocks are years slow or fast, among correct ones."""
    rng = random.Random(seed)
    invoices = _other_invoices(environment.settings, seed)
    for each in invoices:
        each["CreatedTime"] += rng.choice(_WRONG_YEARS) * _MS_PER_YEAR
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY)
        publish_invoices(environment.settings, *invoices)
        recovery = environment.recovered()
    return audited_row(environment, name, observations, recovery, f"{len(invoices)} invoices with a wrong time")


def _other_invoices(settings: Settings, seed: int) -> list[dict[str, Any]]:
    """Invoices that the tills of the load do not publish."""
    messages = Simulation(Options(300, seed + _OTHER_SEED, customers=200), schema_ids(settings)).messages()
    return [dict(message.invoice) for message in messages if message.invoice]


def partition_added(name: str, environment: Environment, seed: int) -> Row:
    """Add a partition to pos-invoices. Stores then move to other partitions, and their invoices lose their order."""
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        _add_partition(environment)
        # A new producer knows the new partition at once.
        producer_of.cache_clear()
        publish_invoices(environment.settings, *_other_invoices(environment.settings, seed))
        recovery = environment.recovered()
    added, records = max(environment.ends(topics.POS_INVOICES).items())
    row = audited_row(environment, name, observations, recovery, f"{records} records in partition {added}")
    return replace(row, wrong_answers=row.wrong_answers + (not records))


def _add_partition(environment: Environment) -> None:
    topic, settings = topics.POS_INVOICES, environment.settings
    wanted = [NewPartitions(settings.name_of(topic), len(environment.ends(topic)) + 1)]
    client = admin(settings)
    for future in client.create_partitions(wanted).values():
        future.result()


def read_only_checkpoints(name: str, environment: Environment, seed: int) -> Row:
    """Start the pipeline while the disk of its checkpoints is read-only. It must refuse, and later continue."""
    folder, pipeline = Path(environment.settings.checkpoint_dir), environment.stack.pipeline
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        environment.halt(pipeline)
        _remount(folder, "ro")
        refusal = refused(environment.settings)
        _remount(folder, "rw")
        environment.resume(pipeline)
        recovery = environment.recovered()
    row = audited_row(environment, name, observations, recovery, f"refused: {refusal}")
    return replace(row, wrong_answers=row.wrong_answers + (not refusal))


def _remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def delta_writer_killed(name: str, environment: Environment, seed: int) -> Row:
    """Kill the pipeline that writes the export as a Delta table."""
    with load(environment, seed) as observations:
        environment.until_written(topics.HADOOP, 20)
        environment.restart(environment.stack.pipeline)
        recovery = environment.recovered()
    return audited_row(environment, name, observations, recovery)


SCENARIOS: dict[str, Scenario[Environment]] = {
    "tills whose clocks are years slow or fast": Scenario(wrong_clocks),
    # A separate stack, because other faults need the usual number of partitions. Few injections, because each new
    # partition is one more task in each micro-batch.
    "a partition added to pos-invoices": Scenario(partition_added, partial(Environment), most=5),
    "checkpoints on a read-only disk": Scenario(
        read_only_checkpoints, partial(small_disks, ["checkpoints"]), most=6, needs_root=True
    ),
    "kill -9 of the writer of the Delta table": Scenario(
        delta_writer_killed, partial(Environment, export_format="delta")
    ),
}
