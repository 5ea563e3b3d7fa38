"""Faults that need their own stack: special brokers and small disks."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from schemas import topics
from tests.faults.brokers import AdvertisedBroker, BrokerCluster, LossyProxy
from tests.faults.environment import Environment
from tests.faults.report import Row
from tests.faults.under_load import audited_row, load

_SMALL_DISK = "192m"

Scenario = Callable[[str, Path, int], Row]
"""Injects a fault into its own stack. Takes the name of the fault, a directory and a seed."""


def acknowledgements_lost(name: str, directory: Path, seed: int) -> Row:
    """The broker receives writes, but acknowledgements are lost. Producers retry, and the broker must deduplicate."""
    environment = Environment(directory)
    port = int(environment.settings.kafka_bootstrap_servers.rpartition(":")[2])
    broker = AdvertisedBroker(directory, port, environment.stack.broker.process)
    environment.stack.broker = broker
    proxy = LossyProxy(port, broker.port)
    recoveries = []
    try:
        with environment:
            with load(environment, seed) as observations:
                for _ in range(5):
                    environment.until_written(topics.LOYALTY, 20)
                    before = proxy.dropped_bytes
                    proxy.drop_responses()
                    environment.until("a lost acknowledgement", lambda: proxy.dropped_bytes > before)  # noqa: B023
                    proxy.repair()
                    recoveries.append(environment.recovered())
            return audited_row(environment, name, observations, recoveries)
    finally:
        proxy.close()


def one_broker_of_three(name: str, directory: Path, seed: int) -> Row:
    """Kill and restart each of three brokers in turn, with three replicas and two in sync."""
    with BrokerCluster(directory) as cluster:
        environment = Environment(
            directory, kafka_bootstrap_servers=cluster.bootstrap_servers.split(",")[0], replication_factor=3
        )
        environment.use_brokers(cluster.bootstrap_servers, list(cluster.processes.values()))
        recoveries = []
        with environment:
            with load(environment, seed) as observations:
                for node, process in cluster.processes.items():
                    environment.until_written(topics.LOYALTY, 20)
                    process.kill()
                    recoveries.append(environment.recovered())
                    cluster.start(node)
            return audited_row(environment, name, observations, recoveries)


def one_driver_of_two(name: str, directory: Path, seed: int) -> Row:
    """Kill each of two Spark drivers. While one is down, the queries of the other must continue."""
    with Environment(directory, pipeline_drivers=2) as environment:
        (background,) = environment.stack.background
        recoveries = []
        with load(environment, seed) as observations:
            for killed, output in ((background, topics.LOYALTY), (environment.stack.pipeline, topics.HADOOP)):
                environment.until_written(topics.LOYALTY, 20)
                environment.halt(killed, orderly=False)
                environment.until_written(output, 40)
                environment.resume(killed)
                recoveries.append(environment.recovered())
        return audited_row(environment, name, observations, recoveries)


def disk_full(name: str, directory: Path, seed: int) -> Row:
    """Fill the disk of the checkpoints, the local stores and the broker in turn, and free it again."""
    if os.geteuid() != 0:
        return Row(name, 0, 0, 0, 0, evidence="not run: mounting small disks needs root")
    folders = [directory / each for each in ("checkpoints", "state", "kafka")]
    recoveries = []
    with small_disks(folders), Environment(directory) as environment:
        with load(environment, seed) as observations:
            for folder in folders:
                environment.until_written(topics.LOYALTY, 20)
                filler = folder / "filler"
                stopped_at = environment.written(topics.POS_INVOICES) or 0
                fill(filler)
                if folder.name == "kafka":
                    environment.until(
                        "the end of the broker process", lambda: environment.stack.broker.process.pid is None
                    )
                else:
                    environment.until("more invoices", lambda: _grown(environment, stopped_at, 200))  # noqa: B023
                filler.unlink()
                if environment.stack.broker.process.pid is None:
                    environment.stack.broker.start()
                recoveries.append(environment.recovered())
        return audited_row(environment, name, observations, recoveries)


def _grown(environment: Environment, since: int, by: int) -> bool:
    return (environment.written(topics.POS_INVOICES) or 0) >= since + by


@contextmanager
def small_disks(folders: Iterable[Path]) -> Iterator[None]:
    """Mount a small file system on each folder."""
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
    """Fill the disk completely."""
    with suppress(OSError), filler.open("wb", buffering=0) as full:
        while True:
            full.write(b"\0" * 65_536)
    with suppress(OSError), filler.open("ab", buffering=0) as full:
        while True:
            full.write(b"\0")


SCENARIOS: dict[str, Scenario] = {
    "acknowledgements lost on the way": acknowledgements_lost,
    "kill -9 of one broker of three": one_broker_of_three,
    "kill -9 of one Spark driver of two": one_driver_of_two,
    "disk full under checkpoint, state store, broker log": disk_full,
}
