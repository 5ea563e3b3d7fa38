"""The whole stack in containers, as the demo and the tests start it: ports, names and data of its own."""

import shutil
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from infra.containers.project import COMPOSE_FILE, SECURED_FILE, ComposeProject, Container, engine, last_lines
from infra.docker.healthy import is_healthy
from infra.local.ports import HOST, free_port
from infra.local.processes import ProcessFailedError
from infra.local.stack import variables_of
from infra.security.broker import BrokerSecurity
from services.settings import Settings

PARTS = ("kafka", "postgres", "pipeline", "ledger", "api")
"""The services that run for as long as the stack does; those of a profile are checked by whoever asks for it."""

_START_TIMEOUT = 900.0
_LOOK_SECONDS = 0.5
_METRICS_PORT, _API_PORT = 9108, 8080
_PARQUET = "/data/parquet"


class ContainerStack:
    """Kafka, PostgreSQL, the pipeline and API instances in containers; stopped, nothing of it stays but the images.

    Attributes:
        directory: what is copied out of the containers lies below it.
        settings: of clients on this machine that read; the containers get those that the compose files pass on.
        security: with it, Kafka asks everybody who is there.
    """

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        *,
        files: Sequence[Path] = (COMPOSE_FILE,),
        profiles: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        security: BrokerSecurity | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.settings = security.settings_of("auditor", settings) if security else settings
        self.security = security
        # The same directory, the same name: what an earlier run left behind is found and taken down.
        name = f"loyalty-{zlib.crc32(str(self.directory).encode()):08x}"
        own = {**variables_of(settings), **_ports(settings), **(environment or {})}
        if security:
            files = [*files, SECURED_FILE]
            own["SECURITY_DIR"] = str(security.folder.directory.resolve())
        self.project = ComposeProject(name, own, profiles, files)

    @property
    def till_settings(self) -> Settings:
        """Of clients on this machine that publish invoices."""
        return self.security.settings_of("till", self.settings) if self.security else self.settings

    @property
    def metrics_url(self) -> str:
        """The pipeline's metrics."""
        return f"http://{HOST}:{self.settings.metrics_port}/metrics"

    @property
    def api_url(self) -> str:
        """The first API instance."""
        return self.api_urls()[0]

    def api_urls(self) -> list[str]:
        """Every API instance that runs, as this machine reaches it."""
        running = [container for container in self.project.containers("api") if container.is_up]
        return [self.project.url(container, _API_PORT) for container in running]

    def start(self, on_part: Callable[[str], None] = lambda name: None) -> None:
        """Build the images, start everything and wait until it is ready; if a part fails, all is taken down again.

        Raises ContainersError, and ProcessFailedError with the end of the log of what failed.
        """
        try:
            on_part("images")
            self.project.build()
            on_part("containers")
            self.project.up()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self) -> None:
        """Wait for the pipeline and every API instance. Raises ProcessFailedError."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not self.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"not ready after {_START_TIMEOUT:.0f} s. {self.last_lines()}")
            time.sleep(_LOOK_SECONDS)

    def is_ready(self) -> bool:
        """Whether the queries run and every API instance has caught up."""
        urls = self.api_urls()
        ready = bool(urls) and is_healthy(self.metrics_url, "loyalty_pipeline_ready 1")
        return ready and all(is_healthy(f"{url}/readyz") for url in urls)

    def stop(self, on_part: Callable[[str], None] = lambda name: None) -> None:
        """Take everything down, data included."""
        on_part("containers")
        self.project.down()

    def check(self) -> None:
        """Raises ProcessFailedError if a part has ended, or was started again."""
        for container in self._parts():
            if not container.is_up or container.restarts:
                state = f"{container.state}, started again {container.restarts} times"
                raise ProcessFailedError(f"{container.service} is {state}. {last_lines(container)}")

    def last_lines(self) -> str:
        """The ends of the logs of what works on invoices."""
        return "\n".join(last_lines(container) for container in self._parts() if container.service != "kafka")

    def parquet(self) -> Path:
        """The Parquet files as they are now, copied out of the pipeline's container."""
        incoming, folder = self.directory / "parquet.incoming", self.directory / "parquet"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        engine("cp", f"{self.project.container('pipeline').id}:{_PARQUET}/.", str(incoming))
        shutil.rmtree(folder, ignore_errors=True)
        return incoming.rename(folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _parts(self) -> list[Container]:
        return self.project.containers(*PARTS)


def _ports(settings: Settings) -> dict[str, str]:
    """Where the containers are published. An API instance takes whatever port is free, so that there can be many."""
    own = ("POSTGRES_PORT", "SPARK_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
    kafka = settings.kafka_bootstrap_servers.rpartition(":")[2]
    return {"KAFKA_PORT": kafka, "API_PORTS": "", **{name: str(free_port()) for name in own}}
