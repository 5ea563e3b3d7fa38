"""Faults of brokers, drivers and disks. Each of them needs a special stack."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from schemas import topics
from tests.faults.brokers import AdvertisedBroker, BrokerCluster
from tests.faults.environment import Environment, paused
from tests.faults.report import Row
from tests.faults.scenario import Scenario, in_turn
from tests.faults.under_load import audited_row, load
from tests.support.failing_disk import fill, small_disk
from tests.support.kafka_proxy import KafkaProxy

_SMALL_DISK = "192m"
_HIDDEN_ANSWERS = 100

_PRODUCERS = ("faults-tills", "loyalty-api-commands", "producer-")
"""The first letters of the client ids of the tills, of the API's producer of commands, and of Spark's producer."""


class BehindAProxy(Environment):
    """A stack whose clients reach the broker through a proxy."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        port = int(self.settings.kafka_bootstrap_servers.rpartition(":")[2])
        broker = AdvertisedBroker(directory, port, self.stack.broker.process)
        self.stack.broker = broker
        self.proxy = KafkaProxy(broker.bootstrap_servers, port)

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            self.proxy.close()


def acknowledgements_lost(name: str, environment: BehindAProxy, seed: int) -> Row:
    """The broker stores writes of each producer, but acknowledgements are lost. It must drop the records sent again."""
    proxy = environment.proxy
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        proxy.lost.clear()
        with proxy.losing():
            environment.until(f"a lost acknowledgement for each of {_PRODUCERS}", lambda: _each_has_lost(proxy))
        recovery = environment.recovered()
    lost = ", ".join(f"{client} {count}" for client, count in sorted(proxy.lost.items()))
    return audited_row(environment, name, observations, recovery, f"lost acknowledgements: {lost}")


def _each_has_lost(proxy: KafkaProxy) -> bool:
    return all(any(client.startswith(producer) for client in [*proxy.lost]) for producer in _PRODUCERS)


def brokers_hidden(name: str, environment: BehindAProxy, seed: int) -> Row:
    """Responses name no brokers, as those of a stopping broker can do. Some Kafka clients then never connect again."""
    proxy = environment.proxy
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        before = proxy.hidden
        with proxy.hiding():
            proxy.disconnect()
            environment.until("answers without brokers", lambda: proxy.hidden >= before + _HIDDEN_ANSWERS)
        recovery = environment.recovered()
    return audited_row(environment, name, observations, recovery)


class WithThreeBrokers(Environment):
    """A stack with three brokers. Each record has three replicas, and a write needs two in-sync replicas."""

    def __init__(self, directory: Path, cluster: BrokerCluster) -> None:
        first = cluster.bootstrap_servers.split(",")[0]
        super().__init__(directory, kafka_bootstrap_servers=first, replication_factor=3)
        self.use_brokers(cluster.bootstrap_servers, list(cluster.processes.values()))
        self.cluster = cluster


@contextmanager
def three_brokers(directory: Path) -> Iterator[WithThreeBrokers]:
    with BrokerCluster(directory) as cluster, WithThreeBrokers(directory, cluster) as environment:
        yield environment


def one_broker_of_three(name: str, environment: WithThreeBrokers, seed: int) -> Row:
    """Kill one of three brokers, and start it again after the recovery."""
    cluster = environment.cluster
    node = in_turn([*cluster.processes], seed)
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        cluster.processes[node].kill()
        recovery = environment.recovered()
        cluster.start(node)
    return audited_row(environment, name, observations, recovery, f"broker {node}")


def one_hung_broker_of_three(name: str, environment: WithThreeBrokers, seed: int) -> Row:
    """Pause one of three brokers until new invoices are served. It keeps its connections, and does not answer."""
    node = in_turn([*environment.cluster.processes], seed)
    process = environment.cluster.processes[node]
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        with paused(process.pid or 0):
            recovery = environment.recovered()
    return audited_row(environment, name, observations, recovery, f"broker {node}")


def one_driver_of_two(name: str, environment: Environment, seed: int) -> Row:
    """Kill one of two Spark drivers. While it is down, the queries of the other driver must continue."""
    (background,) = environment.stack.background
    killed, output = in_turn([(background, topics.LOYALTY), (environment.stack.pipeline, topics.HADOOP)], seed)
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        environment.halt(killed, orderly=False)
        environment.until_written(output, 40)
        environment.resume(killed)
        recovery = environment.recovered()
    return audited_row(environment, name, observations, recovery, f"{killed.process.name} killed")


_DISKS = ("checkpoints", "state", "kafka")


def disk_full(name: str, environment: Environment, seed: int) -> Row:
    """Fill the disk of the checkpoints, the local stores or the broker, and free it again."""
    folder, broker = environment.directory / in_turn(_DISKS, seed), environment.stack.broker
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        filler = folder / "filler"
        stopped_at = environment.written(topics.POS_INVOICES) or 0
        fill(filler)
        if folder.name == "kafka":
            environment.until("the end of the broker process", lambda: broker.process.pid is None)
        else:
            environment.until("more invoices", lambda: _grown(environment, stopped_at, 200))
        filler.unlink()
        if broker.process.pid is None:
            broker.start()
        recovery = environment.recovered()
    return audited_row(environment, name, observations, recovery, f"disk of {folder.name}")


def _grown(environment: Environment, since: int, by: int) -> bool:
    return (environment.written(topics.POS_INVOICES) or 0) >= since + by


@contextmanager
def small_disks(names: Iterable[str], directory: Path) -> Iterator[Environment]:
    """A stack with a small file system mounted on each of these folders of its directory."""
    with ExitStack() as disks:
        for name in names:
            disks.enter_context(small_disk(directory / name, _SMALL_DISK))
        with Environment(directory) as environment:
            yield environment


SCENARIOS: dict[str, Scenario[Any]] = {
    "acknowledgements lost on the way": Scenario(acknowledgements_lost, BehindAProxy),
    "a stopping broker names no brokers": Scenario(brokers_hidden, BehindAProxy),
    "kill -9 of one broker of three": Scenario(one_broker_of_three, three_brokers),
    "SIGSTOP of one broker of three": Scenario(one_hung_broker_of_three, three_brokers),
    "kill -9 of one Spark driver of two": Scenario(one_driver_of_two, partial(Environment, pipeline_drivers=2)),
    # Few injections, because the disks are small.
    "disk full under checkpoint, state store, broker log": Scenario(
        disk_full, partial(small_disks, _DISKS), most=6, needs_root=True
    ),
}
