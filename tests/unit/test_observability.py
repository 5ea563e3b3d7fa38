"""Prometheus and Grafana use only metrics, labels and values that the processes expose."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from api.app import create_app
from api.http.metrics import Metrics as ApiMetrics
from api.http.tracing import INTERNAL_PATHS
from infra.setup import find_promtool
from pipelines.queries.query_table import QUERIES
from services.ledger.metrics import Metrics as LedgerMetrics
from services.state_stores.catalogue import BALANCES
from services.webhooks.metrics import Metrics as WebhookMetrics

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "infra" / "prometheus"
GRAFANA = ROOT / "infra" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
PROMTOOL = find_promtool() or ""
NEEDS_PROMTOOL = pytest.mark.skipif(
    not PROMTOOL, reason="promtool is not installed: `make test-tools` installs it on Debian"
)
CASES = sorted((ROOT / "tests" / "prometheus").glob("*.yml"))
"""The tests of alerts in the format of promtool."""
EVERY_DASHBOARD = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)


def read_yaml(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return parsed


@cache
def labels_by_metric() -> dict[str, set[str]]:
    """The labels of every exposed metric. Prometheus adds the metric `up`, and two labels to each metric."""
    api, webhooks = ApiMetrics(), CollectorRegistry()
    api.watch(MagicMock(by_name={}))
    WebhookMetrics(webhooks)
    found = dict(chain(*map(labels_in, (REGISTRY, api.registry, LedgerMetrics().registry, webhooks))))
    return {name: labels | {"job", "instance"} for name, labels in {**found, "up": set[str]()}.items()}


def labels_in(registry: Any) -> Iterator[tuple[str, set[str]]]:
    # The registry has no public way to the labels of a metric without samples.
    for collector in registry._collector_to_names:
        for metric in [collector] if isinstance(collector, MetricWrapperBase) else collector.collect():
            yield stem(getattr(metric, "_name", None) or metric.name), {*metric._labelnames}


def exposed() -> set[str]:
    return {name for name in labels_by_metric() if name.startswith("loyalty_")}


@cache
def known_values() -> dict[str, set[str]]:
    """The values of the labels that expressions compare."""
    return {
        "job": {job["job_name"] for job in read_yaml(PROMETHEUS / "prometheus.yml")["scrape_configs"]},
        "query": {*QUERIES},
        "outcome": {"delivered", "dead"},
        "store": {BALANCES},
        "route": {*create_app(MagicMock()).openapi()["paths"]},
        "status": {"5..", "401", "429"},
    }


def faults(expression: str, text: str = "") -> list[str]:
    """The labels of an expression and of its text that none of its metrics has, and the values that no metric has."""
    metrics = re.findall(r"\b(loyalty_\w+|up|process_start_time_seconds)\b(?:\{([^}]*)\})?", expression)
    found = []
    for name, matchers in metrics:
        for label, value in re.findall(r'(\w+)[=!]~?"([^"]*)"', matchers):
            if label not in labels_by_metric()[stem(name)] or not {*value.split("|")} <= known_values()[label]:
                found.append(f"{name}: {label}={value}")
    has = set().union(*(labels_by_metric()[stem(name)] for name, _ in metrics))
    has |= {"le"} if "_bucket" in expression else set()
    groups = {label for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(", ")}
    is_grouped = re.match(r"\(*(sum|max|min|count|histogram_quantile)\b", expression)
    shown = {*re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)} - {"end"}
    return [*found, *(groups - has), *(shown - (groups if is_grouped else has))]


def stem(metric: str) -> str:
    return re.sub(r"_(total|bucket|count|sum)$", "", metric)


def named(expression: str) -> set[str]:
    return {stem(name) for name in re.findall(r"loyalty_\w+", expression)}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(PROMETHEUS / "alerts.yml")["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
    return found


def test_prometheus_scrapes_the_services_of_the_compose_file() -> None:
    """Each job names an existing service and a port that its image exposes."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    for job in read_yaml(PROMETHEUS / "prometheus.yml")["scrape_configs"]:
        for found in job["dns_sd_configs"]:
            (service,) = found["names"]
            dockerfile = (ROOT / services[service]["build"]["dockerfile"]).read_text(encoding="utf-8")
            assert str(found["port"]) in re.findall(r"^EXPOSE (.*)$", dockerfile, re.MULTILINE)[0].split()


def test_rule_files_exist() -> None:
    """Prometheus does not start when a rule file is missing."""
    files = read_yaml(PROMETHEUS / "prometheus.yml")["rule_files"]
    assert [] == [name for name in files if not (PROMETHEUS / name).exists()]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alerts_use_existing_metrics(alert: dict[str, Any]) -> None:
    """An alert on an unknown metric, label or value would never fire."""
    assert set() == named(alert["expr"]) - exposed()
    assert alert["annotations"]["summary"]
    assert [] == faults(alert["expr"], alert["annotations"]["summary"])


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ('sum by (endpoint) (increase(loyalty_webhook_messages_total{outcome="died"}[15m])) > 0', ""),
        ('sum by (query) (increase(loyalty_query_batches_total{query="accounts"}[10m])) == 0', ""),
        ("sum by (shop) (loyalty_query_rows_dropped_by_watermark_total) > 0", ""),
        ('(count(up{job="apis"} == 1) or vector(0)) == 0', ""),
        ('loyalty_ledger_gaps{query="loyalty"} > 0', ""),
        ("sum(loyalty_webhook_lag) > 0", "{{ $labels.endpoint }} is behind"),
        ("sum by (le) (loyalty_query_lag_records)", ""),
    ],
)
def test_a_wrong_label_or_value_is_detected(expression: str, text: str) -> None:
    """The test of alerts and panels would notice such an expression."""
    assert faults(expression, text)


@pytest.mark.program
@NEEDS_PROMTOOL
@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_at_the_right_time(cases: Path) -> None:
    """promtool evaluates the alerts on series of samples, and compares the labels and texts of those that fire."""  # noqa: D403  # a program's name
    subprocess.run([PROMTOOL, "test", "rules", cases], check=True)


def test_the_cases_of_alerts_have_real_series_and_miss_no_alert() -> None:
    """Each sample is of a metric that a process exposes, with all its labels. Each alert fires in a case."""
    tests = [test for path in CASES for test in read_yaml(path)["tests"]]
    series = {each["series"] for test in tests for each in test["input_series"]}
    for name, labels in re.findall(r"(\w+)\{(.*)\}", "\n".join(series)):
        bound = {"le"} if "_bucket" in name else set()
        assert labels_by_metric()[stem(name)] | bound == {*re.findall(r'(\w+)="', labels)}
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    assert {alert["alert"] for alert in alerts()} == {case["alertname"] for case in cases if "exp_alerts" in case}


@pytest.mark.program
@NEEDS_PROMTOOL
def test_without_processes_the_panels_of_health_show_zero(tmp_path: Path) -> None:
    """promtool can parse the expression of every panel. Without a sample, a panel shows no data, except these."""  # noqa: D403  # a program's name
    health = {"Instances", "Pipeline ready", "Ledger ready", "Dead notifications"}
    cases = [
        {
            "expr": target["expr"].replace("$__rate_interval", "20s"),
            "eval_time": "1m",
            "exp_samples": [{"labels": "{}", "value": 0}] if panel["title"] in health else [],
        }
        for path in DASHBOARDS
        for panel in panels(path)
        for target in panel["targets"]
    ]
    (file := tmp_path / "panels.yml").write_text(yaml.safe_dump({"tests": [{"promql_expr_test": cases}]}))
    subprocess.run([PROMTOOL, "test", "rules", file], check=True)


def test_each_process_says_when_it_started() -> None:
    """The alert `ProcessRestarts` counts these times. The pipeline and the webhooks use the global registry."""
    for registry in (REGISTRY, ApiMetrics().registry, LedgerMetrics().registry):
        assert b"\nprocess_start_time_seconds " in generate_latest(registry)


def test_every_alert_has_a_response() -> None:
    """The guide has one row for each alert, and for no other."""
    guide = (ROOT / "docs" / "how-to" / "respond-to-alerts.md").read_text(encoding="utf-8")
    assert [alert["alert"] for alert in alerts()] == re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)


def test_responses_to_callers_leave_out_internal_requests() -> None:
    """Probes, Prometheus and peers send most requests of a quiet system. They would hide the errors of callers."""
    expressions = [alert["expr"] for alert in alerts()]
    expressions += [target["expr"] for path in DASHBOARDS for panel in panels(path) for target in panel["targets"]]
    selectors = re.findall(r"loyalty_http_requests_total(\{.*?\}|)\[", " ".join(expressions))
    left_out = [{*names.split("|")} for names in re.findall(r'route!~"(.*?)"', " ".join(selectors))]
    assert [INTERNAL_PATHS] * len(selectors) == left_out


@EVERY_DASHBOARD
def test_panels_use_existing_metrics(dashboard: Path) -> None:
    """Every query of every panel uses metrics that the processes expose."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert set() == named(target["expr"]) - exposed()
            assert [] == faults(target["expr"], target.get("legendFormat", ""))


def test_dashboards_and_alerts_cover_the_exposed_metrics() -> None:
    """Each metric that a process exposes is on a dashboard or in an alert, apart from those for people alone."""
    shown = [target["expr"] for dashboard in DASHBOARDS for panel in panels(dashboard) for target in panel["targets"]]
    watched = {name for expression in [*shown, *(alert["expr"] for alert in alerts())] for name in named(expression)}
    by_eye = {"loyalty_store_position_offset", "loyalty_store_restored"}
    by_eye |= {"loyalty_store_ignored_records", "loyalty_store_applied_records"}
    by_eye |= {"loyalty_ledger_position", "loyalty_ledger_erased_accounts"}
    assert exposed() - by_eye == watched


@EVERY_DASHBOARD
def test_dashboards_can_be_provisioned(dashboard: Path) -> None:
    """Ids are unique, panels do not overlap, and the data source is the provisioned one."""
    (source,) = read_yaml(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    found = panels(dashboard)
    assert len(found) == len({panel["id"] for panel in found})
    assert {source["uid"]} == {target["datasource"]["uid"] for panel in found for target in panel["targets"]}
    cells = [
        (x, y)
        for panel in found
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_folders_are_mounted_where_grafana_looks() -> None:
    """The compose file mounts the dashboards where the provider looks. The data source is the Prometheus service."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    (provider,) = read_yaml(GRAFANA / "provisioning" / "dashboards" / "files.yml")["providers"]
    mounts = dict(volume.removesuffix(":ro").rsplit(":", 1) for volume in services["grafana"]["volumes"])
    assert provider["options"]["path"] == mounts["./infra/grafana/dashboards"]
    (source,) = read_yaml(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert source["url"].removeprefix("http://").partition(":")[0] in services


def test_spans_reach_the_viewer() -> None:
    """The receiver of the collector has the port of the compose file, and its exporter names the service of Jaeger."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    collector, jaeger = services["collector"], services["jaeger"]
    folder, mounted = collector["volumes"][0].removesuffix(":ro").split(":")
    (option,) = collector["command"]
    config = read_yaml(ROOT / folder / option.removeprefix(f"--config={mounted}/"))
    assert config["receivers"]["otlp"]["protocols"]["http"]["endpoint"].endswith(":4318")
    assert collector["ports"][0].endswith(":4318")
    assert "jaeger" == config["exporters"]["otlp/jaeger"]["endpoint"].partition(":")[0]
    assert collector["profiles"] == jaeger["profiles"] == services["grafana"]["profiles"]
    (pipeline,) = config["service"]["pipelines"].values()
    assert all(set(names) <= config[part].keys() for part, names in pipeline.items())
