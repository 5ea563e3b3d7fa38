"""The validation of command requests, and its description in OpenAPI."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from schemathesis import GenerationMode

from schemas.topics import LOYALTY_BALANCES, LOYALTY_COMMANDS, LOYALTY_DECISIONS
from services import clock
from services.codecs.events import decode_event
from services.codecs.records import balance_record, decision_record
from services.domain.account.model import Account
from services.domain.account.processor import process
from services.domain.entries import Kind
from services.domain.programme import Programmes
from services.messaging.avro import Record, encoder
from tests.support.builders import CARD, IDS, problem_type
from tests.support.clusters import Instance, with_marks
from tests.support.loyalty_query import Scene
from tests.support.openapi import assert_responses_are_documented, schema_of

pytestmark = pytest.mark.anyio

PSEUDONYM = f"p1-{'a2' * 26}"
NOTHING = (b"", b" \n", b"{}", b"{ }")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("customers/A/redemptions", {}),
        ("customers/A/redemptions", {"points": 10}),
        *[
            ("customers/A/redemptions", {"points": points})
            for points in ["0", "0.00", "-1", "1.001", "1e3", "+1", "", " 1", "1.", ".5", "1" + 10 * "0", "NaN", "1\n"]
        ],
        ("customers/A/redemptions", {"points": "1", "capture": True}),
        ("customers/A/redemptions", {"points": "1", "reason": "x" * 501}),
        ("customers/A/redemptions", {"points": "1", "reason": "\ud800"}),
        ("customers/%20/redemptions", {"points": "1"}),
        (f"customers/{'x' * 129}/redemptions", {"points": "1"}),
        ("customers/A/redemptions?timeout=31", {"points": "1"}),
        ("customers/A/adjustments", {"points": "1", "actor": "me"}),
        ("customers/A/adjustments", {"points": "1", "actor": " ", "reason": "because"}),
        ("customers/A/adjustments", {"points": "1", "actor": "me", "reason": "because", "allowNegative": "yes"}),
        ("customers/A/adjustments", {"points": "-0", "actor": "me", "reason": "because"}),
        ("transfers", {"from": "A", "points": "1"}),
        ("transfers", {"from": "A", "to": " ", "points": "1"}),
        ("transfers", {"from": "A", "to": "B" * 129, "points": "1"}),
        ("transfers", {"from": "A", "to": "B ", "points": "1"}),
        ("customers/A/replacement", {"newCard": "B\N{NO-BREAK SPACE}", "actor": "me", "reason": "lost"}),
        *[
            ("customers/A/replacement", {"newCard": card, "actor": "me", "reason": "lost"})
            for card in ["47/11", "/", ".", ".."]
        ],
        ("customers/%20A/adjustments", {"points": "1", "actor": "me", "reason": "because"}),
        (f"customers/{PSEUDONYM}/adjustments", {"points": "1", "actor": "me", "reason": "because"}),
        ("customers/A/replacement", {"newCard": PSEUDONYM, "actor": "me", "reason": "lost"}),
        ("transfers", {"from": "A", "to": PSEUDONYM, "points": "1"}),
    ],
)
async def test_an_invalid_command_is_refused_before_it_is_sent(scene: Scene, path: str, body: dict[str, Any]) -> None:
    """422 names the parameter. Nothing is sent to Kafka."""
    answer = await scene.http.post(
        f"{scene.group.instances[0].url}/v1/{path}",
        content=json.dumps(body).encode(),  # httpx does not encode half a surrogate pair, but a client may
        headers={"Idempotency-Key": "k", "content-type": "application/json"},
    )
    assert "invalid-parameters" == problem_type(answer, 422)
    assert answer.json()["errors"]

    assert ([], []) == (scene.sent, scene.marks)


async def test_a_card_of_invisible_characters_only_is_blank(scene: Scene) -> None:
    """It has no start and no end that a client could repair."""
    body = {"from": "A", "to": "\N{ZERO WIDTH SPACE}", "points": "1"}
    answer = await scene.ask("POST", "/v1/transfers", body)
    assert ["must not be blank"] == [each["reason"] for each in answer.json()["errors"]]


async def test_the_idempotency_key_is_required_and_printable(scene: Scene) -> None:
    """400 without a key. 422 for a key that is empty, too long or not ASCII. 413 for a body that is too large."""
    assert "idempotency-key-missing" == problem_type(await scene.redeem(key=None), 400)  # type: ignore[arg-type]
    url = f"{scene.group.instances[0].url}/v1/customers/{CARD}/redemptions"
    for key in ("", "x" * 256, "café".encode(), b"a\x7f"):
        answer = await scene.http.post(url, json={"points": "1"}, headers={"Idempotency-Key": key})
        assert "invalid-parameters" == problem_type(answer, 422)
    huge = await scene.http.post(url, content=b"x" * 20_000, headers={"Idempotency-Key": "k"})
    assert ("body-too-large", 16_384) == (problem_type(huge, 413), huge.json()["limit"])

    async def drops() -> Any:
        for _ in range(20):
            yield b"x" * 1_000

    hidden = await scene.http.post(url, content=drops(), headers={"Idempotency-Key": "k"})
    assert "body-too-large" == problem_type(hidden, 413)

    assert ([], []) == (scene.sent, scene.marks)


@pytest.mark.parametrize(("route", "example"), [("redemptions", "12.50"), ("adjustments", "-12.50")])
@pytest.mark.parametrize("points", ["1.234", 10, "ten"])
def test_the_problem_of_wrong_points_shows_right_ones(
    client: TestClient, route: str, example: str, points: object
) -> None:
    """The reason is for people and is not a pattern. It says that points are a text."""
    body = {"points": points, "reason": "r", "actor": "a"}
    answer = client.post(f"/v1/customers/A/{route}", json=body, headers={"Idempotency-Key": "k"})

    assert "invalid-parameters" == problem_type(answer, 422)
    assert f'a number in quotes with at most two decimals, such as "{example}"' in answer.json()["detail"]


def test_negative_points_of_a_redemption_are_named(client: TestClient) -> None:
    """The text "-1.00" is a number in quotes, so the reason also says that it must be above 0."""
    answer = client.post("/v1/customers/A/redemptions", json={"points": "-1.00"}, headers={"Idempotency-Key": "k"})

    assert "above 0" in answer.json()["detail"]


def test_two_keys_are_refused(client: TestClient) -> None:
    """The API does not choose one of two keys. A repetition in another order would be a second command."""
    keys = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = client.post("/v1/customers/A/redemptions", json={"points": "1.00"}, headers=keys)

    assert "invalid-parameters" == problem_type(answer, 422)
    assert [{"in": ["header", "idempotency-key"], "reason": "is given twice"}] == answer.json()["errors"]


@pytest.mark.parametrize("body", [b'{"points":"0.50"}', b"garbage", b"[]"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "redemptions/R/capture"), ("POST", "redemptions/R/void"), ("DELETE", "customers/A")]
)
async def test_a_command_without_a_body_refuses_one(scene: Scene, method: str, path: str, body: bytes) -> None:
    """A client that asks for a part of the points must not get all of them. No body, blanks and ``{}`` are equal."""
    url, headers = f"{scene.group.instances[0].url}/v1/{path}", {"Idempotency-Key": "k"}
    answer = await scene.http.request(method, url, content=body, headers=headers)
    assert "invalid-parameters" == problem_type(answer, 422)
    assert "body: must be empty, because this path takes no body" == answer.json()["detail"]
    assert [] == scene.sent
    headers["Content-Type"] = "application/json"
    found = [(await scene.http.request(method, url, content=each, headers=headers)).status_code for each in NOTHING]
    assert [200 if method == "DELETE" else 404] * len(NOTHING) == found


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/customers/{card}/redemptions", "POST"),
        ("/v1/redemptions/{redemption}/capture", "POST"),
        ("/v1/redemptions/{redemption}/void", "POST"),
        ("/v1/customers/{card}/adjustments", "POST"),
        ("/v1/transfers", "POST"),
        ("/v1/customers/{card}", "DELETE"),
        ("/v1/commands/{command}", "GET"),
        ("/v1/simulate", "POST"),
    ],
)
def test_responses_match_the_openapi_document(path: str, method: str, mode: GenerationMode) -> None:
    """Schemathesis finds no response that the document does not describe, for valid and for invalid requests."""
    instance = Instance()
    instance.own_everything()
    account: dict[str, Account | None] = {}

    def decide(command: Record) -> None:
        card, now = command["CustomerCardNo"], clock.now()
        event = decode_event(now, encoder(LOYALTY_COMMANDS, IDS)(command))
        outcome = process(account.get(card), [event], Programmes(), card)
        account[card] = outcome.account
        for entry in outcome.entries:
            balance = None if entry.kind is Kind.ERASED else balance_record(card, entry)
            instance.write(LOYALTY_BALANCES, card, balance)
        for each in outcome.decisions:
            instance.write(LOYALTY_DECISIONS, each.command_id, decision_record(card, each))

    with_marks(instance)
    instance.command_log.on_send = decide
    with TestClient(instance.app, raise_server_exceptions=False) as client:
        operation = schema_of(client.app)[path][method]
        assert_responses_are_documented(operation, mode, max_examples=25)
