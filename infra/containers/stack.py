"""The whole stack in containers, for the demo and the tests, with its own ports, names and data."""

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
from infra.security.folder import SecurityFolder
from services.settings import Settings

PARTS = ("kafka", "postgres", "pipeline", "ledger", "api")
"""The services that always run. Services of a profile are not checked."""

_START_TIMEOUT = 900.0
_POLL_SECONDS = 0.5
_METRICS_PORT, _API_PORT = 9108, 8080
_PARQUET = "/data/parquet"


class ContainerStack:
    """Kafka, PostgreSQL, the pipeline and API instances in containers. Only the images stay after the stop.

    Attributes:
        directory: the folder for files that are copied from the containers.
        settings: the settings of readers on this machine. The containers get the settings of the compose files.
        security: the certificates and passwords of a secured Kafka; None for an unsecured Kafka.
    """

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        *,
        files: Sequence[Path] = (COMPOSE_FILE,),
        profiles: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        security: SecurityFolder | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.settings = security.settings_of("auditor", settings) if security else settings
        self.security = security
        # The name depends on the directory, so that a new run finds and removes the containers of an earlier one.
        name = f"loyalty-{zlib.crc32(str(self.directory).encode()):08x}"
        # Each API instance gets a free port, so that there can be many instances.
        ports = {"KAFKA_PORT": settings.kafka_bootstrap_servers.rpartition(":")[2], "API_PORTS": ""}
        ports |= {f"{each}_PORT": str(free_port()) for each in ("POSTGRES", "SPARK", "PROMETHEUS", "GRAFANA")}
        # An instance in a container listens on addresses that are not loopback, so the API requires credentials.
        own = {**variables_of(settings), "LOYALTY_API_ACCESS": "authenticated", **ports, **(environment or {})}
        if security:
            files = [*files, SECURED_FILE]
            own["SECURITY_DIR"] = str(security.directory.resolve())
        self.project = ComposeProject(name, own, profiles, files)

    @property
    def till_settings(self) -> Settings:
        """The settings of tills on this machine."""
        return self.security.settings_of("till", self.settings) if self.security else self.settings

    @property
    def metrics_url(self) -> str:
        return f"http://{HOST}:{self.settings.metrics_port}/metrics"

    @property
    def api_url(self) -> str:
        """URL of the first API instance."""
        return self.api_urls()[0]

    def api_urls(self) -> list[str]:
        """URLs of all running API instances."""
        running = [container for container in self.project.containers("api") if container.is_up]
        return [self.project.url(container, _API_PORT) for container in running]

    def start(self, on_part: Callable[[str], None] = lambda name: None) -> None:
        """Build the images, start all parts and wait until they are ready. If a part fails, remove all of them.

        Raises ContainersError, or ProcessFailedError with the end of the log of the failed part.
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
        """Wait for the pipeline and all API instances. Raises ProcessFailedError."""
        self._copy_keys()
        deadline = time.monotonic() + _START_TIMEOUT
        while not self.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"not ready after {_START_TIMEOUT:.0f} s. {self.last_lines()}")
            time.sleep(_POLL_SECONDS)

    def is_ready(self) -> bool:
        """Whether the queries run and all API instances are ready."""
        urls = self.api_urls()
        pipeline = f"http://{HOST}:{self.settings.metrics_port}"
        return bool(urls) and all(is_healthy(f"{url}/readyz") for url in [pipeline, *urls])

    def stop(self) -> None:
        """Remove all containers and data."""
        self.project.down()

    def check(self) -> None:
        """Raise ProcessFailedError if a part has ended or was restarted."""
        for container in self._parts():
            if not container.is_up or container.restarts:
                state = f"{container.state}, with {container.restarts} restarts"
                raise ProcessFailedError(f"{container.service} is {state}. {last_lines(container)}")

    def last_lines(self) -> str:
        """The last log lines of all parts except Kafka."""
        return "\n".join(last_lines(container) for container in self._parts() if container.service != "kafka")

    @property
    def key_file(self) -> Path:
        """The file with a copy of the operator's API key."""
        return self.directory / "operator.key"

    def _copy_keys(self) -> None:
        """Copy the keys that the service `keys` has made from the containers."""
        scraper = self.directory / "prometheus.key"
        self.directory.mkdir(parents=True, exist_ok=True)
        engine("cp", f"{self.project.container('api').id}:/data/access/operator.key", str(self.key_file))
        engine("cp", f"{self.project.container('pipeline').id}:/data/scrape/prometheus.key", str(scraper))
        self.settings = self.settings.model_copy(update={"metrics_key_file": scraper})

    def exported(self) -> Settings:
        """Copy the current Parquet files from the container of the pipeline. Returns the settings of their readers."""
        incoming, folder = self.directory / "parquet.incoming", self.directory / "parquet"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        engine("cp", f"{self.project.container('pipeline').id}:{_PARQUET}/.", str(incoming))
        shutil.rmtree(folder, ignore_errors=True)
        return self.settings.model_copy(update={"export_dir": str(incoming.rename(folder))})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _parts(self) -> list[Container]:
        return self.project.containers(*PARTS)
