"""The lock file of the jars: infra.local.jars."""

import hashlib
import os
from pathlib import Path

import pytest

from infra.local import jars


@pytest.fixture
def two_jars(tmp_path: Path) -> jars.JarSet:
    for name, content in {"spark/connector-1.jar": b"connector", "kafka/broker-1.jar": b"broker"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
    found = jars.JarSet(tmp_path, tmp_path / "jars.sha256", ["spark", "kafka"])
    found.write_lock()
    return found


def test_the_lock_file_has_the_format_of_sha256sum(two_jars: jars.JarSet) -> None:
    """One line a jar, sorted: checksum, two spaces, path."""
    broker, connector = (hashlib.sha256(content).hexdigest() for content in (b"broker", b"connector"))
    lines = f"{broker}  kafka/broker-1.jar\n{connector}  spark/connector-1.jar\n"
    assert lines == two_jars.lock.read_text(encoding="utf-8")


def test_jars_that_are_not_the_locked_ones_are_detected(two_jars: jars.JarSet) -> None:
    """A changed byte with both checksums, a missing jar, and a jar that is not locked but on the class path."""
    assert [] == two_jars.differences()
    directory = two_jars.directory
    (directory / "spark" / "connector-1.jar").write_bytes(b"Connector")
    (directory / "kafka" / "broker-1.jar").rename(directory / "kafka" / "extra.jar")

    found, locked = (hashlib.sha256(content).hexdigest() for content in (b"Connector", b"connector"))
    assert {
        f"spark/connector-1.jar: sha256 {found}, expected {locked}",
        "kafka/broker-1.jar: missing",
        "kafka/extra.jar: not in the lock file",
    } == {*two_jars.differences()}


PROXY = ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ([], {}),
        ([], {"NO_PROXY": "localhost"}),
        (PROXY, {"HTTPS_PROXY": "http://proxy.example:3128"}),
        (PROXY, {"https_proxy": "proxy.example:3128"}),
        (["-Dhttp.proxyHost=10.0.0.1", "-Dhttp.proxyPort=80"], {"HTTP_PROXY": "http://10.0.0.1/"}),
        (
            [*PROXY, "-Dhttp.nonProxyHosts=corp.example|*.corp.example|*.local"],
            {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": "corp.example, .local,"},
        ),
    ],
)
def test_java_gets_the_proxies_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, options: list[str], variables: dict[str, str]
) -> None:
    """Java reads no HTTPS_PROXY, HTTP_PROXY or NO_PROXY."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert options == jars.proxy_options()


def test_the_lock_file_of_the_project_covers_both_class_paths() -> None:
    """The committed lock file has the jars of both configurations, including connector and broker."""
    names = jars.STACK.locked()
    assert set(jars.STACK.configurations) == {name.partition("/")[0] for name in names}
    assert {"spark/spark-sql-kafka-0-10_2.13-4.2.0.jar", "kafka/kafka_2.13-4.2.0.jar"} <= set(names)
