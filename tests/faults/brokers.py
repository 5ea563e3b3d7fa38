"""Special brokers: a broker that advertises another port, and a cluster of three."""

import subprocess
import uuid
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from infra.local import broker
from infra.local.broker import LocalBroker
from infra.local.folders import ROOT
from infra.local.ports import HOST, free_port
from infra.local.processes import ManagedProcess

_HEAP = ("-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class AdvertisedBroker(LocalBroker):
    """A broker that advertises a different port than its own."""

    def __init__(self, directory: Path, advertised_port: int, process: ManagedProcess) -> None:
        super().__init__(directory, process=process)
        self._advertised_port = advertised_port

    def _write_properties(self) -> Path:
        properties = super()._write_properties()
        with properties.open("a", encoding="utf-8") as lines:
            lines.write(f"advertised.listeners=PLAINTEXT://{HOST}:{self._advertised_port}\n")
        return properties


class BrokerCluster:
    """Three brokers that are also controllers. Topics have three replicas, and a write needs two."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._ports = {node: (free_port(), free_port()) for node in (1, 2, 3)}
        self._id = uuid.uuid4().hex[:22]
        self.processes = {
            node: ManagedProcess(f"kafka-{node}", directory / "run", directory / "log") for node in self._ports
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port, _ in self._ports.values())

    def __enter__(self) -> Self:
        for node in self._ports:
            self._format(node)
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        for node in self._ports:
            self.start(node, wait=False)  # a single controller cannot elect a leader, so start all of them first
        self.processes[3]._wait_until(lambda: _brokers(client) == len(self._ports), 240)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()

    def start(self, node: int, *, wait: bool = True) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        command = [*broker._java(), *_HEAP, "kafka.Kafka", str(self._properties(node))]
        before = _brokers(client) if wait else 0
        folder = self._directory / f"kafka-{node}"
        self.processes[node].start(command, {}, folder, lambda: not wait or _brokers(client) > before, 240)

    def _properties(self, node: int) -> Path:
        port, controller = self._ports[node]
        voters = ",".join(f"{each}@{HOST}:{ports[1]}" for each, ports in self._ports.items())
        lines = {
            "node.id": node,
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "controller.quorum.voters": voters,
            "log.dirs": self._directory / f"kafka-{node}" / "data",
            "offsets.topic.replication.factor": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 2,
            "metadata.max.idle.interval.ms": 500,  # the default
        }
        common = (ROOT / "infra" / "kafka" / "server.properties").read_text(encoding="utf-8")
        properties = self._directory / f"kafka-{node}" / "server.properties"
        properties.parent.mkdir(parents=True, exist_ok=True)
        properties.write_text(common + "".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        return properties

    def _format(self, node: int) -> None:
        tool = [*broker._java(), "kafka.tools.StorageTool", "format"]
        command = [*tool, "--cluster-id", self._id, "--config", str(self._properties(node))]
        subprocess.run(command, capture_output=True, check=True)


def _brokers(client: AdminClient) -> int:
    try:
        return len(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return 0
