"""The whole stack on one machine: Kafka, the pipeline, API instances, the ledger and the webhooks as processes."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from infra.docker.healthy import is_healthy
from infra.local import jars
from infra.local.broker import LocalBroker
from infra.local.java import find_java_home
from infra.local.ports import HOST, api_url_of, free_port, url_of
from infra.local.processes import ManagedProcess, ProcessFailedError, locked
from services.api_keys.keys import Scope, new_key
from services.api_keys.topic import keep_key
from services.clock import now
from services.errors import SettingsError
from services.messaging.administration import create_topics
from services.settings import Settings
from services.start_up import StartUpError, require_port

_START_TIMEOUT = 600.0
_STOP_MARGIN = 30.0
"""Seconds that Spark itself needs to end, after ``stop_timeout``."""

BACKGROUND_QUERIES = ("fan-out", "sales", "export", "archive")
"""The queries of the second driver. The readers of their outputs can wait for some seconds."""

_BACKGROUND = "background"
_BACKGROUND_NICENESS = 10
"""Linux gives a process with this niceness about a tenth of the time of a normal process, and all idle time."""


def private_settings(directory: Path, **changes: object) -> Settings:
    """Settings of a stack with free ports, one Spark driver, and all data in one directory."""
    private = {
        "kafka_bootstrap_servers": f"{HOST}:{free_port()}",
        "metrics_port": free_port(),
        "api_port": free_port(),
        "pipeline_drivers": 1,
        "background_metrics_port": free_port(),
        "ledger_metrics_port": free_port(),
        "webhooks_metrics_port": free_port(),
        "checkpoint_dir": str(directory / "checkpoints"),
        "export_dir": str(directory / "parquet"),
        "archive_dir": str(directory / "archive"),
        "tables_dir": str(directory / "tables"),
        "state_dir": directory / "state",
        "ledger_url": f"sqlite:///{directory.resolve() / 'ledger.sqlite'}",
        "pseudonym_key_file": directory.resolve() / "pseudonym.key",
        "webhooks_file": directory.resolve() / "webhooks.yaml",
        "spark_jars_dir": jars.folder("spark"),
    }
    return Settings(**{**private, **changes})  # type: ignore[arg-type]


def variables_of(settings: Settings) -> dict[str, str]:
    """The LOYALTY_ variables of the settings that are set. The processes use the defaults of all others."""
    values = settings.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    values |= {name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {f"LOYALTY_{name.upper()}": text for name, text in texts.items()}


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment of a child process with these settings and Java."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOYALTY_")}
    return inherited | variables_of(settings) | {"JAVA_HOME": str(find_java_home()), "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Service:
    """A part of the stack that runs as a Python module.

    Attributes:
        url: the URL of its API, or of its metrics and health.
        variable: the variable of the port in this URL.
        arguments: the command-line arguments.
    """

    module: str
    settings: Settings
    process: ManagedProcess
    url: str
    variable: str
    arguments: Sequence[str] = ()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def start(self, is_ready: Callable[[], bool] | None = None) -> None:
        """Start the process and wait until it is ready, by default until /readyz says so. Raises ProcessFailedError."""
        is_ready = is_ready or (lambda: is_healthy(f"{self.url}/readyz"))
        command = [sys.executable, "-m", self.module, *self.arguments]
        self.process.start(command, environment_of(self.settings), Path.cwd(), is_ready, _START_TIMEOUT)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        """Send SIGKILL, for tests."""
        self.process.kill()


class LocalStack:
    """Kafka, the pipeline, API instances, the ledger and the webhooks.

    A stack that starts on the same directory continues with the same data.

    Attributes:
        directory: contains the pid files, the logs and the data of Kafka. The settings name all other folders.
        settings: the settings of the pipeline and of the first API instance. Each other instance has its own port and
            state folder.
        readers: the ledger, and the webhooks if their file exists. A stack without an API has no readers.
        background: the second driver, if the settings have two. It runs all queries except the loyalty query.
    """

    def __init__(self, directory: Path, settings: Settings, api_instances: int = 1) -> None:
        self.directory = directory.resolve()
        self.settings = settings
        self.broker = LocalBroker(self.directory, _local_port(settings), self._process("kafka"))
        self.pipeline = self._pipeline()
        self.apis = [self._api(number) for number in range(1, api_instances + 1)]
        self.readers = list(self._readers()) if api_instances else []
        self.background = [self._background()] if settings.pipeline_drivers > 1 else []

    @property
    def services(self) -> list[Service]:
        """All parts except the broker, in the order of their start."""
        return [self.pipeline, *self.apis, *self.readers, *self.background]

    @property
    def processes(self) -> list[ManagedProcess]:
        """All parts, in the order of their start."""
        return [self.broker.process, *(service.process for service in self.services)]

    def start(
        self, on_part: Callable[[str], None] = lambda name: None, services: Sequence[Service] | None = None
    ) -> None:
        """Start the parts that do not run, each one after the parts that it needs. Calls ``on_part`` with each name.

        If a part fails, this call stops the parts that it has started. A concurrent call waits for the end of this one.

        Args:
            services: the parts to start beside Kafka; None for all.

        Raises:
            StartUpError: another program uses a port, or a part runs with another topic prefix. No part was started.
            ProcessFailedError: a part failed. The message has the last lines of its log.
        """
        with locked(self.directory / "run" / "start.lock"):
            self._check_ports()
            wanted = self.services if services is None else services
            for each in wanted:
                self._check_prefix(each.process)
            self._start([self.broker, *wanted], on_part)

    def _start(self, parts: Sequence[LocalBroker | Service], on_part: Callable[[str], None]) -> None:
        started: list[ManagedProcess] = []
        try:
            for part in parts:
                if part.process.pid is None:
                    on_part(part.process.name)
                    part.start()  # after an error it does not run
                    started.append(part.process)
                if part is self.broker:
                    create_topics(self.settings)
        except BaseException:
            for process in reversed(started):
                process.stop()
            raise

    @property
    def key_file(self) -> Path:
        """The file with an API key of this machine, which has all scopes."""
        return self.directory / "api.key"

    def ensure_key(self) -> None:
        """Create the key, unless the file has a valid one. Raises OSError and PublishError."""
        valid_for = timedelta(days=365) // timedelta(milliseconds=1)
        made = new_key("this machine", [*Scope], [], now(), valid_for)
        keep_key(made, self.key_file, self.settings)

    def stop(self, on_part: Callable[[ManagedProcess], None] = lambda process: None) -> None:
        """Stop all parts in reverse order, including those of other commands. Calls ``on_part`` with each of them."""
        running = {file.stem for file in (self.directory / "run").glob("*.pid")}
        others = running - {process.name for process in self.processes}
        for process in [*map(self._other, sorted(others)), *reversed(self.processes)]:
            if process.pid is not None:
                on_part(process)
            process.stop()

    def _other(self, name: str) -> ManagedProcess:
        """A running part that these settings would not start."""
        return self._driver(name) if name == _BACKGROUND else self._process(name)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def till_settings(self) -> Settings:
        """The settings of a till. The local broker has no users."""
        return self.settings

    @property
    def metrics_url(self) -> str:
        return f"{self.pipeline.url}/metrics"

    @property
    def api_url(self) -> str:
        """URL of the first API instance."""
        return self.apis[0].url

    def check(self) -> None:
        """Raise ProcessFailedError if a part has ended."""
        for process in self.processes:
            if process.pid is None:
                raise ProcessFailedError(f"{process.name} has ended. {process.last_lines()}")

    def last_lines(self) -> str:
        """The last log lines of all parts except Kafka."""
        return "\n".join(process.last_lines() for process in self.processes[1:])

    def exported(self) -> Settings:
        """The settings with which this machine reads the exported files."""
        return self.settings

    def _pipeline(self) -> Service:
        url = url_of(self.settings.metrics_host, self.settings.metrics_port)
        queries = _queries("loyalty") if self.settings.pipeline_drivers > 1 else ()
        return Service("pipelines", self.settings, self._driver("pipeline"), url, "LOYALTY_METRICS_PORT", queries)

    def _background(self) -> Service:
        port = self.settings.background_metrics_port
        settings = self.settings.model_copy(update={"metrics_port": port})
        process = self._driver(_BACKGROUND, _BACKGROUND_NICENESS)
        url = url_of(settings.metrics_host, port)
        queries = _queries(*BACKGROUND_QUERIES)
        return Service("pipelines", settings, process, url, "LOYALTY_BACKGROUND_METRICS_PORT", queries)

    def _driver(self, name: str, niceness: int = 0) -> ManagedProcess:
        return self._process(name, self.settings.stop_timeout.total_seconds() + _STOP_MARGIN, niceness)

    def _api(self, number: int) -> Service:
        # RocksDB allows one process for each folder.
        folder = self.settings.state_dir.resolve() / f"api-{number}"
        port = self.settings.api_port if number == 1 else free_port()
        settings = self.settings.model_copy(update={"state_dir": folder, "api_port": port})
        return Service("api", settings, self._process(f"api-{number}"), api_url_of(settings), "LOYALTY_API_PORT")

    def _readers(self) -> Iterator[Service]:
        url = url_of(self.settings.metrics_host, self.settings.ledger_metrics_port)
        yield Service("services.ledger", self.settings, self._process("ledger"), url, "LOYALTY_LEDGER_METRICS_PORT")
        if self.settings.webhooks_file.exists():
            url = url_of(self.settings.metrics_host, self.settings.webhooks_metrics_port)
            process = self._process("webhooks")
            yield Service("services.webhooks", self.settings, process, url, "LOYALTY_WEBHOOKS_METRICS_PORT")

    def _process(self, name: str, stop_timeout: float = 30.0, niceness: int = 0) -> ManagedProcess:
        return ManagedProcess(name, self.directory / "run", self.directory / "log", stop_timeout, niceness)

    def _check_prefix(self, process: ManagedProcess) -> None:
        """Raise StartUpError if a part runs for other topics. Its API knows no key of the topics of these settings."""
        prefix = process.environment.get("LOYALTY_TOPIC_PREFIX", "")
        if process.pid is not None and prefix != self.settings.topic_prefix:
            raise StartUpError(
                f'{process.name} runs with the LOYALTY_TOPIC_PREFIX "{prefix}", and the settings say '
                f'"{self.settings.topic_prefix}": set the same prefix, or stop the stack first'
            )

    def _check_ports(self) -> None:
        if self.broker.process.pid is None:
            require_port(HOST, self.broker.port, "LOYALTY_KAFKA_BOOTSTRAP_SERVERS")
        for each in self.services:
            if each.process.pid is None:
                host = self.settings.api_host if each in self.apis else self.settings.metrics_host
                require_port(host, each.port, each.variable)


def _queries(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--query", name))


def _local_port(settings: Settings) -> int:
    if settings.kafka_security_protocol != "PLAINTEXT":
        raise SettingsError(
            f"LOYALTY_KAFKA_SECURITY_PROTOCOL is {settings.kafka_security_protocol}, but `loyalty up` starts its own "
            "Kafka without security: unset LOYALTY_KAFKA_SECURITY_PROTOCOL"
        )
    host, _, port = settings.kafka_bootstrap_servers.rpartition(":")
    if host not in (HOST, "localhost") or not port.isdigit():
        raise SettingsError(
            f"LOYALTY_KAFKA_BOOTSTRAP_SERVERS is {settings.kafka_bootstrap_servers}, but `loyalty up` starts its own "
            f"Kafka: set {HOST}:PORT"
        )
    return int(port)
