"""What all tests share: one broker and one Spark session for the whole run; topics are each test's own."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from services.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from infra.local.broker import LocalBroker
    from tests.images import KafkaInContainer

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


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """A developer's own LOYALTY_… settings change no test."""
    for name in [name for name in os.environ if name.startswith("LOYALTY_")]:
        del os.environ[name]


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a real broker: the given one, a container of the project's image, or a process."""
    if given := pytestconfig.getoption("--kafka-bootstrap-servers"):
        yield given
    elif pytestconfig.getoption("--containers"):
        yield from _broker_in_container()
    else:
        yield from _broker_of_this_run(tmp_path_factory.mktemp("broker"))


def _broker_of_this_run(directory: Path) -> Iterator[str]:
    from infra.local.broker import LocalBroker

    broker = LocalBroker(directory)
    broker.start()
    yield broker.bootstrap_servers
    broker.stop()


def _broker_in_container() -> Iterator[str]:
    from tests.images import KafkaInContainer

    broker = KafkaInContainer()
    try:
        broker.start()
        yield broker.bootstrap_servers
    finally:
        broker.remove()


@pytest.fixture
def own_broker(pytestconfig: pytest.Config, tmp_path: Path) -> "Iterator[LocalBroker | KafkaInContainer]":
    """A broker that this test alone has, to start and to stop: a process, or a container. It is not started yet."""
    if pytestconfig.getoption("--containers"):
        from tests.images import KafkaInContainer

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
        from tests.images import PostgresInContainer

        with PostgresInContainer() as container:
            yield container.url
        return
    from tests.postgresql import programs, server

    if not (folder := programs()):
        pytest.skip("PostgreSQL is not installed: neither /usr/lib/postgresql/*/bin nor the path has initdb")
    with server(folder) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of this test alone, in both kinds."""
    from tests.postgresql import database

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
    from pipelines.session import spark_session

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
