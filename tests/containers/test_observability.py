"""A real Prometheus on the project's configuration: it finds every process, and dashboards and alerts get answers."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.containers.project import engine
from infra.containers.stack import ContainerStack
from infra.local import jars
from infra.local.stack import private_settings
from services.messaging.schema_ids import schema_ids
from services.pos_simulator import Options, Simulation
from tests.kafka_topics import publish

IMAGE = "retail-loyalty-test-prometheus"
DOCKERFILE = Path(__file__).with_name("prometheus.Dockerfile")
DASHBOARDS = sorted((jars.ROOT / "infra" / "grafana" / "dashboards").glob("*.json"))
SILENT = ("loyalty_forwarded_requests_total",)
"""Counters by a label that nothing has had yet."""


@pytest.fixture(scope="module")
def image() -> str:
    """Debian's Prometheus; the upstream image takes its place where it can be pulled."""
    base, network = os.environ.get("BASE_IMAGE", "debian:bookworm-slim"), os.environ.get("BUILD_NETWORK", "default")
    options = ["--network", network, "--build-arg", f"BASE={base}", "--file", str(DOCKERFILE), "--tag", IMAGE]
    engine("build", *options, str(DOCKERFILE.parent))
    return IMAGE


class Prometheus:
    """The server of a stack."""

    def __init__(self, stack: ContainerStack) -> None:
        self._url = stack.project.url(stack.project.container("prometheus"), 9090)

    def get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=parameters, timeout=30, trust_env=False).json()
        assert "success" == answer["status"], answer
        return answer["data"]

    def up(self) -> list[str]:
        """The job of each process that it has scraped."""
        targets = self.get("targets", state="active")["activeTargets"]
        return sorted(target["labels"]["job"] for target in targets if target["health"] == "up")


@pytest.fixture
def stack(image: str, tmp_path: Path) -> Iterator[ContainerStack]:
    """The stack with two API instances, and Prometheus beside it."""
    environment = {"PROMETHEUS_IMAGE": image}
    settings = private_settings(tmp_path, spark_java_options="-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    stack = ContainerStack(tmp_path, settings, profiles=["observability"], environment=environment)
    try:
        stack.project.up("pipeline", "api", "prometheus", scale={"api": 2})
        stack.wait_until_ready()
        yield stack
    finally:
        stack.stop()


def wait_for(what: str, is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.5)


def test_the_configuration_is_valid(image: str) -> None:
    """promtool accepts configuration and rules."""  # noqa: D403  # a program's name
    mount = f"{jars.ROOT / 'infra' / 'prometheus'}:/etc/prometheus:ro"
    options = ["--rm", "--network", "none", "--volume", mount, "--entrypoint", "promtool"]
    said = engine("run", *options, image, "check", "config", "/etc/prometheus/prometheus.yml")
    assert "rules found" in said


@pytest.mark.timeout(1800)
def test_everything_is_found_and_every_panel_answered(stack: ContainerStack) -> None:
    """Pipeline and both instances are scraped; each panel has data, each rule is evaluated, and none fires."""
    prometheus = Prometheus(stack)
    from schemas import topics

    day = Simulation(Options(count=50, seed=4), schema_ids(stack.settings)).messages()
    publish(stack.settings, topics.POS_INVOICES, ((message.key, message.value) for message in day))

    wait_for("all processes", lambda: prometheus.up() == ["api", "api", "pipeline"])
    read = "sum(loyalty_query_input_rows_total{query='loyalty'})"
    wait_for(
        "the day",
        lambda: any(50 <= float(found["value"][1]) for found in prometheus.get("query", query=read)["result"]),
    )
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboard.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "5m")
                found = prometheus.get("query", query=expression)["result"]
                assert found or any(name in expression for name in SILENT), expression
    wait_for("the rules", lambda: {"ok"} == {rule["health"] for rule in rules(prometheus)})
    assert {"inactive"} == {rule["state"] for rule in rules(prometheus)}


def rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
