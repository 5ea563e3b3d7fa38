"""The images run without root, contain no secrets, keep their data and authenticate callers."""

import json
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from infra.containers.project import ContainersError, engine
from tests.support.containers import (
    API,
    CLI,
    KAFKA,
    PASSWORD,
    PIPELINE,
    POSTGRES,
    KafkaInContainer,
    PostgresInContainer,
)

EVERY_IMAGE = pytest.mark.parametrize("image", [KAFKA, POSTGRES, PIPELINE, API, CLI])


def inside(image: str, *command: str) -> str:
    """The output of a command in a new container that can write only to /tmp."""
    program, *arguments = command
    options = ["--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--entrypoint", program]  # noqa: S108
    return engine("run", *options, image, *arguments)


@EVERY_IMAGE
def test_no_container_runs_as_root(image: str) -> None:
    """Processes run as user 10001, which owns no program."""
    assert "10001" == inside(image, "id", "-u").strip()
    own = ["find", "/app", "/usr", "-xdev", "-user", "10001"]
    assert "" == inside(image, *own)


@EVERY_IMAGE
def test_images_contain_no_secrets(image: str) -> None:
    """No variable is a password, and no image contains the certificates of the build."""
    environment = json.loads(engine("inspect", "--format", "{{json .Config.Env}}", image))
    assert [] == [variable for variable in environment if "PASSWORD" in variable or "SECRET" in variable]
    given = "test ! -d /usr/local/share/ca-certificates || ls /usr/local/share/ca-certificates; ls /tmp"
    assert "" == inside(image, "sh", "-c", given)
    assert "PASSWORD" not in engine("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)


@EVERY_IMAGE
def test_images_contain_no_compilers_and_installers(image: str) -> None:
    """The images contain no pip, compiler or download tool that an intruder could use."""
    found = inside(
        image, "sh", "-c", "command -v pip pip3 gcc cc make git curl wget; ls /app/.venv/bin/pip 2>/dev/null; true"
    )
    assert "" == found


@pytest.mark.parametrize("image", [PIPELINE, API, CLI])
def test_clients_have_the_authorities_of_the_system(image: str) -> None:
    """They connect to brokers with public certificates without a setting."""
    assert "" == inside(image, "test", "-s", "/etc/ssl/certs/ca-certificates.crt")


def test_python_workers_start_from_compiled_modules() -> None:
    """The image lacks PySpark's archives of sources, which Spark would prefer to the compiled package."""
    assert "" == inside(PIPELINE, "find", "/app/.venv", "-name", "*.zip")
    cached = inside(PIPELINE, "python", "-c", "import pyspark.worker as it; print(it.__spec__.cached)").strip()
    assert "" == inside(PIPELINE, "sh", "-c", f"test -e {cached} || echo none")


def test_the_command_runs_without_anything_else() -> None:
    """`docker run retail-loyalty-cli` is the command `loyalty`."""
    shown = engine("run", "--rm", "--network", "none", CLI, "settings", "--json")
    assert "127.0.0.1:9092" in shown


@pytest.mark.parametrize(
    ("image", "command", "message"),
    [
        (API, (), "Without credentials, the API listens on loopback addresses only"),
        (API, ("python", "-m", "services.ledger"), "Without a key"),
        (PIPELINE, (), "Without a key"),
    ],
    ids=["api", "ledger", "pipeline"],
)
def test_a_container_serves_no_network_without_credentials(image: str, command: tuple[str, ...], message: str) -> None:
    """A process that other containers could reach refuses to start, and says which setting to change."""
    options = ["--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--env", "LOYALTY_METRICS_HOST=0.0.0.0"]  # noqa: S108
    with pytest.raises(ContainersError, match=f"status 2:(.|\n)*LOYALTY_(.|\n)*{message}"):
        engine("run", *options, image, *command)


@pytest.fixture
def postgres() -> Iterator[PostgresInContainer]:
    with PostgresInContainer() as database:
        yield database


def ask(database: PostgresInContainer, statement: str, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
    """Run a statement over TCP."""
    client = ["docker", "exec", "--env", f"PGPASSWORD={password}", database.get_container_id(), "psql"]
    options = ["--host=127.0.0.1", "--username=loyalty", "--no-align", "--tuples-only", f"--command={statement}"]
    return subprocess.run([*client, *options], capture_output=True, text=True, check=False)


def test_rows_survive_a_stop_and_a_kill(postgres: PostgresInContainer) -> None:
    """Committed rows survive an orderly stop and a kill."""
    container = postgres.get_wrapped_container()
    ask(postgres, "CREATE TABLE entries (number int)")
    for number, end in enumerate((container.stop, container.kill)):
        assert 0 == ask(postgres, f"INSERT INTO entries VALUES ({number})").returncode  # noqa: S608
        end()
        container.start()
        postgres.wait_until_healthy()
    assert "0\n1\n" == ask(postgres, "SELECT number FROM entries ORDER BY number").stdout


def test_a_wrong_password_is_refused(postgres: PostgresInContainer) -> None:
    """The server refuses TCP connections without the password, also inside the container."""
    assert "1\n" == ask(postgres, "SELECT 1").stdout
    refused = ask(postgres, "SELECT 1", "another")
    assert 2 == refused.returncode
    assert "password authentication failed" in refused.stderr


def test_a_database_without_a_password_does_not_start() -> None:
    """The first start fails and names the missing password."""
    with pytest.raises(ContainersError, match="set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE"):
        engine("run", "--rm", POSTGRES)


def test_a_new_container_continues_with_the_data_of_a_volume() -> None:
    """A new container keeps user, password and rows of the volume."""
    volume = f"loyalty-test-{uuid.uuid4().hex[:8]}"
    engine("volume", "create", volume)
    try:
        with PostgresInContainer(volume) as first:
            assert 0 == ask(first, "CREATE TABLE entries AS SELECT 7 AS number").returncode
        with PostgresInContainer(volume) as second:
            assert "7\n" == ask(second, "SELECT number FROM entries").stdout
    finally:
        engine("volume", "rm", volume)


def test_a_broker_keeps_its_identity_over_a_kill() -> None:
    """A broker that was killed starts again as the same cluster."""
    from services.messaging.clients import admin
    from services.settings import Settings

    broker = KafkaInContainer()
    try:
        broker.start()
        client = admin(Settings(kafka_bootstrap_servers=broker.bootstrap_servers))
        before = client.list_topics(timeout=60).cluster_id
        broker.kill()
        broker.start()
        assert before == client.list_topics(timeout=60).cluster_id
    finally:
        broker.remove()
