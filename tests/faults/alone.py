"""Faults that need a stack of their own: other brokers than one's own, small disks."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from schemas import topics
from tests.faults.brokers import AdvertisedBroker, BrokerCluster, LossyProxy
from tests.faults.environment import Environment
from tests.faults.report import Row
from tests.faults.under_load import judged, load

_SMALL_DISK = "192m"

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


SCENARIOS: dict[str, Scenario] = {
    "acknowledgements lost on the way": acknowledgements_lost,
    "kill -9 of one broker of three": one_broker_of_three,
    "disk full under checkpoint, state store, broker log": disk_full,
}
