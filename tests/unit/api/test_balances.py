"""GET /v1/customers/{card}/balance."""

import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.support.builders import plain_balance, problem_type

Write = Callable[[str, str, int], None]


def problem(response: Any, status: int) -> dict[str, Any]:
    """Check what all problems have in common, and return the body."""
    assert status == response.status_code
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert {"type", "title", "detail"} <= body.keys()
    return body


def test_the_response_has_the_balance(client: TestClient, write: Write) -> None:
    """200 with exact points, sequence and time. In a record without account fields all points count as available."""
    write("9265846829", "417.04", 3)

    answer = client.get("/v1/customers/9265846829/balance")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["etag"] == '"3"'
    assert answer.json() == plain_balance("9265846829", "417.04", 3, "2023-11-14T22:13:20Z")


@pytest.mark.parametrize("card", ["a b", "é☕", "100%", 'q"\\', "a+b", "..."])
def test_any_card_that_fits_into_a_path_segment_is_found(client: TestClient, write: Write, card: str) -> None:
    """A percent-encoded card is decoded."""
    write(card, "1.00", 1)

    answer = client.get(f"/v1/customers/{quote(card, safe='')}/balance")

    assert answer.status_code == 200
    assert answer.json()["CustomerCardNo"] == card


@pytest.mark.usefixtures("write")
def test_an_unknown_customer_is_404(client: TestClient) -> None:
    """The problem unknown-customer differs from unknown-route."""
    assert problem_type(client.get("/v1/customers/nobody/balance"), 404) == "unknown-customer"
    assert problem_type(client.get("/v1/customers/nobody/balances"), 404) == "unknown-route"


@pytest.mark.parametrize(
    ("if_none_match", "status"),
    [('"3"', 304), ('W/"3"', 304), ('"1", "3"', 304), ("*", 304), ('"2"', 200), ("3", 200), ("", 200)],
)
def test_if_none_match_saves_the_body(client: TestClient, write: Write, if_none_match: str, status: int) -> None:
    """304 without a body if one of the tags is the current sequence. Otherwise 200."""
    write("A", "1.00", 3)

    answer = client.get("/v1/customers/A/balance", headers={"If-None-Match": if_none_match})

    assert answer.status_code == status
    assert (answer.content == b"") == (status == 304)
    assert answer.headers["etag"] == '"3"'


@pytest.mark.parametrize(("card", "sequence"), [("A", 2), ("new", 1)])
def test_long_poll_ends_with_the_write(client: TestClient, write: Write, card: str, sequence: int) -> None:
    """MinSequence waits for a later write, or for the first balance of a customer, and not longer."""
    write("A", "1.00", 1)
    later = threading.Timer(0.2, write, [card, "2.50", sequence])
    later.start()
    started = time.monotonic()

    answer = client.get(f"/v1/customers/{card}/balance?minSequence={sequence}&timeout=30")

    later.join()
    assert (answer.status_code, answer.json()["TotalLoyaltyPoints"]) == (200, "2.50")
    assert 0.1 < time.monotonic() - started < 15


@pytest.mark.parametrize(("card", "current"), [("A", 1), ("nobody", 0)])
def test_a_sequence_that_is_not_reached_is_503(client: TestClient, write: Write, card: str, current: int) -> None:
    """The problem has the current sequence after the timeout. The response is never an older balance."""
    write("A", "1.00", 1)

    answer = client.get(f"/v1/customers/{card}/balance?minSequence=2&timeout=0.05")

    body = problem(answer, 503)
    assert body["type"] == "urn:problem-type:loyalty:sequence-not-reached"
    assert (body["minSequence"], body["currentSequence"]) == (2, current)
    assert int(answer.headers["retry-after"]) >= 1


def test_an_older_account_does_not_satisfy_a_later_one(client: TestClient, write: Write) -> None:
    """Its sequence is reached, but another account is expected. The problem does not say that 1 is below 1."""
    write("A", "1.00", 1)

    body = problem(client.get("/v1/customers/A/balance?minSequence=1&openedTime=99999999999999"), 503)

    assert "of the account with this openedTime" in body["detail"]


@pytest.mark.usefixtures("write")
@pytest.mark.parametrize(
    "query",
    [
        "minSequence=-1",
        "minSequence=x",
        "minSequence=1.5",
        f"minSequence={2**63}",
        "timeout=-1",
        "timeout=31",
        "timeout=nan",
        "timeout=inf",
    ],
)
def test_a_bad_parameter_is_named(client: TestClient, query: str) -> None:
    body = problem(client.get(f"/v1/customers/A/balance?{query}"), 422)

    assert body["type"] == "urn:problem-type:loyalty:invalid-parameters"
    assert body["errors"][0]["in"] == ["query", query.partition("=")[0]]


def test_nothing_is_served_before_the_partition_is_open(client: TestClient) -> None:
    """503 starting, with Retry-After."""
    answer = client.get("/v1/customers/A/balance")

    assert problem_type(answer, 503) == "starting"
    assert int(answer.headers["retry-after"]) >= 1


def test_no_balance_is_served_while_the_partition_is_restored(client: TestClient, feed: Any) -> None:
    """503 restoring has the progress, although the balance exists already. At the target the status is 200."""
    feed.open(target=2)
    feed.write("A", "1.00", 1)

    answer = client.get("/v1/customers/A/balance")

    body = problem(answer, 503)
    assert body["type"] == "urn:problem-type:loyalty:restoring"
    assert body["restoredShare"] == 0.5
    assert int(answer.headers["retry-after"]) >= 1
    feed.write("A", "2.00", 2)
    assert client.get("/v1/customers/A/balance").json()["TotalLoyaltyPoints"] == "2.00"


def test_nothing_is_served_from_a_closed_store(client: TestClient, feed: Any, write: Write) -> None:
    """503 stopping, also for a long poll."""
    write("A", "1.00", 1)
    for task in feed.store.tasks.values():
        task.store.close()

    assert problem_type(client.get("/v1/customers/A/balance"), 503) == "stopping"
    assert problem_type(client.get("/v1/customers/A/balance?minSequence=2&timeout=1"), 503) == "stopping"
