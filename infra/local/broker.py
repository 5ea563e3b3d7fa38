"""A Kafka broker on this machine: one KRaft node that runs from jars, without Docker."""

import json
import os
import subprocess
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from infra.local import jars
from infra.local.folders import ROOT
from infra.local.java import find_java_home
from infra.local.ports import HOST, free_port
from infra.local.processes import ManagedProcess, ProcessFailedError
from infra.security.folder import SecurityFolder
from schemas.access import ADMIN
from services.messaging.clients import connection
from services.settings import Settings

_CONFIGURATION = ROOT / "infra" / "kafka"
# With only the first compiler of the JVM, a start takes half the time. A small heap leaves memory for Spark.
_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOCALE = {"LC_ALL": "C.UTF-8"}
"""Without a UTF-8 locale, Java cannot open a file whose path has a letter that is not ASCII."""

_START_TIMEOUT = 240.0


class LocalBroker:
    """A broker with its data in a directory. A broker that starts on the same directory has the same data.

    Attributes:
        port: the port for clients. It is the same after a restart of this object.
        process: tests kill it.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        process: ManagedProcess | None = None,
        security: SecurityFolder | None = None,
    ) -> None:
        self.port = port or free_port()
        self.process = process or ManagedProcess("kafka", directory / "run", directory / "log")
        self._directory = directory.resolve() / "kafka"
        self._data = self._directory / "data"
        self._meta_properties = self._data / "meta.properties"
        self._security = security

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def admin_settings(self) -> Settings:
        """The settings of the super user."""
        settings = Settings(kafka_bootstrap_servers=self.bootstrap_servers, kafka_security_protocol="PLAINTEXT")
        return self._security.settings_of(ADMIN, settings) if self._security else settings

    def start(self) -> None:
        """Start the broker and wait until it responds. Raises ProcessFailedError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties()
        if not self._meta_properties.exists():
            self._format(properties)
        logging = f"-Dlog4j2.configurationFile={_CONFIGURATION / 'log4j2.xml'}"
        command = [*_java(), *_JVM_OPTIONS, logging, "kafka.Kafka", str(properties)]
        # At first the broker does not respond. The client must not log this.
        quick_and_silent = {"reconnect.backoff.max.ms": 200, "log_level": 0}
        client = AdminClient({**connection(self.admin_settings), **quick_and_silent})
        self.process.start(command, _LOCALE, self._directory, lambda: self._answers(client), _START_TIMEOUT)

    def stop(self) -> None:
        """Stop the broker with SIGTERM. After such a stop, the next start does not have to check the logs."""
        self.process.stop()

    def _answers(self, client: AdminClient) -> bool:
        try:
            metadata = client.list_topics(timeout=1)
        except KafkaException:
            return False
        # If another broker uses the port, it responds until this broker ends because the port is taken.
        own = f"cluster.id={metadata.cluster_id}" in self._meta_properties.read_text(encoding="utf-8").split()
        return own and len(metadata.brokers) == 1

    def _write_properties(self) -> Path:
        controller = f"{HOST}:{free_port()}"
        advertised = f"PLAINTEXT://{self.bootstrap_servers}"
        common = (_CONFIGURATION / "server.properties").read_text(encoding="utf-8")
        files: dict[str, str] = {}
        if self._security:
            advertised = f"SASL_SSL://{self.bootstrap_servers},BROKER://{HOST}:{free_port()}"
            common += (_CONFIGURATION / "secured.properties").read_text(encoding="utf-8")
            files = {
                "ssl.keystore.location": str(self._security.broker),
                "ssl.truststore.location": str(self._security.authority),
            }
        addresses = files | {
            "listeners": f"{advertised},CONTROLLER://{controller}",
            "advertised.listeners": advertised,
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self._data),
        }
        properties = self._directory / "server.properties"
        # Java reads properties as ISO-8859-1 with escapes. JSON escapes paths in the same way.
        lines = "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in addresses.items())
        properties.write_text(common + lines, encoding="utf-8")
        return properties

    def _format(self, properties: Path) -> None:
        command = [*_java(), "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        command += ["--cluster-id", uuid.uuid4().hex[:22], "--config", str(properties)]
        if self._security:
            # The super user creates the other users after the first start.
            password = self._security.password(ADMIN).read_text(encoding="utf-8")
            command += ["--add-scram", f"SCRAM-SHA-512=[name={ADMIN},password={password}]"]
        run = subprocess.run(command, env=os.environ | _LOCALE, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise ProcessFailedError(f"Kafka could not format {self._data}:\n{run.stdout}{run.stderr}".rstrip())


def _java() -> list[str]:
    return [str(find_java_home() / "bin" / "java"), "-cp", jars.class_path("kafka")]
