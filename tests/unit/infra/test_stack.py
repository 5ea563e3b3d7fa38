"""Settings and ports of the local stack before it starts: infra.local.stack."""

import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from infra.local import jars
from infra.local import stack as stack_module
from infra.local.__main__ import app, parts_of
from infra.local.broker import LocalBroker
from infra.local.ports import HOST
from infra.local.processes import ManagedProcess
from infra.local.stack import LocalStack, Service, environment_of, private_settings
from pipelines.queries.query_table import QUERIES
from services.errors import SettingsError
from services.settings import Settings
from services.start_up import StartUpError


def test_a_child_reads_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings survive the environment of a child process, including times, decimals and folders."""
    settings = private_settings(tmp_path, loyalty_factor=Decimal("0.035"), stop_timeout=timedelta(seconds=7.5))
    for name, value in environment_of(settings).items():
        if name.startswith("LOYALTY_"):
            monkeypatch.setenv(name, value)
    assert settings == Settings()


def test_a_child_gets_no_setting_that_is_not_set(tmp_path: Path) -> None:
    """A checkpoint of an earlier release keeps its number of shuffle partitions only while nobody sets it."""
    name = "LOYALTY_SHUFFLE_PARTITIONS"
    assert name not in environment_of(private_settings(tmp_path))
    assert "5" == environment_of(private_settings(tmp_path, shuffle_partitions=5))[name]


@pytest.mark.parametrize("name", ["api_port", "ledger_metrics_port"])
def test_a_taken_port_is_named_with_its_setting(tmp_path: Path, name: str) -> None:
    """The stack checks the ports of all parts, also of a reader, before it starts anything."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        stack = LocalStack(tmp_path, private_settings(tmp_path, **{name: port}))
        with pytest.raises(StartUpError, match=f"{HOST}:{port} .*LOYALTY_{name.upper()}"):
            stack.start()
    assert ["kafka", "pipeline", "api-1", "ledger"] == [process.name for process in stack.processes]
    assert {None} == {process.pid for process in stack.processes}


@pytest.mark.program
def test_two_commands_that_start_a_stack_at_once_start_each_part_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one waits for the first, and finds that all parts run. Neither stops a part of the other."""
    both = threading.Barrier(2)

    def start(part: LocalBroker | Service) -> None:
        # Without a lock, both commands are here at the same moment, after both have seen that the part does not run.
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        part.process.start([sys.executable, "-c", "import signal; signal.pause()"], {}, tmp_path, lambda: True, 60)

    monkeypatch.setattr(LocalBroker, "start", start)
    monkeypatch.setattr(Service, "start", start)
    monkeypatch.setattr(stack_module, "create_topics", lambda _: None)
    settings = private_settings(tmp_path)
    stacks = [LocalStack(tmp_path, settings) for _ in range(2)]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(LocalStack.start, stacks))
        pids = [[process.pid for process in stack.processes] for stack in stacks]
        assert pids[0] == pids[1]
        assert None not in pids[0]
    finally:
        # The one that has started the parts comes first, because only their parent can wait for their ends.
        for stack in sorted(stacks, key=lambda each: not isinstance(each.broker.process._process, psutil.Popen)):
            stack.stop()


@pytest.mark.program
def _shows(process: ManagedProcess, environment: dict[str, str]) -> bool:
    return process.environment.items() >= environment.items()


def test_a_stack_refuses_a_part_of_another_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `up` would replace the API key of the stack that runs."""
    monkeypatch.setattr(stack_module, "create_topics", lambda _: None)
    running = LocalStack(tmp_path, private_settings(tmp_path, topic_prefix="a-"))
    other = LocalStack(tmp_path, private_settings(tmp_path))
    sleep = [sys.executable, "-c", "import signal; signal.pause()"]
    for process in running.broker.process, *(each.process for each in running.services):
        environment = {} if process is running.broker.process else environment_of(running.settings)
        # Linux shows the environment of a program a moment after its start.
        process.start(sleep, environment, tmp_path, partial(_shows, process, environment), 60)
    try:
        running.start()
        with pytest.raises(StartUpError, match=r'^pipeline runs with the LOYALTY_TOPIC_PREFIX "a-"'):
            other.start()
        other.start(services=[])
    finally:
        running.stop()


def test_a_stack_asks_each_part_where_it_listens(tmp_path: Path) -> None:
    """The API speaks TLS if it has a certificate. A part that listens on all addresses also answers on the own one."""
    pem = tmp_path / "api.pem"
    pem.touch()
    tls = {"api_certificate_file": pem, "api_certificate_key_file": pem}
    settings = private_settings(tmp_path, api_host="10.0.0.7", metrics_host="0.0.0.0", pipeline_drivers=2, **tls)  # noqa: S104
    stack = LocalStack(tmp_path, settings)
    assert f"https://10.0.0.7:{settings.api_port}" == stack.api_url
    metrics = [service.url for service in stack.services if service not in stack.apis]
    assert {HOST} == {url.removeprefix("http://").partition(":")[0] for url in metrics}
    six = private_settings(tmp_path, api_host="::", metrics_host="::1")
    assert f"http://[::1]:{six.api_port}" == LocalStack(tmp_path, six).api_url
    assert f"http://[::1]:{six.metrics_port}/metrics" == LocalStack(tmp_path, six).metrics_url


def test_instances_share_neither_port_nor_folder(tmp_path: Path) -> None:
    """Each API instance has its own port and state folder, because RocksDB allows one process a folder."""
    apis = LocalStack(tmp_path, private_settings(tmp_path), api_instances=3).apis
    assert 3 == len({api.settings.api_port for api in apis}) == len({api.settings.state_dir for api in apis})


def test_webhooks_run_with_a_file_of_endpoints(tmp_path: Path) -> None:
    """A stack without an API runs no readers."""
    settings = private_settings(tmp_path)
    settings.webhooks_file.touch()
    assert ["ledger", "webhooks"] == [reader.process.name for reader in LocalStack(tmp_path, settings).readers]
    assert [] == LocalStack(tmp_path, settings, api_instances=0).readers


def test_two_drivers_run_each_query_once(tmp_path: Path) -> None:
    """The first driver runs the loyalty query alone. The second has its own port and a lower priority."""
    stack = LocalStack(tmp_path, private_settings(tmp_path, pipeline_drivers=2))
    (background,) = stack.background
    queries = [word for driver in (stack.pipeline, background) for word in driver.arguments if word != "--query"]

    assert ["loyalty", *(name for name in QUERIES if name != "loyalty")] == queries
    assert ["kafka", "pipeline", "api-1", "ledger", "background"] == [process.name for process in stack.processes]
    assert stack.settings.background_metrics_port == background.settings.metrics_port == background.port
    assert stack.pipeline.process.niceness < background.process.niceness


def test_one_driver_runs_all_queries(tmp_path: Path) -> None:
    """Without arguments a pipeline runs all continuous queries."""
    stack = LocalStack(tmp_path, private_settings(tmp_path, pipeline_drivers=1))
    assert ([], ()) == (stack.background, stack.pipeline.arguments)


@pytest.mark.program
@pytest.mark.parametrize("drivers", [1, 2])
def test_a_stop_gives_the_second_driver_the_time_of_its_batches(tmp_path: Path, drivers: int) -> None:
    """This holds even if the settings of the command have one driver. `make down` shows how long it waits at most."""
    settings = private_settings(tmp_path, pipeline_drivers=2, stop_timeout=timedelta(seconds=60))
    (background,) = LocalStack(tmp_path, settings).background
    process, waits = background.process, []
    process.start([sys.executable, "-c", "import signal; signal.pause()"], {}, tmp_path, lambda: True, 60)
    try:
        stack = LocalStack(tmp_path, settings.model_copy(update={"pipeline_drivers": drivers}))
        stack.stop(lambda part: waits.append((part.name, part.stop_timeout)))
        assert [("background", 90.0)] == waits
        assert process.pid is None
    finally:
        process.kill()


@pytest.mark.parametrize("servers", ["kafka.example:9092", "127.0.0.1:9092,127.0.0.1:9093", "127.0.0.1"])
def test_the_local_stack_refuses_another_kafka(tmp_path: Path, servers: str) -> None:
    """The stack refuses settings of another Kafka instead of ignoring them."""
    with pytest.raises(SettingsError, match=r"LOYALTY_KAFKA_BOOTSTRAP_SERVERS is .*: set 127\.0\.0\.1:PORT"):
        LocalStack(tmp_path, Settings(kafka_bootstrap_servers=servers))


def test_wrong_settings_of_the_local_stack_give_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the command changes the folder
    monkeypatch.setenv("LOYALTY_KAFKA_BOOTSTRAP_SERVERS", "kafka.example:9092")
    result = CliRunner().invoke(app, ["down", "--dir", str(tmp_path)])
    assert (2, True) == (result.exit_code, result.stderr.startswith("error: LOYALTY_KAFKA_BOOTSTRAP_SERVERS is kafka"))


def test_kafka_starts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output has all parts, and those that do not run have no process."""
    started: list[object] = []
    monkeypatch.chdir(tmp_path)  # the command changes the folder
    monkeypatch.setattr(jars, "provide", lambda _: None)
    monkeypatch.setattr(LocalStack, "start", lambda _, on_part, services: started.append(services))
    result = CliRunner().invoke(app, ["kafka", "--dir", str(tmp_path), "--json"])
    assert ([[]], "kafka") == (started, json.loads(result.stdout)["parts"][0]["name"])


@pytest.mark.program
def test_down_says_as_json_what_it_has_stopped(tmp_path: Path) -> None:
    """With --json stdout has one object, also if nothing runs. The folder is that of --dir."""
    command = [str(Path(sys.executable).with_name("loyalty")), "down", "--dir", str(tmp_path), "--json"]
    done = subprocess.run(command, env=environment_of(private_settings(tmp_path)), capture_output=True, check=True)
    assert {"stopped": []} == json.loads(done.stdout)


def test_down_says_if_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an operator in the wrong folder could believe that the command has stopped the system. So the line
    names the folder.
    """
    monkeypatch.chdir(tmp_path)  # the command changes the folder
    said = CliRunner().invoke(app, ["down", "--dir", str(tmp_path)]).stdout
    assert f"No part runs in {tmp_path.resolve()}" in said


@pytest.mark.parametrize("command", ["up", "kafka", "down", "status"])
def test_a_file_instead_of_the_folder_is_an_error_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, [command, "--dir", str(tmp_path / "file")])
    assert (1, f"error: {tmp_path / 'file'}: File exists") == (result.exit_code, result.stderr.strip())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, "api.key: has no API key"),
        (KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "only 1 broker")), "only 1 broker"),
    ],
)
def test_up_shows_an_error_of_kafka_or_of_the_key_file_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, message: str
) -> None:
    """A file that has no key stays. With LOYALTY_REPLICATION_FACTOR=3, the broker makes no topics."""

    def start(*_: object, **__: object) -> None:
        if error:
            raise error

    monkeypatch.chdir(tmp_path)  # the command changes the folder
    monkeypatch.setattr(jars, "provide", lambda _: None)
    monkeypatch.setattr(LocalStack, "start", start)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "api.key").write_text("precious")
    result = CliRunner().invoke(app, ["up", "--dir", str(tmp_path)])
    assert 1 == result.exit_code
    assert message in result.stderr
    assert "precious" == (tmp_path / "var" / "api.key").read_text()


def test_the_parts_of_a_stack_have_their_addresses_and_logs(tmp_path: Path) -> None:
    """`loyalty up --json` shows these."""
    stack = LocalStack(tmp_path, private_settings(tmp_path))
    parts = {part["name"]: part for part in parts_of(stack)}

    assert ["kafka", "pipeline", "api-1", "ledger"] == list(parts)
    assert {None} == {part["pid"] for part in parts.values()}
    assert f"http://{HOST}:{stack.settings.api_port}" == parts["api-1"]["address"]
    assert str(tmp_path / "log" / "ledger.log") == parts["ledger"]["log"]
    assert tmp_path / "api.key" == stack.key_file
