"""How the API treats a caller: credentials, tricks with paths and headers, web pages, and the audit."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from itertools import permutations
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from httpx import ASGITransport, AsyncClient, Response
from structlog.testing import capture_logs

from api.commands import service
from api.security.permissions import caller_of
from api.security.problems import Unauthenticated
from schemas.topics import LOYALTY_BALANCES, LOYALTY_DECISIONS
from services.api_keys.keys import Scope
from services.audit_trail import details_of
from services.commands.identity import command_id, request_hash
from tests.support.builders import balance, problem_type
from tests.support.clusters import Instance, with_marks
from tests.support.secured import BALANCE, EVERYTHING, PSEUDONYMS, SecuredGroup, bearer


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
    token = bearer(secured.issuer.token())
    with TestClient(instance.app) as client:
        for origin, status, allowed in (
            ("https://app.example", 200, "https://app.example"),
            ("https://evil.example", 400, None),
        ):
            asked = client.options("/v1/customers/A/balance", headers={"Origin": origin, **wanted})
            assert (status, allowed) == (asked.status_code, asked.headers.get("access-control-allow-origin"))
            for _ in range(2):  # the second request has a token that is known
                read = client.get("/v1/customers/A/balance", headers={"Origin": origin, **token})
                assert allowed == read.headers.get("access-control-allow-origin")
                assert "Loyalty-Stale" in read.headers["access-control-expose-headers"]
                assert 404 == read.status_code
        assert 401 == client.get("/v1/customers/A/balance", headers={"Origin": "https://app.example"}).status_code


def test_refused_requests_for_internal_paths_count_under_their_path(secured: SecuredGroup) -> None:
    """An alert on refused callers leaves these paths out: a second Prometheus can ask for them without a key."""
    paths = ("/metrics", "/v1/customers/A/balance")
    with TestClient(secured.instance().app) as client:
        assert [401, 401] == [client.get(path).status_code for path in paths]
        text = client.get("/metrics", headers=bearer(secured.key(Scope.OPERATE).text)).text
    for route in ("/metrics", "refused"):
        assert f'loyalty_http_requests_total{{method="other",route="{route}",status="401"}} 1.0' in text


def test_the_metrics_have_the_earliest_expiry_of_the_valid_keys(secured: SecuredGroup) -> None:
    """Expired and revoked keys do not count. Without a valid key there is no sample."""
    instance, valid, later, revoked = secured.instance(), *(secured.key(Scope.OPERATE) for _ in range(3))
    secured.publish(replace(later.key, expires_time=valid.key.expires_time + 1_000))
    secured.publish(replace(revoked.key, expires_time=valid.key.expires_time - 1_000, revoked_time=1))
    secured.expired_key()

    def expiry(credentials: str) -> list[float]:
        answer = client.get("/metrics", headers=bearer(credentials))
        assert 200 == answer.status_code
        found = re.findall(r"^loyalty_api_key_expiry_time_seconds (.*)$", answer.text, re.MULTILINE)
        return [float(value) for value in found]

    with TestClient(instance.app) as client:
        assert [valid.key.expires_time / 1000] == expiry(valid.text)
        secured.publish(valid.key.revoked(1))
        assert [(valid.key.expires_time + 1_000) / 1000] == expiry(later.text)
        secured.publish(later.key.revoked(1))
        assert [] == expiry(secured.issuer.token(scope="operate"))


def test_two_headers_with_credentials_are_refused(secured: SecuredGroup, instance: Instance) -> None:
    """A proxy may have checked the first or the second one. A token that is known is no exception."""
    instance.write(*balance("A", "1.00"))
    good = secured.issuer.token()
    with TestClient(instance.app) as client:
        answers = [client.get(BALANCE, headers=bearer(good)) for _ in range(2)]
        assert 2 * [(200, "nosniff")] == [
            (each.status_code, each.headers["x-content-type-options"]) for each in answers
        ]
        for texts in ((good, good), (good, "nonsense"), ("nonsense", good), ("", good)):
            twice = [("Authorization", f"Bearer {text}") for text in texts]
            assert 401 == client.get(BALANCE, headers=twice).status_code


def test_the_name_of_the_scheme_has_no_case(secured: SecuredGroup, instance: Instance) -> None:
    """Clients may write it in any case (RFC 9110, section 11.1)."""
    with TestClient(instance.app) as client:
        for text in (secured.key(Scope.BALANCE_READ).text, secured.issuer.token()):
            assert 404 == client.get(BALANCE, headers={"Authorization": f"bearer {text}"}).status_code


def test_a_request_that_has_not_passed_the_gate_has_no_caller(instance: Instance) -> None:
    """A route that somebody mounts beside the gate is closed."""
    with pytest.raises(Unauthenticated):
        caller_of(Request({"type": "http", "app": instance.app}))


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
            assert status != 200 or path.partition("?")[0] in {"/livez", "/v1/customers/A/balance"}


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


def test_a_repetition_finds_its_command_after_a_change_of_the_credentials(secured: SecuredGroup) -> None:
    """The API demands credentials, or does not, or accepts also requests that release 0.1 forwards. The hashes differ.

    The same key with other points, or with another actor for an API without credentials, is another request.
    """
    without = Instance("http://one:8080")
    without.own_everything()
    instances = [with_marks(each) for each in (without, secured.instance(), secured.instance(unsigned=True))]
    path, body = "/v1/customers/A/adjustments", {"points": "5", "reason": "goodwill", "actor": "ann"}
    with ExitStack() as stack:
        clients = [stack.enter_context(TestClient(each.app)) for each in instances]

        def ask(number: int, key: str, **changes: str) -> Response:
            headers = {**bearer(secured.issuer.token("points:adjust")), "Idempotency-Key": key}
            return clients[number].post(f"{path}?timeout=0", json=body | changes, headers=headers)

        for first, second in permutations(range(3), 2):
            key = f"{first} {second}"
            assert 202 == ask(first, key).status_code
            mark = instances[first].command_log.marks[-1]
            instances[second].write(LOYALTY_DECISIONS, mark["CommandID"], mark)
            assert "idempotency-key-reused" == problem_type(ask(second, key, points="6"), 422)
            assert 202 == ask(second, key).status_code
            assert mark["CommandID"] == instances[second].command_log.commands[-1]["CommandID"]
        assert [2, 2, 2] == [len(each.command_log.marks) for each in instances]

        assert 202 == ask(0, "k").status_code
        assert "idempotency-key-reused" == problem_type(ask(0, "k", actor="bob"), 422)
    of_release_0_1 = request_hash(
        mark["CommandID"], {"points": 500, "reason": "goodwill", "actor": "ann", "allow_negative": False}
    )
    assert of_release_0_1 == instances[2].command_log.marks[-1]["RequestHash"]


def test_one_caller_cannot_have_all_commands_of_an_owner(
    secured: SecuredGroup, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other instances forward requests to it, and it does not count those for the limits of the caller."""
    monkeypatch.setattr(service, "_MOST_OF_A_CALLER", 1)
    instance.write(*balance("A", "1.00"))

    def redeem(name: str, key: str) -> Response:
        token = secured.issuer.token("points:redeem", sub=name)
        headers = {**bearer(token), "Idempotency-Key": key}
        return client.post("/v1/customers/A/redemptions?timeout=0", json={"points": "1"}, headers=headers)

    with TestClient(instance.app) as client:
        # The topic has the mark of this command, but the instance has not read it yet.
        assert "command-not-visible" == problem_type(redeem("anna", "1"), 503)
        assert "too-many-commands" == problem_type(redeem("anna", "2"), 503)
        assert "command-not-visible" == problem_type(redeem("berta", "3"), 503)


def test_an_instance_that_cannot_read_its_keys_is_not_ready(secured: SecuredGroup, instance: Instance) -> None:
    """Each request with a key would get 503. The metrics show the reason."""
    key = bearer(secured.key(Scope.OPERATE).text)
    with TestClient(instance.app) as client:
        assert 200 == client.get("/readyz").status_code
        assert 'loyalty_store_damaged{partition="0",store="api-keys"} 0.0' in client.get("/metrics", headers=key).text
        secured.keys.tasks[0].store.damage = "Corruption: block checksum mismatch"
        assert "not-ready" == problem_type(client.get("/readyz"), 503)


@pytest.mark.anyio
async def test_a_command_that_the_end_of_the_process_interrupts_is_audited_as_unavailable(
    secured: SecuredGroup, instance: Instance
) -> None:
    """The server cancels its request, and sends 503 ``stopping``."""
    instance.write(*balance("A", "1.00"))
    instance.command_log.on_mark = lambda _: running.cancel()
    headers = {**bearer(secured.issuer.token("points:redeem")), "Idempotency-Key": "k"}
    async with AsyncClient(transport=ASGITransport(instance.app), base_url=instance.url) as client:
        asked = client.post("/v1/customers/A/redemptions", json={"points": "1"}, headers=headers)
        running = asyncio.ensure_future(asked)
        with pytest.raises(asyncio.CancelledError):
            await running
    (record,) = secured.trail.records
    assert "503" == record["Outcome"]


def test_commands_and_exports_are_audited_without_cards(
    secured: SecuredGroup, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record and one line for each command, export and refusal, with a pseudonym. Other reads have none."""
    instance.write(*balance("A b", "1.00"))
    token = secured.issuer.token("balance:read points:redeem", card="A b")
    headers = {**bearer(token), "Idempotency-Key": "k"}
    card, customer = "/v1/customers/A%20b", PSEUDONYMS.of("A b")
    redeemed = command_id("POST", "/v1/customers/A b/redemptions", "k")
    failed = {"command": command_id("POST", "/v1/customers/A b/redemptions", "other")}
    of_b = command_id("POST", "/v1/redemptions/A b/void", "k")
    void = {"redemption": of_b, "command": command_id("POST", f"/v1/redemptions/{of_b}/void", "k")}
    records = {
        ("DELETE", card): ("DELETE /v1/customers/{card}", 403, customer, {}),
        ("POST", "/v1/redemptions/A%20b/void"): ("POST /v1/redemptions/{redemption}/void", 404, "", {"command": of_b}),
        ("POST", f"/v1/redemptions/{of_b}/void"): ("POST /v1/redemptions/{redemption}/void", 404, "", void),
        ("GET", f"{card}/statement"): ("GET /v1/customers/{card}/statement", 403, customer, {}),
        ("GET", f"{card}/entries"): ("GET /v1/customers/{card}/entries", 403, customer, {}),
        ("GET", "/v1/invoices/A%20b/customers"): ("GET /v1/invoices/{invoice:path}/customers", 403, "", {}),
        ("GET", "/v1/stores/customer-balances/all"): ("GET /v1/stores/{store}/all", 403, "", {}),
        ("GET", "/v1/stores/customer-balances/range"): ("GET /v1/stores/{store}/range", 403, "", {}),
        ("GET", "/v1/stores/customer-balances/local/all"): ("GET /v1/stores/{store}/local/all", 403, "", {}),
        ("GET", "/v1/stores/customer-balances/local/range"): ("GET /v1/stores/{store}/local/range", 403, "", {}),
        ("POST", "/v1/stores/customer-balances/keys"): ("POST /v1/stores/{store}/keys", 403, "", {}),
        ("POST", "/v1/stores/programmes/local/keys"): (
            "POST /v1/stores/{store}/local/keys",
            200,
            "",
            {"store": "programmes"},
        ),
        ("GET", "/v1/stores/programmes/all"): ("GET /v1/stores/{store}/all", 200, "", {"store": "programmes"}),
        ("HEAD", f"{card}/statement"): ("HEAD /v1/customers/{card}/statement", 403, customer, {}),
        ("HEAD", "/v1/stores/programmes/all"): ("HEAD /v1/stores/{store}/all", 200, "", {"store": "programmes"}),
    }
    with TestClient(with_marks(instance).app, raise_server_exceptions=False) as client, capture_logs() as logs:
        client.post(f"{card}/redemptions?timeout=0", json={"points": "1"}, headers=headers)
        for method, path in records:
            client.request(method, path, json={"keys": ["1"]} if path.endswith("/keys") else None, headers=headers)
        client.get(f"{card}/balance", headers=headers)
        client.head(f"{card}/balance", headers=headers)
        client.post("/v1/simulate", json={"TotalAmount": 1.0}, headers=headers)
        client.delete(card)
        client.post("/v1/redemptions/A%20b/void", headers=bearer(token))
        monkeypatch.setattr(instance.app.state.dependencies.ledger, "customers_of_invoice", lambda *_: [])
        client.get("/v1/invoices/A%20b/customers", headers=bearer(secured.issuer.token("ledger:read")))
        monkeypatch.setattr(instance.command_log, "mark", None)  # a defect
        client.post(f"{card}/redemptions", json={"points": "1"}, headers={**headers, "Idempotency-Key": "other"})

    expected = [
        ("POST /v1/customers/{card}/redemptions", 202, customer, {"command": redeemed}),
        *records.values(),
        ("POST /v1/redemptions/{redemption}/void", 400, "", {}),
        ("GET /v1/invoices/{invoice:path}/customers", 200, "", {}),
        ("POST /v1/customers/{card}/redemptions", 500, customer, failed),
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
