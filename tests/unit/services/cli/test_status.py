"""`loyalty status`: services.cli.status, services.status and services.status_figures."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from services.cli import app
from services.cli.status import instances_table
from services.messaging.publishing import PublishError
from services.settings import Settings
from services.status import default_urls, status_of
from services.status_figures import QueryWork, Status, rates_between
from tests.support.http_server import QuietHandler, serving

INSTANCE = {
    "url": "http://127.0.0.1:8080",
    "self": True,
    "reachable": True,
    "partitions": [
        {"store": "customer-balances", "partition": 0, "role": "active", "lag": 3, "restored": True},
        {"store": "customer-balances", "partition": 2, "role": "standby", "lag": 4, "restored": True},
        {"store": "stores", "partition": 0, "role": "active", "lag": 1_500, "restored": False}
        | {"position": 500, "endOffset": 2_000},
    ],
}
METRICS = """
loyalty_query_position{partition="0",query="fan-out",topic="t-pos-invoices"} 10.0
loyalty_query_position{partition="1",query="fan-out",topic="t-pos-invoices"} 4.0
loyalty_query_position{partition="0",query="loyalty",topic="t-pos-invoices"} 15.0
loyalty_query_position{partition="1",query="loyalty",topic="t-pos-invoices"} 12.0
loyalty_query_lag_records{partition="0",query="fan-out",topic="t-pos-invoices"} 0.0
loyalty_ledger_position{partition="0",topic="t-loyalty"} 8.0
loyalty_webhook_lag{endpoint="crm",topic="t-loyalty"} 2.0
loyalty_ledger_lag_records{partition="0"} 0.0
# TYPE loyalty_balance_freshness_seconds histogram
loyalty_balance_freshness_seconds_bucket{le="0.5"} 10.0
loyalty_balance_freshness_seconds_bucket{le="1.0"} 98.0
loyalty_balance_freshness_seconds_bucket{le="2.5"} 100.0
loyalty_balance_freshness_seconds_bucket{le="+Inf"} 100.0
"""

authorizations: set[tuple[str, str | None]] = set()
"""The paths and the header Authorization of the requests of a test."""


@pytest.fixture
def answers() -> Iterator[dict[str, tuple[int, str]]]:
    """A process that answers these paths. A test can change the answers."""
    found = {
        "/metrics": (200, METRICS),
        "/readyz": (200, json.dumps({"ready": True, "kafkaError": None})),
        "/v1/instances": (200, json.dumps({"instances": [INSTANCE]})),
        "/v1/dead-letters?limit=1": (200, json.dumps({"reasons": {f"reason {n}": 20 - n for n in range(10)}})),
    }

    authorizations.clear()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            authorizations.add((self.path, self.headers["Authorization"]))
            status, body = found[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

    with serving(Handler) as url:
        found["url"] = (httpx.URL(url).port or 0, "")
        yield found


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose topics have ten records in each of two partitions."""

    class Consumer:
        def list_topics(self, timeout: float) -> SimpleNamespace:
            return SimpleNamespace(topics={})

        def close(self) -> None:
            """The test ends."""

    monkeypatch.setattr("services.messaging.clients.consumer", lambda *_, **__: Consumer())
    monkeypatch.setattr("services.status.watermarks_of", lambda *_: {0: (5, 15), 1: (0, 10)})


def status(answers: dict[str, tuple[int, str]], *options: str, **environment: str) -> Result:
    url = f"http://127.0.0.1:{answers['url'][0]}"
    urls = ["--api", url, "--pipeline", f"{url}/", "--ledger", url]
    variables = {"LOYALTY_TOPIC_PREFIX": "t-", "LOYALTY_WEBHOOKS_FILE": "none", "LOYALTY_PIPELINE_DRIVERS": "1"}
    return CliRunner().invoke(app, ["status", *urls, *options], env=variables | environment)


def test_the_status_has_parts_topics_instances_dead_letters_and_freshness(answers: dict[str, tuple[int, str]]) -> None:
    """The lag of a reader is the sum of its partitions. The figures come from the processes and from Kafka. While the
    ledger cannot append, its own metric of its lag is old. A reader has read records that came after Kafka's answer.
    """
    result = status(answers, "--json")

    assert 0 == result.exit_code
    found = json.loads(result.stdout)
    assert ["kafka", "api", "pipeline", "ledger"] == [part["name"] for part in found["parts"]]
    assert {None} == {part["problem"] for part in found["parts"]}
    topics = {topic["name"]: topic for topic in found["topics"]}
    assert {"query fan-out": 33, "query loyalty": 0} == topics["pos-invoices"]["lag"]
    assert {"ledger": 21, "webhook crm": 6} == topics["loyalty"]["lag"]
    assert 20 == found["dead_letters"] == topics["dead-letters"]["records"]
    assert [INSTANCE] == found["instances"]
    assert ({"0.5": 1.0, "0.99": 2.5}, 100) == (found["freshness_seconds"], found["freshness_balances"])


def test_an_instance_that_does_not_answer_gives_status_1(answers: dict[str, tuple[int, str]]) -> None:
    """A script sees it, although the instance that was asked works."""
    lost = INSTANCE | {"url": "http://127.0.0.1:8081", "self": False, "reachable": False, "partitions": []}
    answers["/v1/instances"] = (200, json.dumps({"instances": [INSTANCE, lost]}))

    result = status(answers, "--json")

    assert 1 == result.exit_code
    assert {None} == {part["problem"] for part in json.loads(result.stdout)["parts"]}


def test_the_counts_of_all_time_include_what_retention_has_deleted(answers: dict[str, tuple[int, str]]) -> None:
    """Otherwise a rate would fall when Kafka deletes records. A query has several counts."""
    answers["/metrics"] = (
        200,
        'loyalty_query_input_rows_total{query="q"} 9\nloyalty_query_batches_total{query="q"} 3\n',
    )

    found = status_of(Settings(), {"pipeline": f"http://127.0.0.1:{answers['url'][0]}", "api": "http://127.0.0.1:1"})

    assert (25, 20) == (found.appended["pos-invoices"], found.records["pos-invoices"])
    assert {"q": QueryWork(9, 3, 0)} == found.work


def test_without_a_dead_letter_their_number_is_known(
    answers: dict[str, tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.status.watermarks_of", lambda *_: {0: (5, 5)})
    assert "dead letters: 0" in status(answers).stdout


def test_a_slow_balance_is_beyond_the_last_limit(answers: dict[str, tuple[int, str]]) -> None:
    """Its age is null in JSON, which has no infinity. Without balances there is no freshness."""
    slow = METRICS.replace('{le="+Inf"} 100.0', '{le="+Inf"} 200.0')
    answers["/metrics"] = (200, slow)
    assert {"0.5": 2.5, "0.99": None} == json.loads(status(answers, "--json").stdout)["freshness_seconds"]
    assert "50% at most 2.5 s, 99% more than 2.5 s" in status(answers).stdout.replace("\n", " ")

    answers["/metrics"] = (200, "loyalty_pipeline_ready 1.0\n")
    assert {} == json.loads(status(answers, "--json").stdout)["freshness_seconds"]
    assert "freshness" not in status(answers).stdout


def test_without_json_the_command_prints_tables(answers: dict[str, tuple[int, str]]) -> None:
    """They have the partitions of the balances of each instance, and the lag of all its stores."""
    shown = status(answers).stdout
    instances: Any = instances_table(SimpleNamespace(instances=[INSTANCE]))  # type: ignore[arg-type]  # the rest is empty
    cells = [next(iter(column.cells)) for column in instances.columns]

    assert "50% at most 1 s, 99% at most 2.5 s after Kafka stored" in shown.replace("\n", " ")
    assert "(100 balances since the start" in shown.replace("\n", " ")
    assert "query fan-out: 33, query loyalty: 0" in shown
    assert all(text in shown for text in ("dead letters: 20", "answers", "stores 0: 500 of 2,000"))
    assert [INSTANCE["url"], "answers", "0", "2", "stores 0: 500 of 2,000"] == cells[:-1]
    assert "1,507" == cells[-1]


@pytest.mark.parametrize(
    ("path", "answer", "part", "problem"),
    [
        ("/readyz", (503, '{"ready": false}'), "api", "restores its stores"),
        ("/readyz", (200, '{"ready": true, "kafkaError": "Kafka: away"}'), "api", "Kafka: away"),
        ("/readyz", (503, '{"ready": false, "trouble": "the database is away"}'), "ledger", "the database is away"),
        ("/readyz", (503, '{"ready": false, "trouble": "the queries start"}'), "pipeline", "the queries start"),
        ("/metrics", (500, "an error"), "pipeline", "answers with status 500"),
    ],
)
def test_a_part_that_does_not_work_says_why_and_the_exit_status_is_1(
    answers: dict[str, tuple[int, str]], path: str, answer: tuple[int, str], part: str, problem: str
) -> None:
    """Other parts are still shown."""
    answers[path] = answer

    result = status(answers, "--json")

    assert 1 == result.exit_code
    assert problem in {each["problem"] for each in json.loads(result.stdout)["parts"] if each["name"] == part}


@pytest.mark.parametrize("prefix", ["", "other-"])
def test_a_part_of_another_deployment_has_no_lag(answers: dict[str, tuple[int, str]], prefix: str) -> None:
    """Two deployments on one machine have the same ports by default. The lag of the other one would say nothing."""
    found = json.loads(status(answers, "--json", LOYALTY_TOPIC_PREFIX=prefix).stdout)

    problems = {each["name"]: each["problem"] for each in found["parts"]}
    assert all("another deployment" in problems[name] for name in ("pipeline", "ledger"))
    assert [{}] * len(found["topics"]) == [topic["lag"] for topic in found["topics"]]


@pytest.mark.parametrize("code", [401, 403])
def test_an_api_that_refuses_the_request_says_which_key_it_needs(
    answers: dict[str, tuple[int, str]], code: int
) -> None:
    answers["/metrics"] = (code, "refused")

    problems = {each["name"]: each["problem"] for each in json.loads(status(answers, "--json").stdout)["parts"]}

    assert "LOYALTY_API_KEY_FILE" in problems["api"]
    assert "scope operate" in problems["api"]
    assert code == 403 or "LOYALTY_METRICS_KEY_FILE" in problems["pipeline"]


def test_each_part_receives_its_own_key(
    answers: dict[str, tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API receives the API key, and the other parts the first key of their metrics."""
    (tmp_path / "key").write_text("lk_text\n")
    (tmp_path / "metrics").write_text("first\nsecond\n")
    monkeypatch.setenv("LOYALTY_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("LOYALTY_METRICS_KEY_FILE", str(tmp_path / "metrics"))

    assert 0 == status(answers).exit_code

    api, metrics = "Bearer lk_text", "Bearer first"
    assert {("/v1/instances", api), ("/metrics", api), ("/metrics", metrics)} <= authorizations
    assert {api, metrics} == {sent for _, sent in authorizations}
    assert ("/v1/instances", metrics) not in authorizations


def test_without_kafka_the_rest_is_shown(answers: dict[str, tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing topic or an absent broker is a problem of Kafka. The number of dead letters is then not known. The
    search for a missing topic takes seconds, so it happens once.
    """
    asked = []

    def fail(_: object, topic: str) -> None:
        asked.append(topic)
        raise PublishError("topic t-pos-invoices: no such topic")

    monkeypatch.setattr("services.status.watermarks_of", fail)
    result = status(answers)

    assert 1 == result.exit_code
    assert "topic t-pos-invoices: no such topic" in result.stdout
    assert "dead letters: not known" in result.stdout
    assert ["t-pos-invoices"] == asked


def test_rates_come_from_two_moments() -> None:
    """Records and micro-batches between the moments count. A process that has started again counts from its start. A
    query that was not known before has no rate.
    """
    bounds = (1.0, 2.0, float("inf"))
    before = {"loyalty": QueryWork(10, 2, 4.0), "sales": QueryWork(9, 9, 9), "slow": QueryWork()}
    after = {
        "loyalty": QueryWork(50, 4, 7.0),
        "sales": QueryWork(3, 0, 0),
        "slow": QueryWork(8),
        "new": QueryWork(9, 9),
    }
    first = Status(100.0, [], {"hadoop": 10}, before, dict.fromkeys(bounds, 5), {}, [], [])
    second = Status(104.0, [], {"hadoop": 30, "new": 7}, after, dict(zip(bounds, (5, 9, 9), strict=True)), {}, [], [])

    rates = rates_between(first, second)

    assert {"hadoop": 5.0, "new": 0.0} == rates.topics
    assert {"loyalty": 10.0, "sales": 0.0, "slow": 2.0, "new": 0.0} == rates.queries
    assert {"loyalty": 1.5} == rates.batch_seconds
    assert rates.freshness is not None
    assert (4, 2.0) == (rates.freshness.balances, rates.freshness.within[0.5])
    restarted = rates_between(second, replace(first, time=108.0))
    assert ({"hadoop": 0.0}, 0.0, None) == (restarted.topics, restarted.queries["loyalty"], restarted.freshness)
    assert {"hadoop": 0.0} == rates_between(first, first).topics
    answered = rates_between(replace(first, balances={}), second).freshness
    assert answered is not None
    assert 9 == answered.balances


def test_a_part_that_does_not_run_does_not_answer(answers: dict[str, tuple[int, str]]) -> None:
    """The message is in plain words, and not Python's text of an error."""
    found = json.loads(status(answers, "--json", "--pipeline", "http://127.0.0.1:1").stdout)

    assert {"pipeline": "no answer: Connection refused"} == {
        part["name"]: part["problem"] for part in found["parts"] if part["problem"]
    }


def test_the_second_driver_is_a_part_where_there_is_one(answers: dict[str, tuple[int, str]]) -> None:
    """The option names its URL. Without the option, the settings say whether there is a second driver."""
    found = json.loads(status(answers, "--json", "--background", "http://127.0.0.1:1").stdout)

    assert {"name": "background", "address": "http://127.0.0.1:1", "problem": "no answer: Connection refused"} in found[
        "parts"
    ]
    assert "background" in default_urls(Settings(pipeline_drivers=2))
    assert "background" not in default_urls(Settings(pipeline_drivers=1))


def test_parts_on_other_hosts_have_the_urls_of_the_settings() -> None:
    """The API of a container has no pipeline on its own host."""
    elsewhere = Settings(pipeline_drivers=1, status_urls="pipeline=http://pipeline:1/a=b webhooks=https://hooks/")

    assert {
        "api": "http://127.0.0.1:8080",
        "pipeline": "http://pipeline:1/a=b",
        "ledger": "http://127.0.0.1:9109",
        "webhooks": "https://hooks",
    } == default_urls(elsewhere)


@pytest.mark.parametrize("urls", ["pipeline", "pipeline=localhost:9108", "api=http://api:8080"])
def test_a_wrong_setting_of_urls_is_refused(urls: str) -> None:
    with pytest.raises(ValueError, match="status_urls"):
        Settings(status_urls=urls)


@pytest.mark.parametrize("command", ["status", "top", "audit"])
def test_a_wrong_url_is_refused(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--api", "localhost:8080"])

    assert 2 == result.exit_code
    assert "Invalid value for --api: 'localhost:8080' is not a URL" in result.output


def test_the_status_names_an_unusable_authority(answers: dict[str, tuple[int, str]], tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("x")

    result = status(answers, LOYALTY_API_CA_FILE=str(file))

    assert 2 == result.exit_code
    assert f"cannot use {file} as PEM" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_top_shows_the_status_at_each_update(
    answers: dict[str, tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second update has rates, which are 0 here. Without a terminal each update is printed. It has everything that
    the overview of the console has.
    """
    monkeypatch.setattr("services.cli.top.time.sleep", lambda _: None)
    url = f"http://127.0.0.1:{answers['url'][0]}"
    environment = {"LOYALTY_TOPIC_PREFIX": "t-", "LOYALTY_STATUS_URLS": f"ledger={url}"}
    arguments = ["top", "--api", url, "--pipeline", url]
    result = CliRunner().invoke(app, [*arguments, "--count", "2"], env=environment)
    assert 0 == result.exit_code, result.output
    assert 2 == result.stdout.count("Ctrl-C ends")
    assert "customer" not in result.stdout
    for text in ("pos-invoices", "50% at most", "dead letters: 20", "http://127.0.0.1:8080", "stores 0: 500 of 2,000"):
        assert text in result.stdout
    assert "ledger: 21, webhook crm: 6" in result.stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines()]
    assert 2 == rows.count(["reason 7", "13"]) == rows.count(["others", "23"])
    as_json = json.loads(CliRunner().invoke(app, [*arguments, "--json"], env=environment).stdout)
    assert 0.0 == as_json["rates"]["topics"]["pos-invoices"]
    assert 20 == as_json["dead_letter_reasons"]["reason 0"]
    assert {"parts", "instances", "dead_letters"} <= as_json.keys()


def test_top_knows_no_lag_without_a_topic(answers: dict[str, tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cell is not 0, also if the lag in another topic of the query is known. Balances that are later than the
    last limit of the histogram are still shown.
    """

    def watermarks(_: object, topic: str) -> dict[int, tuple[int, int]]:
        if topic == "t-loyalty-commands":
            raise PublishError("topic t-loyalty-commands: no such topic")
        return {0: (0, 0)}

    monkeypatch.setattr("services.status.watermarks_of", watermarks)
    work = 'loyalty_query_batches_total{query="fan-out"} 1.0\n'
    work += 'loyalty_query_position{partition="0",query="fan-out",topic="t-loyalty-commands"} 0.0\n'
    answers["/metrics"] = (200, METRICS.replace('{le="+Inf"} 100.0', '{le="+Inf"} 20000.0') + work)
    url = f"http://127.0.0.1:{answers['url'][0]}"
    environment = {"LOYALTY_TOPIC_PREFIX": "t-"}

    shown = CliRunner().invoke(app, ["top", "--count", "1", "--api", url, "--pipeline", url], env=environment).stdout

    assert "50% more than 2.5 s" in shown
    (row,) = [line for line in shown.splitlines() if "fan-out" in line]
    assert "0" not in row
