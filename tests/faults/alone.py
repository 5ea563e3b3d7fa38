"""Faults with a stack of their own, each mended the way docs/reliability.md says, and audited at the end."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from confluent_kafka import TopicPartition

from infra.local.ports import free_port
from schemas import topics
from services.messaging.clients import admin, producer
from services.settings import Settings
from tests.faults import poison
from tests.faults.brokers import AdvertisedBroker, BrokerCluster, LossyProxy
from tests.faults.environment import REFUSED, Environment, last_error, run_module
from tests.faults.load import Tills
from tests.faults.report import Row
from tests.faults.under_load import RATE, judged, load

_SMALL_DISK = "192m"
_FUZZED = 3_000


Scenario = Callable[[str, Path, int], Row]
"""Injects a fault into a stack of its own; takes its name, a directory and a seed."""


def acknowledgements_lost(name: str, directory: Path, seed: int) -> Row:
    """Writes get through, their acknowledgements do not: producers send again, and the broker must know them."""
    environment = Environment(directory)
    port = int(environment.settings.kafka_bootstrap_servers.rpartition(":")[2])
    broker = AdvertisedBroker(directory, port, environment.stack.broker.process)
    environment.stack.broker = broker
    proxy = LossyProxy(port, broker.port)
    recoveries = []
    try:
        with environment:
            with load(environment, seed) as told:
                for _ in range(5):
                    environment.until_written(topics.LOYALTY, 20)
                    before = proxy.lost_bytes
                    proxy.lose_answers()
                    environment.until("answers that are lost", lambda: proxy.lost_bytes > before)  # noqa: B023
                    proxy.mend()
                    recoveries.append(environment.recovered())
            return judged(environment, name, told, recoveries)
    finally:
        proxy.close()


def one_broker_of_three(name: str, directory: Path, seed: int) -> Row:
    """Three replicas, two in sync: one broker may go at any time, and come back, each in its turn."""
    with BrokerCluster(directory) as cluster:
        environment = Environment(
            directory, kafka_bootstrap_servers=cluster.bootstrap_servers.split(",")[0], replication_factor=3
        )
        environment.use_brokers(cluster.bootstrap_servers, list(cluster.processes.values()))
        recoveries = []
        with environment:
            with load(environment, seed) as told:
                for node, process in cluster.processes.items():
                    environment.until_written(topics.LOYALTY, 20)
                    process.kill()
                    recoveries.append(environment.recovered())
                    cluster.start(node)
            return judged(environment, name, told, recoveries)


def disk_full(name: str, directory: Path, seed: int) -> Row:
    """The disk under checkpoints, local stores or the broker's log is full; later there is space again."""
    if os.geteuid() != 0:
        return Row(name, 0, 0, 0, 0, evidence="not run: mounting small disks needs root")
    folders = [directory / each for each in ("checkpoints", "state", "kafka")]
    recoveries = []
    with small_disks(folders), Environment(directory) as environment:
        with load(environment, seed) as told:
            for folder in folders:
                environment.until_written(topics.LOYALTY, 20)
                filler = folder / "filler"
                stopped_at = environment.written(topics.POS_INVOICES) or 0
                fill(filler)
                if folder.name == "kafka":
                    environment.until("a broker that gives up", lambda: environment.stack.broker.process.pid is None)
                else:
                    environment.until("more invoices", lambda: _grown(environment, stopped_at, 200))  # noqa: B023
                filler.unlink()
                if environment.stack.broker.process.pid is None:
                    environment.stack.broker.start()
                recoveries.append(environment.recovered())
        return judged(environment, name, told, recoveries)


def _grown(environment: Environment, since: int, by: int) -> bool:
    return (environment.written(topics.POS_INVOICES) or 0) >= since + by


@contextmanager
def small_disks(folders: Iterable[Path]) -> Iterator[None]:
    """A small file system of its own under each folder."""
    mounted = []
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", str(folder)], check=True)
            mounted.append(folder)
        yield
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(filler: Path) -> None:
    """Leave not a byte of the disk."""
    with suppress(OSError), filler.open("wb", buffering=0) as full:
        while True:
            full.write(b"\0" * 65_536)
    with suppress(OSError), filler.open("ab", buffering=0) as full:
        while True:
            full.write(b"\0")


def poisoned(name: str, directory: Path, seed: int) -> Row:
    """Every kind of bad message among good ones, and a few thousand that chance has damaged."""
    with Environment(directory, api_instances=1) as environment:
        with load(environment, seed) as told:
            environment.until_written(topics.LOYALTY)
            clear = environment.recovered()
            publish(environment.settings, poison.messages(seed))
            publish(environment.settings, poison.fuzzed(seed, _FUZZED))
            poisoned = environment.recovered()
        before = f"a balance took {clear:.1f} s before"
        return judged(environment, name, told, [poisoned], before)


def publish(settings: Settings, messages: Iterable[poison.Message]) -> None:
    client = producer(settings, "faults-poison")
    for key, value in messages:
        client.produce(settings.name_of(topics.POS_INVOICES), value, key)
        client.poll(0)
    if client.flush(60):
        raise RuntimeError("the broker did not take the poison")


def overtaken_by_retention(name: str, directory: Path, seed: int) -> Row:
    """Records are deleted before a stopped pipeline has read them: it refuses, says which, and goes on when told to."""
    with Environment(directory, api_instances=1) as environment:
        pipeline = environment.stack.pipeline
        with load(environment, seed):
            environment.until_written(topics.LOYALTY, 20)
        environment.settle()
        environment.halt(pipeline)
        with Tills(environment.stack, seed + 1, RATE):
            environment.until_written(topics.POS_INVOICES, 100)
        delete_to_the_end(environment)
        refusal = refused(environment.settings)
        accepting = environment.settings.model_copy(update={"accept_data_loss": True})
        status = run_module("pipelines", accepting, "--available-now").returncode
        environment.resume(pipeline)
        recovery = environment.recovered()
    told = "retention has deleted" in refusal and status == 0
    seen = f"refused: {refusal}; told to go on: exit status {status}"
    return Row(name, 1, 0, 0, int(not told), recovery_seconds=round(recovery, 1), evidence=seen)


def delete_to_the_end(environment: Environment) -> None:
    name = environment.settings.name_of(topics.POS_INVOICES)
    ends = environment.ends(topics.POS_INVOICES)
    client = admin(environment.settings)
    for future in client.delete_records([TopicPartition(name, *each) for each in ends.items()]).values():
        future.result()


def refused(settings: Settings, **changes: str) -> str:
    """What a second pipeline says before it ends with status 2; empty if it did anything else."""
    run = run_module("pipelines", settings, "--available-now", LOYALTY_METRICS_PORT=str(free_port()), **changes)
    return last_error(run) if run.returncode == REFUSED else ""


def second_pipeline(name: str, directory: Path, seed: int) -> Row:
    """A second pipeline on the same checkpoints, and settings that the checkpoints cannot bear: each refuses."""
    with Environment(directory, api_instances=1) as environment:
        with load(environment, seed) as told:
            environment.until_written(topics.LOYALTY, 20)
            second = refused(environment.settings)
            changed = refused(environment.settings, LOYALTY_SHUFFLE_PARTITIONS="5")
            broken = refused(environment.settings, LOYALTY_TRIGGER_INTERVAL="soon")
            recovery = environment.recovered()
        answers = [second, changed, broken]
        row = judged(environment, name, told, [recovery] * len(answers), f"refused: {' | '.join(answers)}")
    return replace(row, wrong_answers=row.wrong_answers + answers.count(""))


SCENARIOS: dict[str, Scenario] = {
    "acknowledgements lost on the way": acknowledgements_lost,
    "kill -9 of one broker of three": one_broker_of_three,
    "disk full under checkpoint, state store, broker log": disk_full,
    f"poison, and {_FUZZED:,} damaged messages": poisoned,
    "retention overtakes a stopped pipeline": overtaken_by_retention,
    "a second pipeline, changed and broken settings": second_pipeline,
}
