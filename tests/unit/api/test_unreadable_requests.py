"""Requests and bodies that the API cannot read."""

import asyncio

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from uvicorn import Config
from uvicorn.server import ServerState

from api.http.server import LimitedProtocol
from tests.support.builders import problem_type

JSON = {"Content-Type": "application/json"}
KEYS = "/v1/stores/customer-balances/keys"
PATHS = pytest.mark.parametrize("path", ["/v1/customers/A/redemptions", "/v1/transfers", "/v1/simulate", KEYS])


@PATHS
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"hello", "it is not JSON at line 1, column 1: Expecting value"),
        (b'{\n "points": }', "it is not JSON at line 2, column 12: Expecting value"),
        (b'{"points": "1', "it is not JSON at line 1, column 12: Unterminated string starting"),
        (b"\xff", "the byte 0xFF at line 1, column 1 is not UTF-8"),
        ('{\n"é": "'.encode() + b"\xe9", "the byte 0xE9 at line 2, column 7 is not UTF-8"),
        (b'\xef\xbb\xbf{"points": "1"}', "it starts with a byte order mark"),
        ('{"points": "1"}'.encode("utf-16"), "the byte 0xFF at line 1, column 1 is not UTF-8"),
        (b'{"points": "1", "points": "2"}', "it has the member 'points' twice"),
        (b'{"a": [{"b": 1, "\\u0062": 1}]}', "it has the member 'b' twice"),
        (b'{"points": NaN}', "NaN is not a number in JSON"),
        (b'{"points": -Infinity}', "-Infinity is not a number in JSON"),
        pytest.param(
            b'{"a": [{%s}]}' % b",".join(b'"%d":0' % number for number in range(1_001)),
            "an object has 1,001 members, and at most 1,000 are allowed",
            id="1,001 members",
        ),
        (b"[" * 15_000, "it is nested too deeply"),
        (b"1" * 5_000, "a number has too many digits"),
    ],
)
def test_a_body_that_is_no_json_is_unreadable(client: TestClient, path: str, body: bytes, reason: str) -> None:
    """400 gives the reason and the place, from line 1 and column 1. A member that is given twice is not clear."""
    answer = client.post(path, content=body, headers={**JSON, "Idempotency-Key": "k"})

    assert "unreadable-body" == problem_type(answer, 400)
    assert reason == answer.json()["reason"]
    assert reason in answer.json()["detail"]


@pytest.mark.parametrize("item", [b"[]", b'{"":{}}'], ids=["lists", "objects"])
@pytest.mark.parametrize("path", ["/v1/simulate", KEYS])
def test_too_many_lists_or_objects_are_not_parsed(client: TestClient, path: str, item: bytes) -> None:
    """The parser needs a second for a million, and the instance answers nobody in this time. The body is no JSON."""
    answer = client.post(path, content=b'{"keys":[' + b",".join([item] * 50_000), headers=JSON)

    assert "unreadable-body" == problem_type(answer, 400)
    assert "it has more than 50,000 characters [ and {" == answer.json()["reason"]


def test_the_largest_basket_is_readable(client: TestClient) -> None:
    """It has 10,000 lines, and a till may send members that the API ignores."""
    line = {"ItemCode": "458", "TotalValue": 1.5, "more": [{}]}
    answer = client.post("/v1/simulate", json={"TotalAmount": 1, "InvoiceLineItems": [line] * 10_000})

    assert "unreadable-body" not in answer.text
    assert answer.status_code in {200, 503}


def test_no_read_has_a_body(client: TestClient) -> None:
    """Nothing limits the size of such a body, if its length is not announced."""
    paths = client.get("/openapi.json").json()["paths"]
    assert [] == [path for path, item in paths.items() if "requestBody" in item.get("get", {})]


@PATHS
@pytest.mark.parametrize("declared", [{}, {"Content-Type": "text/plain"}], ids=["nothing", "text"])
def test_json_must_be_declared(client: TestClient, path: str, declared: dict[str, str]) -> None:
    """415 says which header to send."""
    answer = client.post(path, content=b'{"points":"1"}', headers={**declared, "Idempotency-Key": "k"})

    assert "not-json" == problem_type(answer, 415)
    assert "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1/customers/%s/balance HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * 100_000),
        b"hello\r\n\r\n",
        b"GET /v1/customers/K%E4the/balance HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/stores/stores/range?prefix=%FF HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/customers/A/balance%0A HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/stores/customer-balances/keys/A%0a?x=1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"DELETE /v1/customers/A#1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=[
        "a path of 100,000 characters",
        "no HTTP",
        "a path in Latin-1",
        "a query in no encoding",
        "a line feed at the end",
        "a line feed before the query",
        "the card A#1, which would be A",
    ],
)
def test_bytes_that_are_no_request_get_a_problem(request_bytes: bytes) -> None:
    """The server itself responds to them, and ends the connection."""

    async def response() -> bytes:
        loop, config, state = asyncio.get_running_loop(), Config(FastAPI(), log_config=None), ServerState()
        config.load()
        server = await loop.create_server(lambda: LimitedProtocol(config, state, {}), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(request_bytes)
            answer = await reader.read()
            writer.close()
            return answer

    head, _, body = asyncio.run(asyncio.wait_for(response(), 10)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    assert f"content-length: {len(body)}".encode() in head
    assert b"urn:problem-type:loyalty:unreadable-request" in body


def test_the_document_has_this_problem_for_each_request(client: TestClient) -> None:
    """Requests that can get another problem of status 400 also have it."""
    paths = client.get("/openapi.json").json()["paths"]
    operations = [each for path, item in paths.items() if path.startswith("/v1/") for each in item.values()]
    problems = [each["responses"]["400"]["content"]["application/problem+json"]["examples"] for each in operations]
    assert all("unreadable-request" in each for each in problems)


WINDOWS = "/v1/stores/store-sales/windows/S1"
_NO_TIME = "must be a time with a time zone, for example 2026-01-31T09:30:00Z, or milliseconds since 1970"
_RETURN = "must be missing: returns and exchanges cannot be simulated"


@pytest.mark.parametrize(
    ("method", "path", "body", "errors"),
    [
        (
            "GET",
            "/v1/customers/A/balance?minSequence=1.0",
            None,
            {"minSequence": "must be a whole number, for example 42"},
        ),
        ("GET", "/v1/customers/A/balance?minSequence=1&minSequence=1", None, {"minSequence": "is given twice"}),
        ("GET", "/v1/customers/A/balance?timeout=31", None, {"timeout": "must be less than or equal to 30"}),
        ("GET", "/v1/customers/A/balance?timeout=x", None, {"timeout": "must be a number"}),
        ("GET", "/v1/stores/customer-balances/count?maxLag=1&maxLag=2", None, {"maxLag": "is given twice"}),
        ("GET", f"/v1/customers/{'9' * 129}/balance", None, {"card": "must have at most 128 characters"}),
        ("POST", "/v1/customers/A/redemptions", {}, {"points": "is missing"}),
        ("POST", "/v1/customers/A/redemptions", {"points": "1", "x": 1}, {"x": "is unknown"}),
        ("POST", "/v1/customers/A/redemptions", [], {"body": "must be an object"}),
        ("POST", "/v1/customers/A/redemptions", {"points": "0"}, {"points": "must not be 0"}),
        ("POST", "/v1/customers/A/redemptions", {"points": "1", "reason": 1}, {"reason": "must be a text"}),
        ("POST", "/v1/simulate", {"TotalAmount": "1"}, {"TotalAmount": "must be a number"}),
        (
            "POST",
            "/v1/simulate",
            {"TotalAmount": 1, "InvoiceLineItems": [{"TotalValue": -1e11}, None]},
            {
                "InvoiceLineItems.0.TotalValue": "must be greater than -100000000000",
                "InvoiceLineItems.1": "must be an object",
            },
        ),
        ("POST", KEYS, {"keys": "A"}, {"keys": "must be a list"}),
        ("POST", KEYS, {"keys": ["A"] * 1001}, {"keys": "must have at most 1000 items, not 1001"}),
        ("POST", KEYS, {"keys": ["A"], "x": 1}, {"x": "is unknown"}),
        ("GET", f"{WINDOWS}?from=x&to=2026-11-23T00:00:00", None, {"from": _NO_TIME, "to": _NO_TIME}),
        (
            "GET",
            f"{WINDOWS}?from=2026-11-23T00:00:00+05:30&to=1",
            None,
            {"from": f"{_NO_TIME}; write + as %2B in a query"},
        ),
        ("POST", "/v1/simulate", {"TotalAmount": 1, "OriginalInvoiceNumber": "7"}, {"OriginalInvoiceNumber": _RETURN}),
    ],
)
def test_each_error_has_our_message(
    client: TestClient, method: str, path: str, body: object, errors: dict[str, str]
) -> None:
    """The messages are not those of a library. The detail names the whole path to the value."""
    answer = client.request(method, path, json=body, headers={"Idempotency-Key": "k"})

    assert "invalid-parameters" == problem_type(answer, 422)
    assert "; ".join(f"{path}: {reason}" for path, reason in errors.items()) == answer.json()["detail"]
    assert [*errors.values()] == [each["reason"] for each in answer.json()["errors"]]


def test_a_response_has_a_hundred_errors_at_most(client: TestClient) -> None:
    """A small query or body can have many more. A client corrects the first ones first."""
    names = [str(number) for number in range(101)]
    for answer in (
        client.get(f"/v1/customers/A/balance?{'=&'.join(names)}="),
        client.post(KEYS, json=dict.fromkeys(names, 0)),
    ):
        assert "invalid-parameters" == problem_type(answer, 422)
        assert 100 == len(answer.json()["errors"])


def test_a_key_with_other_characters_is_named(client: TestClient) -> None:
    """The error describes the characters, and does not show the pattern."""
    headers = {"Idempotency-Key": "café".encode()}
    answer = client.post("/v1/customers/A/redemptions", json={"points": "1"}, headers=headers)

    assert "idempotency-key: must have printable ASCII characters only" == answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2", 404), ("GET", "/v1/stores/", 404), ("PUT", "/v1/simulate", 405)],
)
def test_the_error_of_an_unknown_path_or_method_says_what_to_do(
    client: TestClient, method: str, path: str, status: int
) -> None:
    """The error does not only say that it was not found."""
    answer = client.request(method, path)

    kind = {404: "unknown-route", 405: "method-not-allowed"}[status]
    assert kind == problem_type(answer, status)
    assert {404: "/openapi.json has all paths", 405: "Use a method in the header Allow"}[status] in answer.json()[
        "detail"
    ]
    assert (status == 405) == ("Allow" in answer.headers)
