"""Callers over HTTP: real apps and memory stores. The test plays Kafka and the issuer of tokens."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import unquote

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.schemas import BaseSchema
from structlog.testing import capture_logs

from api.app import create_app
from api.security.gate import PUBLIC_PATHS
from api.security.hops import HOP
from schemas.topics import LOYALTY_BALANCES, LOYALTY_DECISIONS, STORES
from services.api_keys.keys import Scope
from services.audit_trail import details_of
from services.commands.identity import command_id
from services.ledger.queries import LedgerQueries
from tests.support.builders import balance, problem_type
from tests.support.clusters import Callers, Instance
from tests.support.examples import examples
from tests.support.ledger import Ledger
from tests.support.secured import BALANCE, EVERYTHING, PSEUDONYMS, SecuredGroup, bearer, decision, run_pair

OPERATIONS = [
    (method.upper(), path)
    for path, item in create_app(MagicMock()).openapi()["paths"].items()
    for method in item
    if path not in PUBLIC_PATHS
]
EVERY_OPERATION = pytest.mark.parametrize(
    ("method", "path"), OPERATIONS, ids=[f"{method} {path}" for method, path in OPERATIONS]
)
NEEDED = {
    "GET /v1/customers/{card}/balance": {Scope.BALANCE_READ},
    "GET /v1/customers/{card}/events": {Scope.BALANCE_READ},
    "GET /v1/customers/{card}/entries": {Scope.LEDGER_READ},
    "GET /v1/customers/{card}/statement": {Scope.LEDGER_READ},
    "POST /v1/customers/{card}/redemptions": {Scope.POINTS_REDEEM},
    "POST /v1/customers/{card}/adjustments": {Scope.POINTS_ADJUST},
    "DELETE /v1/customers/{card}": {Scope.CUSTOMER_ERASE},
    "redemptions": {Scope.POINTS_REDEEM},
    "transfers": {Scope.POINTS_REDEEM},
    "commands": {*Scope} - {Scope.LEDGER_READ, Scope.OPERATE, Scope.PROGRAMME_PUBLISH, Scope.DEAD_LETTERS},
    "invoices": {Scope.LEDGER_READ},
    "caller": {*Scope},
    "settings": {Scope.OPERATE},
    "status": {Scope.OPERATE},
    "GET /v1/dead-letters": {Scope.OPERATE, Scope.DEAD_LETTERS},
    "POST /v1/dead-letters/replay": {Scope.DEAD_LETTERS},
    "POST /v1/programmes/check": {Scope.PROGRAMME_PUBLISH},
    "POST /v1/programmes": {Scope.PROGRAMME_PUBLISH},
    "simulate": {Scope.BALANCE_READ},
    "stores": {Scope.BALANCE_READ, Scope.OPERATE},
    "POST /v1/customers/{card}/block": {Scope.CARD_MANAGE},
    "POST /v1/customers/{card}/unblock": {Scope.CARD_MANAGE},
    "POST /v1/customers/{card}/replacement": {Scope.CARD_MANAGE},
    "POST /v1/customers/{card}/merge": {Scope.CARD_MANAGE},
    "instances": {Scope.OPERATE},
    "audits": {Scope.OPERATE},
    "GET /metrics": {Scope.OPERATE},
}
"""The scopes of each operation: any of them suffices, but of a store the one that belongs to it."""
AS_DECLARED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NO_KAFKA = 503, "broker-unavailable"
"""These tests have no broker. tests/unit/api/test_operator_routes.py plays a broker."""
UNKNOWN_ROUTE = 404, "unknown-route"
"""A generated text can have the path of no route."""


def test_the_list_of_public_paths_is_short() -> None:
    """Only probes and the description of the API need no credentials. All other operations are tested below."""
    page = {"/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png"}
    assert {"/livez", "/readyz", "/openapi.json"} | page == PUBLIC_PATHS
    assert len(OPERATIONS) > 20


def with_marks(instance: Instance) -> Instance:
    """The instance shows the mark of a command at once, as a materialiser does."""
    instance.command_log.on_mark = lambda mark: instance.write(LOYALTY_DECISIONS, mark["CommandID"], mark)
    return instance


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecuredGroup, BaseSchema]]:
    """An instance with a balance, a decision and a ledger, as Schemathesis sees it. Its tests share it."""
    secured = SecuredGroup(tmp_path_factory.mktemp("secured"))
    instance = with_marks(secured.instance())
    instance.write(*balance("A", "1.00"))
    instance.write(*decision("of-A", "A"))
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.sqlite")
    instance.app.state.dependencies.ledger = LedgerQueries(ledger.url)
    with TestClient(instance.app, raise_server_exceptions=False) as client:
        yield secured, schemathesis.openapi.from_asgi("/openapi.json", client.app)
    ledger.close()


def answer_of(response: Any) -> tuple[int, str]:
    """The status, and the code of the problem; an empty code if the response is no problem."""
    is_problem = ["application/problem+json"] == response.headers.get("content-type")
    return response.status_code, response.json()["type"].rpartition(":")[2] if is_problem else ""


def for_requests(operation: Any, most: int, check: Callable[[Any], None]) -> None:
    """Check generated valid requests of an operation. No request waits."""
    checks = list(HealthCheck)

    @settings(
        max_examples=examples(most, least=1),
        deadline=None,
        database=None,
        suppress_health_check=checks,
        derandomize=True,
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def each(case: Any) -> None:
        case.headers.pop("Authorization", None)
        for waits in ("minSequence", "openedTime", "erased"):
            (case.query or {}).pop(waits, None)
        if any(parameter["name"] == "timeout" for parameter in operation.definition.raw.get("parameters", ())):
            case.query = {**(case.query or {}), "timeout": 0}
        check(case)

    each()


@EVERY_OPERATION
def test_no_request_without_the_right_credentials_gets_in(
    deployment: tuple[SecuredGroup, BaseSchema], method: str, path: str
) -> None:
    """Generated requests get 401 without a caller, and 403 without the scope of the operation: never 2xx or 5xx."""
    secured, schema = deployment
    operation, needed = schema[path][method], NEEDED.get(f"{method} {path}") or NEEDED[path.split("/")[2]]
    revoked, others = secured.key(*Scope), [scope for scope in Scope if scope not in needed]
    secured.publish(revoked.key.revoked(1))
    unknown: list[dict[str, str]] = [
        {},
        {"Authorization": "Basic YTpi"},
        bearer("nonsense"),
        bearer(secured.key(*Scope).text[:-3] + "xyz"),
        bearer(secured.issuer.token(EVERYTHING)[:-3] + "xyz"),
        bearer(secured.expired_key()),
        bearer(revoked.text),
        bearer(secured.issuer.token(EVERYTHING, exp=time.time() - 60)),
        bearer(secured.issuer.token(EVERYTHING, aud="other")),
        bearer(secured.issuer.token(EVERYTHING, iss="https://other.example")),
    ]
    under_scoped = [
        bearer(secured.key().text),
        bearer(secured.key(*others).text),
        bearer(secured.issuer.token(" ".join(["openid", *others]))),
    ]
    refused = 0

    def check(case: Any) -> None:
        nonlocal refused
        for headers in unknown:
            response = case.call(headers=headers)
            assert (401, "unauthenticated") == answer_of(response)
            assert ["Bearer"] == response.headers["www-authenticate"]
            case.validate_response(response, checks=AS_DECLARED)
        for headers in under_scoped:
            response = case.call(headers=headers)
            if answer_of(response) != UNKNOWN_ROUTE:
                assert (403, "scope-missing") == answer_of(response)
                case.validate_response(response, checks=AS_DECLARED)
                refused += 1

    for_requests(operation, 3, check)
    assert refused


@pytest.mark.parametrize(
    # A stream does not end. The tests of events read it.
    ("method", "path"),
    [each for each in OPERATIONS if not each[1].endswith("/events")],
)
def test_a_good_caller_gets_declared_responses(
    deployment: tuple[SecuredGroup, BaseSchema], method: str, path: str
) -> None:
    """With the scope of the operation, generated requests get in: no 401, 403 or 5xx, and each response is declared."""
    secured, schema = deployment
    needed = NEEDED.get(f"{method} {path}") or NEEDED[path.split("/")[2]]
    callers = [bearer(secured.key(*needed).text), bearer(secured.issuer.token(" ".join(needed)))]

    def check(case: Any) -> None:
        for headers in callers:
            response = case.call(headers=headers)
            assert response.status_code < 500 or answer_of(response) == NO_KAFKA
            assert response.status_code not in {401, 403}
            if answer_of(response) != UNKNOWN_ROUTE:
                case.validate_response(response, checks=AS_DECLARED)

    for_requests(schema[path][method], 5, check)


def test_probes_are_public_and_responses_have_security_headers(instance: Instance) -> None:
    """Probes and pages answer anybody. No response can be read as another type, and no page can be framed."""
    with TestClient(instance.app, raise_server_exceptions=False) as client:
        paths, origin = ("/livez", "/openapi.json", "/v1/customers/A/balance", "/nowhere"), "https://app.example"
        answers = [client.get(path, headers={"Origin": origin}) for path in paths]

    assert [200, 200, 401, 401] == [each.status_code for each in answers]
    assert all("nosniff" == each.headers["x-content-type-options"] for each in answers)
    assert ["DENY", "DENY", None, None] == [each.headers.get("x-frame-options") for each in answers]
    assert all("access-control-allow-origin" not in each.headers for each in answers)


def test_web_pages_of_named_origins_only_may_call(secured: SecuredGroup) -> None:
    """A browser may send credentials from pages of the origins in the setting, and from no others."""
    instance = secured.instance(origins=("https://app.example",))
    wanted = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization,last-event-id"}
    key = bearer(secured.key(Scope.BALANCE_READ).text)
    with TestClient(instance.app) as client:
        for origin, status, allowed in (
            ("https://app.example", 200, "https://app.example"),
            ("https://evil.example", 400, None),
        ):
            asked = client.options("/v1/customers/A/balance", headers={"Origin": origin, **wanted})
            read = client.get("/v1/customers/A/balance", headers={"Origin": origin, **key})
            assert status == asked.status_code
            assert allowed == read.headers.get("access-control-allow-origin")
            assert "Loyalty-Stale" in read.headers["access-control-expose-headers"]
            assert 404 == read.status_code
        assert 401 == client.get("/v1/customers/A/balance", headers={"Origin": "https://app.example"}).status_code


def test_a_revocation_counts_at_once(instance: Instance, secured: SecuredGroup) -> None:
    """A key works until its record says that it is revoked. A key of the old record stays refused."""
    text, key = secured.key(Scope.BALANCE_READ)
    instance.write(*balance("A", "1.00"))
    with TestClient(instance.app) as client:
        assert 200 == client.get("/v1/customers/A/balance", headers=bearer(text)).status_code
        secured.publish(key.revoked(1))
        assert 401 == client.get("/v1/customers/A/balance", headers=bearer(text)).status_code


TRICKS: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "/v1/customers/B/../A/balance/../../B/balance", {}),
    ("GET", "/v1/customers/%42/balance", {}),
    ("GET", "/v1/customers/A%2F..%2FB/balance", {}),
    ("GET", "/v1//customers/B/balance", {}),
    ("GET", "//v1/customers/B/balance", {}),
    ("GET", "/V1/customers/B/balance", {}),
    ("GET", "/v1/customers/B/balance/", {}),
    ("GET", "/v1/customers/B/balance%3fx", {}),
    ("GET", "/v1/customers/B/balance;/livez", {}),
    ("GET", "/livez/../v1/customers/B/balance", {}),
    ("GET", "/console/../v1/customers/B/balance", {}),
    ("GET", "/console/%2e%2e/v1/customers/B/balance", {}),
    ("GET", "/console//v1/customers/B/balance", {}),
    ("HEAD", "/v1/customers/B/balance", {}),
    ("OPTIONS", "/v1/customers/B/balance", {}),
    ("TRACE", "/v1/customers/B/balance", {}),
    ("get", "/v1/customers/B/balance", {}),
    ("POST", "/v1/customers/B/balance", {"X-HTTP-Method-Override": "GET"}),
    ("GET", "/livez", {"X-Original-URL": "/v1/customers/B/balance", "X-Rewrite-URL": "/v1/customers/B/balance"}),
    ("GET", "/v1/customers/A/balance?card=B", {}),
    ("GET", "/v1/customers/B/events", {}),
    ("GET", "/v1/customers/B/balance", {"Cookie": "loyalty_console=KEY"}),
    ("GET", "/v1/customers/B/balance", {"Connection": "Upgrade", "Upgrade": "websocket"}),
    ("GET", "/v1/customers/B/balance", {"Loyalty-Caller": "A", "X-Forwarded-For": "127.0.0.1", "Forwarded": "for=::1"}),
    ("GET", "/v1/customers/B/balance", {"Loyalty-Hop": "", "Loyalty-Forwarded-To": "active"}),
]


@pytest.mark.parametrize(("method", "path", "headers"), TRICKS, ids=["-".join(map(str, each)) for each in TRICKS])
def test_no_trick_shows_another_card(
    secured: SecuredGroup, instance: Instance, method: str, path: str, headers: dict[str, str]
) -> None:
    """Nobody gets the points of another card, with or without a token. The app gets the path unchanged."""
    instance.write(*balance("A", "1.00"))
    instance.write(LOYALTY_BALANCES, "B", {**balance("B", "1.00")[2], "TotalLoyaltyPoints": Decimal("77777.77")})
    own = bearer(secured.issuer.token(EVERYTHING, card="A"))
    key = secured.key(*Scope).text

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    with TestClient(instance.app):
        for given in (headers, {**own, **headers}):
            with_key = {name: text.replace("KEY", key) for name, text in given.items()}
            status, body = asyncio.run(raw_request(instance, method, path, with_key, receive))
            assert b"77777.77" not in body
            assert status in {200, 307, 400, 401, 403, 404, 405, 422}
            assert status != 200 or raw_of(path) in {"/livez", "/v1/customers/A/balance"}


async def raw_request(
    instance: Instance, method: str, path: str, headers: dict[str, str], receive: Callable[[], Awaitable[Any]]
) -> tuple[int, bytes]:
    """Status and body for a request whose path no client has changed. ``receive`` gives its body."""
    raw, _, query = path.partition("?")
    found: dict[str, Any] = {"body": b""}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "method": method,
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "client": ("10.0.0.9", 1),
        "server": ("one", 8080),
        "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
    }

    async def note(message: Any) -> None:
        found["status"] = message.get("status", found.get("status"))
        found["body"] += message.get("body", b"")

    await instance.app(scope, receive, note)
    return found["status"], found["body"]


def raw_of(path: str) -> str:
    return path.partition("?")[0]


def test_two_headers_with_credentials_are_refused(secured: SecuredGroup, instance: Instance) -> None:
    """A proxy may have checked the first or the second one. A token that is known is no exception."""
    instance.write(*balance("A", "1.00"))
    good = secured.issuer.token()
    with TestClient(instance.app) as client:
        assert 200 == client.get(BALANCE, headers=bearer(good)).status_code
        for texts in ((good, good), (good, "nonsense"), ("nonsense", good), ("", good)):
            twice = [("Authorization", f"Bearer {text}") for text in texts]
            assert 401 == client.get(BALANCE, headers=twice).status_code


OWN = [
    "/v1/customers/A/balance",
    "/v1/stores/customer-balances/keys/A",
    "/v1/stores/customer-balances/local/keys/A",
    "/v1/commands/of-A",
]
NOT_OWN = [
    "/v1/customers/B/balance",
    "/v1/customers/B/balance?minSequence=wrong",
    "/v1/customers/B/entries",
    "/v1/customers/B/statement",
    "/v1/stores/customer-balances/keys/B",
    "/v1/stores/customer-balances/local/keys/B",
    "/v1/stores/top-customers/keys/B",
    "/v1/stores/customer-balances/all",
    "/v1/stores/customer-balances/count",
    "/v1/stores/customer-balances/range?from=A&to=A",
    "/v1/stores/customer-balances/local/range",
    "/v1/stores/decisions/keys/of-A",
    "/v1/commands/of-B",
]


def test_one_card_is_one_card_also_behind_a_forward(secured: SecuredGroup) -> None:
    """For every instance and every owner, the caller's card is 200, and every other card is 403."""

    async def ask(callers: Callers) -> None:
        headers = bearer(secured.issuer.token("balance:read ledger:read", card="A"))
        forwarded = 0
        for number, each in enumerate(callers.group.instances):
            for path in OWN:
                answer = await callers.http.get(each.url + path, headers=headers)
                assert answer.status_code in {200, 421 if "/local/" in path else 200}, path
                forwarded += answer.headers.get("loyalty-served-by") == callers.group.instances[1 - number].url
            for path in NOT_OWN:
                answer = await callers.http.get(each.url + path, headers=headers)
                assert "not-yours" == problem_type(answer, 403), path
            for keys, status in ((["A"], 200), (["A", "B"], 403)):
                url = f"{each.url}/v1/stores/customer-balances/keys"
                answer = await callers.http.post(url, json={"keys": keys}, headers=headers)
                assert status == answer.status_code
            for card, status in (("A", 200), ("B", 403)):
                body = {"TotalAmount": 1.0, "CustomerCardNo": card}
                answer = await callers.http.post(f"{each.url}/v1/simulate", json=body, headers=headers)
                assert status == answer.status_code
        assert forwarded
        hops = [each.headers[HOP] for each in callers.group.sent if HOP in each.headers]
        assert hops
        assert all("authorization" not in each.headers for each in callers.group.sent if HOP in each.headers)

    run_pair(secured, ask)


@pytest.mark.parametrize("scope", ["points:redeem", "balance:read points:redeem points:adjust customer:erase"])
def test_commands_belong_to_the_own_card(secured: SecuredGroup, instance: Instance, scope: str) -> None:
    """A caller with one card can neither end a redemption of another card, nor send a command for it."""
    instance.write(*decision("of-B", "B"))
    words = {"reason": "r", "actor": "a"}
    requests = [
        ("POST", "/v1/customers/B/redemptions", {"points": "1"}),
        ("POST", "/v1/redemptions/of-B/capture", None),
        ("POST", "/v1/redemptions/of-B/void", None),
        ("POST", "/v1/transfers", {"from": "B", "to": "A", "points": "1"}),
        ("POST", "/v1/customers/B/adjustments", {"points": "1", **words}),
        ("DELETE", "/v1/customers/B", None),
        ("GET", "/v1/commands/of-B", None),
    ]
    headers = {**bearer(secured.issuer.token(scope, card="A")), "Idempotency-Key": "k"}
    with TestClient(instance.app) as client:
        for method, path, body in requests:
            assert 403 == client.request(method, path, json=body, headers=headers).status_code, path

    assert ([], []) == (instance.command_log.marks, instance.command_log.commands)


@pytest.mark.parametrize("is_limited", [True, False])
def test_a_caller_with_one_card_does_not_see_the_card_that_replaced_it(
    secured: SecuredGroup, instance: Instance, *, is_limited: bool
) -> None:
    """Otherwise the finder of a lost card learns the new one."""
    instance.write(LOYALTY_BALANCES, "A", {**balance("A", "1.00")[2], "MovedTo": "NEW-CARD"})
    path, claims = "/v1/stores/customer-balances", {"card": "A"} if is_limited else {}
    headers = bearer(secured.issuer.token(EVERYTHING, **claims))
    with TestClient(instance.app) as client:
        answers = [
            client.get("/v1/customers/A/balance", headers=headers),
            client.get(f"{path}/keys/A", headers=headers),
            client.get(f"{path}/local/keys/A", headers=headers),
            client.post(f"{path}/keys", json={"keys": ["A"]}, headers=headers),
            client.post(f"{path}/local/keys", json={"keys": ["A"]}, headers=headers),
        ]
    assert [410, 200, 200, 200, 200] == [each.status_code for each in answers]
    assert {not is_limited} == {b"NEW-CARD" in each.content for each in answers}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stores/customer-balances/keys",
        "/v1/simulate",
        "/v1/programmes/check",
        "/v1/dead-letters/replay",
        "/v1/customers/A/redemptions",
    ],
)
def test_a_body_is_not_read_before_the_rights_are_checked(secured: SecuredGroup, instance: Instance, path: str) -> None:
    """Otherwise a caller without rights could keep an instance busy with large bodies."""
    headers = bearer(secured.key(Scope.CARD_MANAGE).text) | {"Content-Type": "application/json", "Idempotency-Key": "k"}

    async def receive() -> Any:
        raise AssertionError("the body is read")

    status, body = asyncio.run(raw_request(instance, "POST", path, headers, receive))
    assert 403 == status
    assert b"scope-missing" in body


def test_the_actor_is_the_caller(secured: SecuredGroup, instance: Instance) -> None:
    """The body cannot name another actor. The same command with another actor in its body is a repetition."""
    path, key = "/v1/customers/A/adjustments?timeout=0", secured.key(Scope.POINTS_ADJUST)
    with TestClient(with_marks(instance).app) as client:
        for text, name in ((secured.issuer.token("points:adjust"), "token:anna"), (key.text, f"key:{key.key.key_id}")):
            body, headers = {"points": "5", "reason": "goodwill"}, {**bearer(text), "Idempotency-Key": name}
            answers = [client.post(path, json={**body, "actor": each}, headers=headers) for each in ("boss", "clerk")]
            assert (202, "command-in-flight") == (answers[0].status_code, problem_type(answers[1], 409))
            assert name == instance.command_log.commands[-1]["Actor"]
        assert 2 == len(instance.command_log.commands)


def test_commands_and_exports_are_audited_without_cards(secured: SecuredGroup, instance: Instance) -> None:
    """One record and one line for each command, export and refusal, with a pseudonym. Other reads have none."""
    instance.write(*balance("A b", "1.00"))
    token = secured.issuer.token("balance:read points:redeem", card="A b")
    headers = {**bearer(token), "Idempotency-Key": "k"}
    of_b = command_id("POST", "/v1/redemptions/A b/void", "k")
    with TestClient(with_marks(instance).app, raise_server_exceptions=False) as client, capture_logs() as logs:
        client.post("/v1/customers/A%20b/redemptions?timeout=0", json={"points": "1"}, headers=headers)
        client.delete("/v1/customers/A%20b", headers=headers)
        client.post("/v1/redemptions/A%20b/void", headers=headers)
        client.post(f"/v1/redemptions/{of_b}/void", headers=headers)
        client.get("/v1/customers/A%20b/statement", headers=headers)
        client.get("/v1/invoices/A%20b/customers", headers=headers)
        client.get("/v1/stores/customer-balances/all", headers=headers)
        client.get("/v1/stores/programmes/all", headers=headers)
        client.head("/v1/customers/A%20b/statement", headers=headers)
        client.head("/v1/stores/programmes/all", headers=headers)
        client.get("/v1/customers/A%20b/balance", headers=headers)
        client.head("/v1/customers/A%20b/balance", headers=headers)
        client.post("/v1/simulate", json={"TotalAmount": 1.0}, headers=headers)
        client.delete("/v1/customers/A%20b")

    customer = PSEUDONYMS.of("A b")
    redeemed = command_id("POST", "/v1/customers/A b/redemptions", "k")
    void = {"redemption": of_b, "command": command_id("POST", f"/v1/redemptions/{of_b}/void", "k")}
    expected = [
        ("POST /v1/customers/{card}/redemptions", 202, customer, {"command": redeemed}),
        ("DELETE /v1/customers/{card}", 403, customer, {}),
        ("POST /v1/redemptions/{redemption}/void", 404, "", {"command": of_b}),
        ("POST /v1/redemptions/{redemption}/void", 404, "", void),
        ("GET /v1/customers/{card}/statement", 403, customer, {}),
        ("GET /v1/invoices/{invoice}/customers", 403, "", {}),
        ("GET /v1/stores/{store}/all", 403, "", {}),
        ("GET /v1/stores/{store}/all", 200, "", {"store": "programmes"}),
        ("HEAD /v1/customers/{card}/statement", 403, customer, {}),
        ("HEAD /v1/stores/{store}/all", 200, "", {"store": "programmes"}),
    ]
    lines = [each for each in logs if each["event"] == "audit"]
    common = {"event": "audit", "log_level": "info", "actor": "token:anna"}
    assert lines == [
        {**common, "id": record["EventID"], "action": action, "status": status, **of_customer, **details}
        for (action, status, who, details), record in zip(expected, secured.trail.records, strict=True)
        for of_customer in [{"customer": who} if who else {}]
    ]
    assert expected == [
        (each["Action"], int(each["Outcome"]), each["Customer"], details_of(each)) for each in secured.trail.records
    ]
    assert {("token:anna", instance.url)} == {(each["Actor"], each["Source"]) for each in secured.trail.records}
    for text in (str(logs), str(secured.trail.records)):
        assert token not in text
        assert "A b" not in text


def test_a_till_is_limited_to_its_shops(secured: SecuredGroup, instance: Instance) -> None:
    """Other shops, their sales and their baskets are refused. Cards are not, because customers shop everywhere.

    The name of another shop can begin with that of the till's shop and an @.
    """
    instance.write(*balance("A", "1.00"))
    shop = {"StoreID": "STR1", "Name": "n", "City": "c", "State": "s"}
    for store_id in ("STR1", "STR2"):
        instance.write(STORES, store_id, {**shop, "StoreID": store_id})
    headers = bearer(secured.key(Scope.BALANCE_READ, Scope.OPERATE, stores=["STR1"]).text)
    times = "?from=1700000000000&to=1700000060000"
    expected = {
        "/v1/customers/A/balance": 200,
        "/v1/stores/stores/keys/STR1": 200,
        "/v1/stores/stores/keys/STR2": 403,
        "/v1/stores/stores/all": 403,
        "/v1/stores/store-sales/keys/STR1@1700000000000": 404,
        "/v1/stores/store-sales/keys/STR2@1700000000000": 403,
        "/v1/stores/store-sales/keys/STR1@Kochi@1700000000000": 403,
        f"/v1/stores/store-sales/windows/STR1{times}": 200,
        f"/v1/stores/store-sales/windows/STR1@Kochi{times}": 403,
        f"/v1/stores/store-sales/windows/STR2{times}": 403,
        f"/v1/stores/store-sales/local/windows/STR2{times}": 403,
        "/v1/stores/store-sales/count": 403,
    }
    with TestClient(instance.app) as client:
        assert expected == {path: client.get(path, headers=headers).status_code for path in expected}
        for store_id, status in (("STR1", 200), ("STR2", 403), (None, 200)):
            body = {"TotalAmount": 1.0, **({"StoreID": store_id} if store_id else {})}
            assert status == client.post("/v1/simulate", json=body, headers=headers).status_code
