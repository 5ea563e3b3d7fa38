"""Special brokers: a broker behind a proxy that loses responses, and a cluster of three."""

import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from infra.local import broker, jars
from infra.local.broker import LocalBroker
from infra.local.ports import HOST, free_port
from infra.local.processes import ManagedProcess

_BLOCK = 64 * 1024
_API_KEY, _PRODUCE = slice(4, 6), b"\0\0"
"""The position of the API key in a request, after its size, and the API key Produce (https://kafka.apache.org/protocol)."""

_HEAP = ("-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class LossyProxy:
    """Forwards bytes between clients and a broker, and can drop the responses.

    This simulates a network that fails in one direction: the broker stores a write, but the acknowledgement is lost.
    """

    def __init__(self, broker: str, port: int) -> None:
        self._to_port = int(broker.rpartition(":")[2])
        self._server = socket.create_server((HOST, port))
        self._dropping = threading.Event()
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.dropped_acknowledgements = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def drop_responses(self) -> None:
        self._dropping.set()

    def repair(self) -> None:
        """Forward responses again. Close all connections, because clients cannot continue after a lost response."""
        self._dropping.clear()
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _shut(end)

    def close(self) -> None:
        self._server.close()
        self.repair()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                server = socket.create_connection((HOST, self._to_port))
            except OSError:
                if self._server.fileno() < 0:
                    return
                continue
            with self._lock:
                self._pairs.append((client, server))
            writes = threading.Event()
            threading.Thread(target=self._pass_requests, args=(client, server, writes), daemon=True).start()
            threading.Thread(target=self._pass_responses, args=(server, client, writes), daemon=True).start()

    def _pass_requests(self, client: socket.socket, broker: socket.socket, writes: threading.Event) -> None:
        """Pass on requests. Sets ``writes`` while the last request of the connection is a write."""
        with _shut_at_the_end(client, broker):
            while block := client.recv(_BLOCK):
                if block[_API_KEY] == _PRODUCE:
                    writes.set()
                else:
                    writes.clear()
                broker.sendall(block)

    def _pass_responses(self, broker: socket.socket, client: socket.socket, writes: threading.Event) -> None:
        with _shut_at_the_end(broker, client):
            while block := broker.recv(_BLOCK):
                if not self._dropping.is_set():
                    client.sendall(block)
                elif writes.is_set():
                    self.dropped_acknowledgements += 1


@contextmanager
def _shut_at_the_end(*ends: socket.socket) -> Iterator[None]:
    try:
        yield
    except OSError:
        pass  # one end has closed the connection
    finally:
        for end in ends:
            _shut(end)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


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
        common = (jars.ROOT / "infra" / "kafka" / "server.properties").read_text(encoding="utf-8")
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
