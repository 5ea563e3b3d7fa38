"""Generated requests of every operation: without the right credentials nobody gets in. Each response is declared."""

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.schemas import BaseSchema

from api.security.gate import PUBLIC_PATHS
from infra.contracts.__main__ import committed
from services.api_keys.keys import Scope
from services.ledger.queries import LedgerQueries
from services.settings import Settings
from tests.support.builders import balance
from tests.support.clusters import with_marks
from tests.support.ledger import Ledger
from tests.support.openapi import settings_of_requests
from tests.support.secured import EVERYTHING, SecuredGroup, bearer, decision

PATHS = committed("openapi.json")["paths"]
"""A test of contracts compares the committed document with the code."""
OPERATIONS = [(method.upper(), path) for path, item in PATHS.items() for method in item if path not in PUBLIC_PATHS]
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
"""The scopes of each operation, or of all with this first part of the path.

Any of them suffices, but of a store the one that belongs to it.
"""
AS_DECLARED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NO_KAFKA = 503, "broker-unavailable"
"""These tests have no broker. tests/unit/api/operators/conftest.py plays Kafka."""
UNKNOWN_ROUTE = 404, "unknown-route"
"""A generated text can have the path of no route."""


def test_the_list_of_public_paths_is_short() -> None:
    """Only probes and the description of the API need no credentials. All other operations are tested below."""
    page = {"/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png"}
    assert {"/livez", "/readyz", "/openapi.json"} | page == PUBLIC_PATHS
    assert len(OPERATIONS) > 20


def test_the_document_has_the_problems_of_the_gate_beside_those_of_the_route() -> None:
    """Both can have the same status."""
    responses = PATHS["/v1/customers/{card}/events"]["get"]["responses"]

    def codes(status: str) -> set[str]:
        return set(responses[status]["content"]["application/problem+json"]["examples"])

    assert {"too-many-streams", "too-many-requests"} == codes("429")
    assert {"restoring", "keys-unavailable"} <= codes("503")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecuredGroup, BaseSchema]]:
    """An instance with a balance, a decision and a ledger, as Schemathesis sees it. Its tests share it."""
    secured = SecuredGroup(tmp_path_factory.mktemp("secured"))
    instance = with_marks(secured.instance())
    instance.write(*balance("A", "1.00"))
    instance.write(*decision("of-A", "A"))
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.sqlite")
    instance.app.state.dependencies.ledger = LedgerQueries(Settings(ledger_url=ledger.url))
    with TestClient(instance.app, raise_server_exceptions=False) as client:
        yield secured, schemathesis.openapi.from_asgi("/openapi.json", client.app)
    ledger.close()


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=map(" ".join, OPERATIONS))
def test_no_request_without_the_right_credentials_gets_in(
    deployment: tuple[SecuredGroup, BaseSchema], method: str, path: str
) -> None:
    """Generated requests get 401 without a caller, and 403 without the scope of the operation: never 2xx or 5xx."""
    secured, schema = deployment
    unknown, under_scoped = unknown_callers(secured), callers_without(scopes_of(method, path), secured)
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

    for_requests(schema[path][method], 3, check)
    assert refused


@cache
def unknown_callers(secured: SecuredGroup) -> list[dict[str, str]]:
    """Headers without credentials, or with wrong, expired and revoked ones, and those of another issuer or audience."""
    revoked = secured.key(*Scope)
    secured.publish(revoked.key.revoked(1))
    return [
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


def callers_without(needed: set[Scope], secured: SecuredGroup) -> list[dict[str, str]]:
    """Headers of callers that have no scope, or all scopes but these."""
    others = [scope for scope in Scope if scope not in needed]
    return [
        bearer(secured.key().text),
        bearer(secured.key(*others).text),
        bearer(secured.issuer.token(" ".join(["openid", *others]))),
    ]


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
    needed = scopes_of(method, path)
    callers = [bearer(secured.key(*needed).text), bearer(secured.issuer.token(" ".join(needed)))]

    def check(case: Any) -> None:
        for headers in callers:
            response = case.call(headers=headers)
            assert response.status_code < 500 or answer_of(response) == NO_KAFKA
            assert response.status_code not in {401, 403}
            if answer_of(response) != UNKNOWN_ROUTE:
                case.validate_response(response, checks=AS_DECLARED)

    for_requests(schema[path][method], 5, check)


def scopes_of(method: str, path: str) -> set[Scope]:
    return NEEDED.get(f"{method} {path}") or NEEDED[path.split("/")[2]]


def answer_of(response: Any) -> tuple[int, str]:
    """The status, and the code of the problem; an empty code if the response is no problem."""
    is_problem = ["application/problem+json"] == response.headers.get("content-type")
    return response.status_code, response.json()["type"].rpartition(":")[2] if is_problem else ""


def for_requests(operation: Any, most: int, check: Callable[[Any], None]) -> None:
    """Check generated valid requests of an operation. No request waits."""

    @settings_of_requests(most, least=1)
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def each(case: Any) -> None:
        case.headers.pop("Authorization", None)
        for waits in ("minSequence", "openedTime", "erased"):
            (case.query or {}).pop(waits, None)
        if any(parameter["name"] == "timeout" for parameter in operation.definition.raw.get("parameters", ())):
            case.query = {**(case.query or {}), "timeout": 0}
        check(case)

    each()
