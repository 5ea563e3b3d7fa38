"""What all tests share: one broker and one Spark session for the whole run; topics are each test's own."""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from services.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from infra.local.broker import LocalBroker
    from tests.support.containers import KafkaInContainer

# A starved machine is slow at random: that fails no property. In CI the examples are the same in every run.
hypothesis_settings.register_profile(
    "retail-loyalty", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
hypothesis_settings.load_profile("retail-loyalty")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("retail-loyalty")
    group.addoption("--kafka-bootstrap-servers", help="Test against this Kafka instead of a broker of the run's own.")
    group.addoption(
        "--containers", action="store_true", help="Test on the project's images, and the images themselves."
    )


def pytest_configure(config: pytest.Config) -> None:
    # A developer's own LOYALTY_… settings change no test.
    for name in [name for name in os.environ if name.startswith("LOYALTY_")]:
        del os.environ[name]
    if config.getoption("numprocesses", default=None) and not config.getoption("--kafka-bootstrap-servers"):
        config.pluginmanager.register(SharedBroker(config))


def pytest_itemcollected(item: pytest.Item) -> None:
    """All that needs the Spark session runs in one process, so that a run has one (pytest-xdist, ``loadgroup``)."""
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On containers, an integration test that has no part in one would only repeat what it shows in `make test`."""
    if not config.getoption("--containers"):
        return
    in_containers = {"kafka", "own_broker"}
    repeated = [
        item
        for item in items
        if item.path.parent.name == "integration" and in_containers.isdisjoint(getattr(item, "fixturenames", ()))
    ]
    config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if item not in repeated]


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a real broker: the given one, or the one of this run."""
    if given := pytestconfig.getoption("--kafka-bootstrap-servers") or SharedBroker.given_to(pytestconfig):
        yield given
    else:
        with broker_of_a_run(pytestconfig, tmp_path_factory.mktemp("broker")) as bootstrap_servers:
            yield bootstrap_servers


@contextmanager
def broker_of_a_run(config: pytest.Config, directory: Path) -> Iterator[str]:
    """A broker for all tests of a run: a container of the project's image, or a process. Gives its servers."""
    if config.getoption("--containers"):
        from tests.support.containers import KafkaInContainer

        in_container = KafkaInContainer()
        try:
            in_container.start()
            yield in_container.bootstrap_servers
        finally:
            in_container.remove()
    else:
        from infra.local.broker import LocalBroker

        broker = LocalBroker(directory)
        broker.start()
        yield broker.bootstrap_servers
        broker.stop()


class SharedBroker:
    """Held by the process that controls a run of several (pytest-xdist), so that these have one broker."""

    _INPUT = "kafka"

    def __init__(self, config: pytest.Config) -> None:
        self._held = ExitStack()
        directory = self._held.enter_context(TemporaryDirectory(prefix="broker-"))
        self._bootstrap_servers = self._held.enter_context(broker_of_a_run(config, Path(directory)))

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[self._INPUT] = self._bootstrap_servers

    def pytest_unconfigure(self) -> None:
        self._held.close()

    @classmethod
    def given_to(cls, config: pytest.Config) -> str | None:
        """What the controlling process gave to this one; nothing in a run of one process."""
        servers: str | None = getattr(config, "workerinput", {}).get(cls._INPUT)
        return servers


@pytest.fixture
def own_broker(pytestconfig: pytest.Config, tmp_path: Path) -> "Iterator[LocalBroker | KafkaInContainer]":
    """A broker that this test alone has, to start and to stop: a process, or a container. It is not started yet."""
    if pytestconfig.getoption("--containers"):
        from tests.support.containers import KafkaInContainer

        in_container = KafkaInContainer()
        yield in_container
        in_container.remove()
    else:
        from infra.local.broker import LocalBroker

        broker = LocalBroker(tmp_path / "broker")
        yield broker
        broker.stop()


@pytest.fixture
def settings(kafka: str, tmp_path: Path) -> Settings:
    """Settings of this test alone: topics under a prefix of its own, folders in its temporary directory."""
    return Settings(
        kafka_bootstrap_servers=kafka,
        topic_prefix=f"test-{uuid.uuid4().hex[:12]}-",
        checkpoint_dir=str(tmp_path / "checkpoints"),
        export_dir=str(tmp_path / "parquet"),
        state_dir=tmp_path / "state",
        ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}",
        pseudonym_key_file=tmp_path / "pseudonym.key",
    )


@pytest.fixture
def topics_created(settings: Settings) -> Iterator[list[str]]:
    """The topics of the catalogue, on the broker under this test's prefix; gone after the test."""
    from services.messaging.administration import create_topics
    from services.messaging.clients import admin

    names = create_topics(settings)
    yield names
    client = admin(settings)  # held by a name: its futures fail when it is collected before they are done
    for future in client.delete_topics(names).values():
        future.result()


@pytest.fixture(scope="session")
def postgresql(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of the superuser of a PostgreSQL server of this run: the system's packages, or the project's image."""
    if pytestconfig.getoption("--containers"):
        from tests.support.containers import PostgresInContainer

        with PostgresInContainer() as container:
            yield container.url
        return
    from tests.support.postgresql import programs, server

    if not (folder := programs()):
        pytest.skip("PostgreSQL is not installed: neither /usr/lib/postgresql/*/bin nor the path has initdb")
    with server(folder) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of this test alone, in both kinds."""
    from tests.support.postgresql import database

    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'database.sqlite'}"
    else:
        with database(request.getfixturevalue("postgresql")) as url:
            yield url


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The one Spark session of the run, on two local cores, with the connectors on its class path."""
    from infra.local import jars
    from infra.local.java import find_java_home
    from pipelines.runtime.session import spark_session

    os.environ["JAVA_HOME"] = str(find_java_home())
    warehouse = tmp_path_factory.mktemp("spark")
    session = spark_session(
        Settings(
            spark_master="local[2]",
            spark_jars_dir=jars.folder("spark"),
            spark_java_options=f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dderby.system.home={warehouse}",
            checkpoint_dir=str(warehouse / "checkpoints"),
        ),
        "tests",
    )
    yield session
    session.stop()
