"""Fixtures for all tests: one broker and one Spark session for the run, and separate topics for each test."""

import gc
import os
import re
import signal
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import typer.testing
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from services.settings import Settings
from tests.support import outputs
from tests.support.examples import IS_RANDOM, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from infra.local.broker import LocalBroker
    from tests.support.containers import KafkaInContainer
    from tests.support.ledger import Ledger
    from tests.support.registry import ApicurioRegistry

SHUFFLE_PARTITIONS = 2
"""One task a core: a third of the tasks fewer than by default, and accounts are still spread over partitions."""

LONG_TESTS = {
    "test_audit",
    "test_erasure",
    "test_pipeline_archive",
    "test_pipeline_commands",
    "test_rebuild",
    "test_security",
}
"""Files whose tests use a Spark session of their own."""

# Typer builds the commands of an app for each call of a test, which takes longer than most commands.
typer.testing._get_command = cache(typer.testing._get_command)


def _once_for_each_field(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what pydantic-settings finds out about a field. It does not depend on values."""
    known: dict[FieldInfo, Any] = {}

    def answer(source: EnvSettingsSource, field: FieldInfo, *name: str) -> Any:
        if field not in known:
            known[field] = ask(source, field, *name)
        return known[field]

    return answer


# Many tests create Settings, and these questions take most of that time.
for _name in ("_extract_field_info", "_field_is_complex"):
    setattr(EnvSettingsSource, _name, _once_for_each_field(getattr(EnvSettingsSource, _name)))

# A busy machine is slow at random, so no property has a deadline. The examples are almost the same in every run. Some
# use constants of the modules that the process has imported. With TEST_RANDOM=1 each run draws new ones.
hypothesis_settings.register_profile(
    "retail-loyalty",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not IS_RANDOM,
)
hypothesis_settings.load_profile("retail-loyalty")

_OF_DEVELOPER = re.compile(
    "(?i)LOYALTY_.*|(HTTPS?|ALL|NO)_PROXY|COLUMNS|FORCE_COLOR|PY_COLORS|PYTHONSAFEPATH|GITHUB_ACTIONS"
)
# npm installs the parser of AsyncAPI.
_OF_NPM = {"HTTPS_PROXY": "NPM_CONFIG_HTTPS_PROXY", "NO_PROXY": "NPM_CONFIG_NOPROXY"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("retail-loyalty")
    group.addoption("--kafka-bootstrap-servers", help="Use this Kafka instead of starting a broker.")
    group.addoption("--containers", action="store_true", help="Run integration tests on the project's images.")


def pytest_configure(config: pytest.Config) -> None:
    # The settings, the proxy and the terminal of a developer must not change a test.
    for name in filter(_OF_DEVELOPER.fullmatch, list(os.environ)):
        value = os.environ.pop(name)
        if name.upper() in _OF_NPM:
            os.environ[_OF_NPM[name.upper()]] = value
    # A shell lets background programs ignore SIGINT, and their children too. Tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _only_unit_tests(config):
        return
    config.pluginmanager.register(outputs)
    if config.getoption("numprocesses", default=None) and not config.getoption("--kafka-bootstrap-servers"):
        config.pluginmanager.register(SharedBroker(config))


def _only_unit_tests(config: pytest.Config) -> bool:
    """Whether the run needs no broker, because all its arguments are below tests/unit."""
    unit_tests = Path(__file__).parent / "unit"
    paths = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return all(path.is_relative_to(unit_tests) for path in paths)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all tests with a Spark session in two processes of pytest-xdist, so that a run starts two sessions, and all
    tests with PostgreSQL in one process, so that it starts one server.

    The tests of whole accounts take as long as all others, so they have their own session. The other tests of the
    secured broker share a process, too, and so do the tests of the shared pair of API instances. The tests with a
    Schema Registry run in the first process, because some of them need Spark.
    """
    # The parameters of a test replace those of the fixture, so a marker there would be lost.
    if "callspec" in vars(item) and item.callspec.params.get("database_url") == "postgresql":
        item.add_marker(pytest.mark.program)
        item.add_marker(pytest.mark.xdist_group("postgresql"))
    if "unit" in item.path.parts:
        return
    groups = {"spark": "spark", "registry": "spark", "secured": "secured", "pair": "pair"}
    shared = (groups[fixture] for fixture in groups if fixture in getattr(item, "fixturenames", ()))
    if group := next(shared, None):
        is_long = group == "spark" and item.path.stem in LONG_TESTS
        item.add_marker(pytest.mark.xdist_group(f"{group} long" if is_long else group))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--containers``, deselect integration tests that use no container. `make test` runs them."""
    if not config.getoption("--containers"):
        return
    container_fixtures = {"kafka", "own_broker"}
    without_containers = [
        item
        for item in items
        if item.path.parent.name == "integration" and container_fixtures.isdisjoint(getattr(item, "fixturenames", ()))
    ]
    config.hook.pytest_deselected(items=without_containers)
    items[:] = [item for item in items if item not in without_containers]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, because nearly all objects stay. Later exclude them from garbage
    collection, also at the end of the process: a full collection of all modules and tests takes a CPU second, and
    pytest and the interpreter start several of them when they end.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture(autouse=True)
def _same_log() -> Iterator[None]:
    """Restore the configuration of structlog. Also `capture_logs` changes it, and then a command logs to stdout."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _same_signal_handlers() -> Iterator[None]:
    """Restore the handlers of signals. A test of a process in this process replaces them, and then Ctrl-C is lost."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Remove the variables that `loyalty` sets for the program that replaces it.

    A test replaces the program, so the variables stay in this process. With PYTHONSAFEPATH, a Python program of a later
    test would not find the modules of its working directory.
    """
    yield
    for name in ("LOYALTY_LOG_FORMAT", "PYTHONSAFEPATH"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of the given broker, or of a broker that this run starts."""
    if given := pytestconfig.getoption("--kafka-bootstrap-servers") or SharedBroker.servers_for(pytestconfig):
        yield given
    else:
        with running_broker(pytestconfig, tmp_path_factory.mktemp("broker")) as bootstrap_servers:
            yield bootstrap_servers


@contextmanager
def running_broker(config: pytest.Config, directory: Path) -> Iterator[str]:
    """Run a broker for all tests, in a container or as a process. Yields its bootstrap servers."""
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
    """Starts one broker for all processes of a run with pytest-xdist. The controlling process owns it."""

    _INPUT = "kafka"

    def __init__(self, config: pytest.Config) -> None:
        self._resources = ExitStack()
        directory = self._resources.enter_context(TemporaryDirectory(prefix="broker-"))
        self._bootstrap_servers = self._resources.enter_context(running_broker(config, Path(directory)))

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[self._INPUT] = self._bootstrap_servers

    def pytest_unconfigure(self) -> None:
        self._resources.close()

    @classmethod
    def servers_for(cls, config: pytest.Config) -> str | None:
        """The servers that the controlling process passed to this one. None in a run of one process."""
        servers: str | None = getattr(config, "workerinput", {}).get(cls._INPUT)
        return servers


@pytest.fixture(scope="session")
def registry(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ApicurioRegistry]":
    """The Schema Registry of the run. A test that stops it starts it again."""
    from infra.local import jars
    from tests.support.registry import ApicurioRegistry

    if not jars.UNPACKED_REGISTRY.is_dir():
        pytest.skip("Apicurio Registry is not installed: `make test-tools` downloads it")
    with ApicurioRegistry(tmp_path_factory.mktemp("registry"), kafka, f"{uuid.uuid4().hex[:12]}-") as running:
        yield running


@pytest.fixture
def own_broker(pytestconfig: pytest.Config, tmp_path: Path) -> "Iterator[LocalBroker | KafkaInContainer]":
    """A broker for this test only, as a process or a container. The test starts and stops it."""
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


@pytest.fixture(scope="session")
def settings_in(kafka: str) -> Callable[[Path], Settings]:
    """Gives settings with a topic prefix of their own and folders in this folder."""
    return lambda folder: Settings(
        kafka_bootstrap_servers=kafka,
        topic_prefix=f"test-{uuid.uuid4().hex[:12]}-",
        checkpoint_dir=str(folder / "checkpoints"),
        export_dir=str(folder / "parquet"),
        archive_dir=str(folder / "archive"),
        tables_dir=str(folder / "tables"),
        state_dir=folder / "state",
        ledger_url=f"sqlite:///{folder / 'ledger.sqlite'}",
        pseudonym_key_file=folder / "pseudonym.key",
        shuffle_partitions=SHUFFLE_PARTITIONS,
    )


@pytest.fixture
def settings(settings_in: Callable[[Path], Settings], tmp_path: Path) -> Settings:
    """Settings with a topic prefix and folders that only this test uses."""
    return settings_in(tmp_path)


@pytest.fixture
def topics_created(settings: Settings) -> Iterator[list[str]]:
    """Create the topics of the catalogue with the prefix of this test, and delete them after it."""
    from tests.support.kafka import created_topics

    with created_topics(settings) as names:
        yield names


@pytest.fixture(scope="session")
def postgresql(pytestconfig: pytest.Config) -> Iterator[str]:
    """The superuser's URL of a PostgreSQL server for this run, from system packages or the project's image."""
    if pytestconfig.getoption("--containers"):
        from tests.support.containers import PostgresInContainer

        with PostgresInContainer() as container:
            yield container.url
        return
    from tests.support.postgresql import programs, server

    if not (folder := programs()):
        pytest.skip("PostgreSQL is not installed: found no initdb in /usr/lib/postgresql/*/bin or on the path")
    with server(folder) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database for this test, in SQLite and in PostgreSQL. With ``ledger``, PostgreSQL has its tables."""
    from tests.support.ledger import empty
    from tests.support.postgresql import database

    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'database.sqlite'}"
    elif "ledger" in request.fixturenames:
        url = request.getfixturevalue("database_of_ledgers")
        empty(url)
        yield url
    else:
        with database(request.getfixturevalue("postgresql")) as url:
            yield url


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a migrated ledger in SQLite. A copy of it is made in a quarter of the time."""
    from tests.support.ledger import Ledger

    file = tmp_path_factory.mktemp("ledger") / "empty.sqlite"
    Ledger(f"sqlite:///{file}").close()
    return file


@pytest.fixture(scope="session")
def database_of_ledgers(postgresql: str) -> Iterator[str]:
    """A database of PostgreSQL with the tables of a ledger. To empty it takes a fifth of the time of a new one. A test
    that changes the tables takes ``database_url`` instead of ``ledger``.
    """
    from tests.support.ledger import Ledger
    from tests.support.postgresql import database

    with database(postgresql) as url:
        Ledger(url).close()
        yield url


@pytest.fixture
def ledger(database_url: str, empty_ledger: Path) -> "Iterator[Ledger]":
    """An empty ledger in SQLite and in PostgreSQL."""
    from tests.support.ledger import Ledger

    if database_url.startswith("sqlite:///"):
        copyfile(empty_ledger, database_url.removeprefix("sqlite:///"))
    with closing(Ledger(database_url)) as ledger:
        yield ledger


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The Spark session of the run, on two local cores, with the connectors on the class path."""
    from infra.local import jars
    from infra.local.java import find_java_home
    from pipelines.runtime.session import spark_session
    from tests.support.processes import SMALL_JVM

    os.environ["JAVA_HOME"] = str(find_java_home())
    warehouse = tmp_path_factory.mktemp("spark")
    session = spark_session(
        Settings(
            spark_master="local[2]",
            shuffle_partitions=SHUFFLE_PARTITIONS,
            spark_jars_dir=jars.folder("spark"),
            spark_java_options=f"{SMALL_JVM} -Dderby.system.home={warehouse}",
            checkpoint_dir=str(warehouse / "checkpoints"),
            # The session can write both formats.
            export_format="delta",
        ),
        "tests",
    )
    yield session
    session.stop()
