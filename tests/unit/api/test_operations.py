"""Health, metrics, problems of the framework, and the OpenAPI document."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from tests.support.clusters import Instance
from tests.support.openapi import schema_of, settings_of_requests

PROBLEM = "application/problem+json"


def test_livez_is_200_while_the_feed_lives(client: TestClient, feed: Any) -> None:
    """It is 503 when the feed is dead."""
    assert client.get("/livez").json() == {"alive": True}
    feed.alive = False

    assert client.get("/livez").status_code == 503


def test_readyz_shows_the_progress(client: TestClient, feed: Any) -> None:
    """503 with the progress of each partition until all are restored, then 200. A dead feed is not ready."""
    assert client.get("/readyz").status_code == 503
    feed.open(target=1)
    feed.write("A", "1.00", 1)

    answer = client.get("/readyz")

    assert answer.status_code == 503
    assert answer.headers["content-type"] == PROBLEM
    assert [True, False, False] == sorted((each["restored"] for each in answer.json()["partitions"]), reverse=True)
    for task in feed.store.tasks.values():
        task.advance(1)
    body = client.get("/readyz").json()
    assert body["ready"] is True
    assert sum(each["entries"] for each in body["partitions"]) == 1
    assert all(each["lag"] == 0 for each in body["partitions"])
    feed.alive = False
    assert client.get("/readyz").status_code == 503


@pytest.mark.parametrize(("is_global", "status"), [(True, 503), (False, 200)])
def test_only_global_stores_that_are_restored_again_make_an_instance_not_ready(*, is_global: bool, status: int) -> None:
    """Each instance reads only its own copy of them. Other instances have copies of the other partitions."""
    instance = Instance()
    for store in instance.stores.values():
        for number in range(store.partitions):
            target = int(store.definition.is_global == is_global)
            instance.hold((store.definition.changelog.name, number), target=target)
    with TestClient(instance.app, raise_server_exceptions=False) as client:
        assert status == client.get("/readyz").status_code


def test_readyz_stays_ready_without_kafka(client: TestClient, feed: Any) -> None:
    """The details show a lost broker. Balances are still served."""
    feed.open()
    feed.kafka_error = "all brokers down"

    answer = client.get("/readyz")

    assert (answer.status_code, answer.json()["kafkaError"]) == (200, "all brokers down")
    assert "loyalty_changelogs_followed 0.0" in client.get("/metrics").text


def test_metrics_have_route_templates_and_no_cards(client: TestClient, feed: Any) -> None:
    """Labels have route templates and status, and contain no card, raw path or unknown method."""
    feed.open()
    feed.write("9265846829", "1.00", 1)
    client.get("/v1/customers/9265846829/balance")
    client.get("/v1/customers/UNKNOWN-CARD/balance")
    client.get("/no/such/9265846829")
    client.request("BREW", "/livez")

    text = client.get("/metrics").text

    route = 'route="/v1/customers/{card}/balance"'
    assert f'loyalty_http_requests_total{{method="GET",{route},status="200"}} 1.0' in text
    assert f'loyalty_http_requests_total{{method="GET",{route},status="404"}} 1.0' in text
    assert 'loyalty_http_requests_total{method="GET",route="unmatched",status="404"} 1.0' in text
    assert f'loyalty_http_request_duration_seconds_count{{method="GET",{route}}} 2.0' in text
    assert 'loyalty_store_entries{partition="' in text
    assert 'loyalty_store_rebuild_time_seconds{partition="' in text
    assert "loyalty_materialiser_alive 1.0" in text
    assert "loyalty_changelogs_followed 1.0" in text
    assert "loyalty_balance_freshness_seconds_bucket" in text
    assert not [word for word in ("9265846829", "UNKNOWN-CARD", "BREW") if word in text]


def test_each_app_has_metrics_of_its_own(client: TestClient) -> None:
    """The requests of another app of the process do not count."""
    with TestClient(Instance().app) as other:
        other.get("/livez")
        assert "loyalty_http_requests_total{" in other.get("/metrics").text
    assert "loyalty_http_requests_total{" not in client.get("/metrics").text


def test_errors_of_the_framework_are_problems(client: TestClient) -> None:
    """404, 405 (with Allow) and 500 are problem+json. A 500 has no details."""
    app = client.app
    assert isinstance(app, FastAPI)

    @app.get("/fails")
    async def fails() -> None:
        raise ZeroDivisionError("secret")

    unknown, wrong_method, failed = client.get("/nowhere"), client.post("/livez"), client.get("/fails")

    assert [404, 405, 500] == [each.status_code for each in (unknown, wrong_method, failed)]
    assert {PROBLEM} == {each.headers["content-type"] for each in (unknown, wrong_method, failed)}
    assert wrong_method.headers["allow"] == "GET, HEAD"
    assert failed.json()["type"] == "urn:problem-type:loyalty:internal-error"
    assert "secret" not in failed.text


def test_the_feed_runs_as_long_as_the_app(feed: Any, client: TestClient) -> None:
    """The app starts its feed and stops it at the end."""
    assert feed.events == ["start"]
    client.__exit__()

    assert feed.events == ["start", "stop"]
    client.__enter__()


def test_openapi_documents_every_error_with_an_example(client: TestClient) -> None:
    """Every route has a summary, a description and tags. Every error is a Problem with an example of its type."""
    document = client.get("/openapi.json").json()
    operations = {
        (method, path): operation for path, item in document["paths"].items() for method, operation in item.items()
    }

    assert {"/v1/customers/{card}/balance", "/v1/instances", "/livez", "/readyz", "/metrics"} <= {
        path for _, path in operations
    }
    for operation in operations.values():
        assert operation["summary"]
        assert operation["description"]
        assert operation["tags"]
        for status, response in operation["responses"].items():
            if status >= "400":
                examples = response["content"][PROBLEM]["examples"]
                assert examples
                assert all(example["value"]["type"].endswith(name) for name, example in examples.items())
    look_up = operations["get", "/v1/customers/{card}/balance"]
    assert {"200", "304", "400", "404", "410", "421", "422", "502", "503", "504"} == look_up["responses"].keys()
    assert set(document["components"]["schemas"]) >= {"Balance", "Problem", "Readiness"}


def would_wait(query: Any) -> bool:
    """Whether the server accepts this timeout. Refused timeouts are part of the test."""
    try:
        return 0 < float(query["timeout"]) <= 30
    except (KeyError, TypeError, ValueError):
        return False


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_answers_keep_to_the_openapi_document(client: TestClient, feed: Any, mode: GenerationMode) -> None:
    """Schemathesis finds no answer that the document does not describe, for valid and for invalid requests."""
    feed.open()
    feed.write("0", "1.00", 1)
    operation = schema_of(client.app)["/v1/customers/{card}/balance"]["GET"]

    @settings_of_requests(60)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if would_wait(case.query):
            del case.query["timeout"]
        response = case.call()
        assert response.status_code != 500
        # A documented 503 (the sequence is not reached yet) is a correct response.
        case.validate_response(response, excluded_checks=[not_a_server_error])

    check()
