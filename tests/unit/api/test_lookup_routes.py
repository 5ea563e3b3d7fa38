"""The fast path of reads of single keys."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from tests.support.builders import problem_type

Write = Callable[[str, str, int], None]

BALANCE = "/v1/customers/A%20b/balance"
KEY = "/v1/stores/customer-balances/keys/A%20b"


@pytest.fixture
def by_fastapi(client: TestClient) -> TestClient:
    """The same app without its fast path."""
    app: Any = client.app

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        await FastAPI.__call__(app, scope, receive, send)

    return TestClient(framework, raise_server_exceptions=False)


@pytest.mark.parametrize(
    "path",
    [
        BALANCE,
        KEY,
        "/v1/stores/customer-balances/local/keys/A%20b",
        "/v1/customers/nobody/balance",
        "/v1/stores/none/keys/A",
        f"/v1/customers/{'x' * 129}/balance",
        f"{BALANCE}?minSequence=3",
        f"{BALANCE}?minSequence=4",
        f"{BALANCE}?minSequence=9&minSequence=%33",
        f"{BALANCE}?minSequence=",
        f"{BALANCE}?minSequence=1.5",
        f"{BALANCE}?maxLag=0&timeout=0.0",
        f"{BALANCE}?maxLag=0&timeout=0.0&unknown=1",
        f"{KEY}?minsequence=99",
        f"{BALANCE}?openedTime=-1",
        f"{KEY}?erased=true",
        f"{KEY}?erased=perhaps",
    ],
)
@pytest.mark.parametrize("headers", [{}, {"If-None-Match": '"3"'}, {"Loyalty-Forwarded-To": "standby"}])
def test_responses_equal_those_of_fastapi(
    client: TestClient, by_fastapi: TestClient, write: Write, path: str, headers: dict[str, str]
) -> None:
    """Status, headers and body are equal for valid and invalid requests."""
    write("A b", "1.00", 3)

    expected, answer = by_fastapi.get(path, headers=headers), client.get(path, headers=headers)

    assert (expected.status_code, expected.content) == (answer.status_code, answer.content)
    assert sorted(expected.headers.items()) == sorted(answer.headers.items())


@pytest.mark.parametrize("second", ["*", '"3"'])
def test_two_lines_of_if_none_match_are_one_list(client: TestClient, write: Write, second: str) -> None:
    write("A b", "1.00", 3)

    assert 304 == client.get(BALANCE, headers=[("If-None-Match", '"a"'), ("If-None-Match", second)]).status_code


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_other_methods_are_refused(client: TestClient, method: str) -> None:
    """405 with the allowed methods."""
    answer = client.request(method, BALANCE)

    assert (405, "GET, HEAD") == (answer.status_code, answer.headers["allow"])


@pytest.mark.parametrize("path", [BALANCE, KEY, "/v1/customers/nobody/balance", f"{BALANCE}?minSequence=x", "/livez"])
@pytest.mark.parametrize("headers", [{}, {"If-None-Match": '"3"'}])
def test_head_is_get_without_the_body(client: TestClient, write: Write, path: str, headers: dict[str, str]) -> None:
    """Status and headers are equal, and so is the length of the body."""
    write("A b", "1.00", 3)

    expected, answer = client.get(path, headers=headers), client.head(path, headers=headers)

    assert (expected.status_code, expected.headers, b"") == (answer.status_code, answer.headers, answer.content)


def test_an_unknown_parameter_is_refused_with_the_known_ones(client: TestClient, write: Write) -> None:
    """A misspelled parameter is not ignored: 422 names it and the parameters of the path."""
    write("A b", "1.00", 3)

    for path in (BALANCE, "/v1/customers/A/entries", "/v1/stores", "/v1/stores/customer-balances/all"):
        answer = client.get(f"{path}?minsequence=99")
        (error,) = answer.json()["errors"]
        assert "invalid-parameters" == problem_type(answer, 422)
        assert ["query", "minsequence"] == error["in"]
        assert ("minSequence" in error["reason"]) == (path == BALANCE)
    assert 200 == client.get("/livez?probe=1").status_code


def test_an_unexpected_error_is_a_problem_and_is_counted(
    client: TestClient, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 500 without details, also in the metrics."""
    write("A b", "1.00", 3)

    def fails(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("api.http.responses.etag_of", fails)
    answer = client.get(BALANCE)

    assert answer.status_code == 500
    assert answer.json()["type"] == "urn:problem-type:loyalty:internal-error"
    assert "secret" not in answer.text
    counted = 'loyalty_http_requests_total{method="GET",route="/v1/customers/{card}/balance",status="500"} 1.0'
    assert counted in client.get("/metrics").text
