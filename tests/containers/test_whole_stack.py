"""The whole stack with Prometheus, a webhook endpoint, an audit and callers with keys."""

import json
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.containers.project import COMPOSE_FILE, engine, log_of
from infra.containers.stack import ContainerStack
from infra.local.folders import ROOT
from infra.local.stack import private_settings
from schemas import topics
from services.audit.facts import COMPARED
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.simulation import Options, Simulation
from tests.support.builders import CARD, problem_type
from tests.support.kafka import last_balances_of, publish, read_all
from tests.support.processes import SMALL_JVM
from tests.support.waiting import wait_for

IMAGE = "retail-loyalty-test-prometheus"
DOCKERFILE = Path(__file__).with_name("prometheus.Dockerfile")
DASHBOARDS = sorted((ROOT / "infra" / "grafana" / "dashboards").glob("*.json"))
RECEIVER = Path(__file__).with_name("receiver.yml")
SERVICES = ("pipeline", "api", "ledger", "webhooks", "receiver", "prometheus")
INVOICES = 50
METRICS = {"pipeline": 9108, "api": 8080, "ledger": 9109, "webhooks": 9110}
SILENT = ("loyalty_forwarded_requests_total",)
"""Counters whose label has no value yet."""


@pytest.fixture(scope="module")
def image() -> str:
    """Prometheus from Debian. Use the upstream image where it can be pulled."""
    base, network = os.environ.get("BASE_IMAGE", "debian:bookworm-slim"), os.environ.get("BUILD_NETWORK", "default")
    options = ["--network", network, "--build-arg", f"BASE={base}", "--file", str(DOCKERFILE), "--tag", IMAGE]
    engine("build", *options, str(DOCKERFILE.parent))
    return IMAGE


class Prometheus:
    """The Prometheus server of a stack."""

    def __init__(self, stack: ContainerStack) -> None:
        self._url = stack.project.url(stack.project.container("prometheus"), 9090)

    def get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self._url}/api/v1/{path}", params=parameters, timeout=30, trust_env=False).json()
        assert "success" == answer["status"], answer
        return answer["data"]

    def sum_of(self, metric: str) -> float:
        """The sum over all labels. 0 if there is no sample yet."""
        found = self.get("query", query=f"sum({metric})")["result"]
        return float(found[0]["value"][1]) if found else 0.0

    def up(self) -> list[str]:
        """The job of each process that Prometheus has scraped."""
        targets = self.get("targets", state="active")["activeTargets"]
        return sorted(target["labels"]["job"] for target in targets if target["health"] == "up")


@pytest.fixture(scope="module")
def stack(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerStack]:
    """The stack with two API instances, a webhook endpoint and Prometheus, after it processed a day."""
    directory = tmp_path_factory.mktemp("whole")
    secret = endpoints(directory / "webhooks")
    environment = {
        "PROMETHEUS_IMAGE": image,
        "WEBHOOKS_DIR": str(directory / "webhooks"),
        "WEBHOOK_SECRET": secret,
    }
    settings = private_settings(directory, spark_java_options=SMALL_JVM)
    profiles = ["observability", "webhooks", "audit"]
    stack = ContainerStack(
        directory, settings, files=[COMPOSE_FILE, RECEIVER], profiles=profiles, environment=environment
    )
    try:
        stack.project.up(*SERVICES, scale={"api": 2})
        stack.wait_until_ready()
        # A new endpoint receives only later notifications.
        wait_for("webhooks", lambda: "following" in log_of(stack.project.container("webhooks")))
        day = Simulation(Options(count=INVOICES, seed=4), schema_ids(stack.settings)).messages()
        publish(stack.settings, topics.POS_INVOICES, ((message.key, message.value) for message in day))
        yield stack
    finally:
        stack.stop()


def endpoints(folder: Path) -> str:
    """Write the files of one endpoint and its secret, readable by all users. Returns the secret."""
    folder.mkdir()
    secret = f"whsec_{b64encode(os.urandom(32)).decode()}"
    (folder / "secret").write_text(secret, encoding="utf-8")
    (folder / "webhooks.yaml").write_text(
        "endpoints: [{name: receiver, url: 'http://receiver:8000/', secret-file: secret}]", encoding="utf-8"
    )
    return secret


def await_the_day(stack: ContainerStack) -> None:
    """Wait until the loyalty query has read the day and the ledger has all entries."""
    prometheus = Prometheus(stack)
    wait_for("the day", lambda: prometheus.sum_of("loyalty_query_input_rows_total{query='loyalty'}") >= INVOICES)
    entries = len(read_all(stack.settings, topics.LOYALTY))
    wait_for("the ledger", lambda: prometheus.sum_of("loyalty_ledger_entries_total") >= entries)


def test_the_configuration_is_valid(image: str, tmp_path: Path) -> None:
    """promtool accepts configuration and rules. It wants the file of the key to exist."""  # noqa: D403  # a program's name
    (key := tmp_path / "prometheus.key").touch()
    mounts = [f"{ROOT / 'infra' / 'prometheus'}:/etc/prometheus:ro", f"{key}:/data/scrape/prometheus.key:ro"]
    volumes = [part for mount in mounts for part in ("--volume", mount)]
    options = ["--rm", "--network", "none", *volumes, "--entrypoint", "promtool"]
    said = engine("run", *options, image, "check", "config", "/etc/prometheus/prometheus.yml")
    assert "rules found" in said


@pytest.mark.timeout(1800)
def test_every_process_is_scraped_and_every_panel_has_data(stack: ContainerStack) -> None:
    """Prometheus scrapes every process and evaluates each rule. Each panel has data, and no alert fires."""
    prometheus = Prometheus(stack)
    wait_for("all processes", lambda: prometheus.up() == ["api", "api", "ledger", "pipeline", "webhooks"])
    await_the_day(stack)
    # The panel of responses needs one, with any status.
    httpx.get(f"{stack.api_url}/v1/customers/{CARD}/balance", timeout=60, trust_env=False)
    wait_for("every panel", lambda: [] == unanswered(prometheus))
    wait_for("the rules", lambda: {"ok"} == {rule["health"] for rule in rules(prometheus)})
    wait_for("no alert", lambda: {"inactive"} == {rule["state"] for rule in rules(prometheus)})


def unanswered(prometheus: Prometheus) -> list[str]:
    """The queries of panels that return no data."""
    panels = [panel for path in DASHBOARDS for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]]
    asked = [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]]
    assert asked, "found no panel"
    return [
        expression
        for expression in asked
        if not any(name in expression for name in SILENT) and not prometheus.get("query", query=expression)["result"]
    ]


def rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]


@pytest.mark.timeout(1800)
def test_notifications_are_delivered_signed(stack: ContainerStack) -> None:
    """The endpoint verifies one notification for each record of the topic loyalty."""
    await_the_day(stack)
    expected = len(read_all(stack.settings, topics.LOYALTY))
    receiver = stack.project.container("receiver")
    wait_for("the webhooks", lambda: len(log_of(receiver).splitlines()) >= expected)
    events = [json.loads(line) for line in log_of(receiver).splitlines()]
    assert {"loyalty.earned"} == {event["type"] for event in events}
    assert expected == len(events) > 0


@pytest.mark.timeout(1800)
def test_the_audit_finds_no_difference(stack: ContainerStack) -> None:
    """The audit in a container reads the ledger, the served balances and Spark's state, and finds no difference."""
    await_the_day(stack)
    command = ("loyalty", "audit", "--api", "http://api:8080", "--json")
    report = json.loads(stack.project.compose("run", "--rm", "-T", "audit", *command))
    assert ([], []) == (report["differences"], report["unreadable"])
    assert set(COMPARED) == report["compared"].keys()
    assert all(report["compared"].values())


def test_no_port_is_published_beyond_this_machine(stack: ContainerStack) -> None:
    """The engine has bound every published port to the loopback address."""
    containers = [container.id for container in stack.project.containers()]
    addresses = set()
    for networks in json.loads(engine("inspect", *containers)):
        for bindings in networks["NetworkSettings"]["Ports"].values():
            addresses |= {binding["HostIp"] for binding in bindings or ()}
    assert {"127.0.0.1"} == addresses


@pytest.mark.timeout(1800)
def test_metrics_need_the_key_also_inside_the_network(stack: ContainerStack) -> None:
    """A container of the network gets the metrics of each process with the key only, and the probes without one."""
    inside = stack.project.container("ledger").id
    bases = [f"http://{service}:{port}" for service, port in METRICS.items()]
    said = json.loads(engine("exec", inside, "python", "-c", _SCRAPE, *bases))
    expected = {"/metrics": 401, "/metrics with another key": 401, "/metrics with the key": 200, "/livez": 200}
    assert dict.fromkeys(bases, expected) == said


_SCRAPE = """
import httpx, json, pathlib, sys
key = pathlib.Path("/data/scrape/prometheus.key").read_text().strip()
def ask(url, key=""):
    return httpx.get(url, headers={"Authorization": f"Bearer {key}"} if key else {}).status_code
print(json.dumps({base: {
    "/metrics": ask(f"{base}/metrics"),
    "/metrics with another key": ask(f"{base}/metrics", key[::-1]),
    "/metrics with the key": ask(f"{base}/metrics", key),
    "/livez": ask(f"{base}/livez"),
} for base in sys.argv[1:]}))
"""


def new_key(stack: ContainerStack, scope: str) -> dict[str, Any]:
    """A key from the command in the header of docker-compose.yml."""
    command = ("run", "--rm", "-T", "--entrypoint", "loyalty", "keys", "keys", "create", scope, "--scope", scope)
    made: dict[str, Any] = json.loads(stack.project.compose(*command, "--json"))
    return made


@pytest.mark.timeout(1800)
def test_a_key_opens_the_routes_of_its_scope_only(stack: ContainerStack) -> None:
    """Every instance, also by a forward, answers a caller with the right scope, and no other. The key is the actor."""
    await_the_day(stack)
    card = next(iter(last_balances_of(stack.settings)))
    routes = {
        "balance:read": ("GET", f"/v1/customers/{card}/balance"),
        "ledger:read": ("GET", f"/v1/customers/{card}/entries"),
        "operate": ("GET", "/v1/instances"),
        "points:adjust": ("POST", f"/v1/customers/{card}/adjustments"),
    }
    keys = {scope: new_key(stack, scope) for scope in routes}
    body = {"points": "1.00", "reason": "a test", "actor": "somebody else"}

    def ask(url: str, scope: str, headers: dict[str, str]) -> httpx.Response:
        method, path = routes[scope]
        more: dict[str, Any] = {"json": body} if method == "POST" else {}
        headers = {**headers, "Idempotency-Key": "of the test"}
        return httpx.request(method, f"{url}{path}", headers=headers, timeout=60, trust_env=False, **more)

    for url in stack.api_urls():
        for scope in routes:
            assert "unauthenticated" == problem_type(ask(url, scope, {}), 401)
            for offered, key in keys.items():
                bearer = {"Authorization": f"Bearer {key['key']}"}
                wait_for("the key", lambda: ask(url, offered, bearer).status_code != 401)  # noqa: B023  # used at once
                answer = ask(url, scope, bearer)
                if offered == scope:
                    assert answer.is_success, answer.text
                else:
                    assert "scope-missing" == problem_type(answer, 403)
    bearer = {"Authorization": f"Bearer {keys['ledger:read']['key']}"}

    def actors() -> list[str]:
        entries = ask(stack.api_url, "ledger:read", bearer).json()["entries"]
        return [entry["Actor"] for entry in entries if entry["Actor"]]

    wait_for("the entry of the adjustment", actors)
    assert [f"key:{keys['points:adjust']['id']}"] == actors()


@pytest.mark.timeout(1800)
def test_instances_sign_what_they_forward(stack: ContainerStack) -> None:
    """Both instances answer for every card. A request that only pretends to come from an instance is refused."""
    await_the_day(stack)
    authorization = {"Authorization": f"Bearer {stack.key_file.read_text(encoding='utf-8').strip()}"}
    cards = list(last_balances_of(stack.settings))
    prometheus = Prometheus(stack)
    for url in stack.api_urls():
        with httpx.Client(base_url=url, headers=authorization, timeout=60, trust_env=False) as client:
            assert {200} == {client.get(f"/v1/customers/{card}/balance").status_code for card in cards}
            for headers in ({"Loyalty-Forwarded-To": "active"}, {"Loyalty-Hop": "1.e30.forged"}):
                refused = client.get(f"/v1/customers/{cards[0]}/balance", headers=headers)
                assert "forward-refused" == problem_type(refused, 403)
    # For each card, one of the two instances forwards.
    wait_for("forwards", lambda: prometheus.sum_of("loyalty_forwarded_requests_total") >= len(cards))
    assert 0 == prometheus.sum_of("loyalty_forwarded_requests_total{outcome!='answered'}")
