"""A broker and a database from the images of the project, as testcontainers on 127.0.0.1."""

from testcontainers.community.postgres import PostgresContainer
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

from infra.local.ports import HOST, free_port

# The reaper of testcontainers needs another image and the socket of the engine. Fixtures remove the containers instead.
testcontainers_config.ryuk_disabled = True

KAFKA, POSTGRES, PIPELINE, API, CLI = (
    f"retail-loyalty-{name}" for name in ("kafka", "postgres", "pipeline", "api", "cli")
)
START_SECONDS = 240
PASSWORD = "of-a-test"  # noqa: S105


class KafkaInContainer:
    """A broker in a container, with the methods of infra.local.broker.LocalBroker. A restart keeps its data."""

    def __init__(self) -> None:
        self.port = free_port()
        self._container = DockerContainer(KAFKA).with_env("KAFKA_HOST_ADDRESS", self.bootstrap_servers)
        self._container.ports["29092/tcp"] = (HOST, self.port)  # type: ignore[assignment]  # docker takes an address too
        self._healthy = HealthcheckWaitStrategy().with_startup_timeout(START_SECONDS)
        self._container.waiting_for(self._healthy)
        self._created = False

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        if self._created:
            self._container.get_wrapped_container().start()
            self._healthy.wait_until_ready(self._container)
        else:
            self._created = True
            self._container.start()

    def stop(self) -> None:
        if self._created:
            self._container.get_wrapped_container().stop(timeout=60)

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def remove(self) -> None:
        self._container.stop()


class PostgresInContainer(PostgresContainer):
    """PostgreSQL from the image of the project. ``volume`` is the name of a volume for its data."""

    def __init__(self, volume: str | None = None) -> None:
        super().__init__(POSTGRES, username="loyalty", password=PASSWORD, dbname="loyalty", driver=None)
        self.ports["5432"] = (HOST,)  # type: ignore[assignment]  # docker takes an address too
        self._healthy = HealthcheckWaitStrategy().with_startup_timeout(START_SECONDS)
        self.waiting_for(self._healthy)
        if volume:
            self.with_volume_mapping(volume, "/data/postgres", "rw")

    def wait_until_healthy(self) -> None:
        """Wait until a restarted container is healthy."""
        self._healthy.wait_until_ready(self)

    @property
    def url(self) -> str:
        """The URL of the superuser, for psycopg and SQLAlchemy."""
        return self.get_connection_url(host=HOST)
