"""Who signs in, what the user then sees, and forms that nobody may send."""

import socket
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from api.console.own_api import COOKIE
from api.http.server import server_of
from infra.local.ports import HOST, free_port
from services.api_keys.keys import Scope
from services.settings import Settings
from tests.support.builders import problem_type
from tests.support.clusters import Instance
from tests.support.secured import SecuredGroup
from tests.support.waiting import wait_for
from tests.unit.api.console.console_customer import CARD, HTMX
from tests.unit.api.servers import running


def test_the_user_signs_in_with_a_key(guarded: TestClient, secured: SecuredGroup) -> None:
    """The cookie is for the console alone. The scopes of the key decide what the user sees and does."""
    assert 303 == guarded.get("/console/", follow_redirects=False).status_code
    part = guarded.get("/console/customer", params={"card": CARD}, headers=HTMX)
    assert (False, True) == ("hx-redirect" in part.headers, 'href="/console/sign-in"' in part.text)
    refused = guarded.post("/console/sign-in", data={"credentials": "lk_wrong"}, headers=HTMX)
    assert "caller is not known" in refused.text
    assert COOKIE not in guarded.cookies

    typed = guarded.post("/console/sign-in", data={"credentials": "schl\u00fcssel"}, headers=HTMX)
    assert (200, False) == (typed.status_code, "defect" in typed.text)
    assert COOKIE not in guarded.cookies

    typed = guarded.get("/console", follow_redirects=False)
    assert (303, "/console/") == (typed.status_code, typed.headers["location"])
    key = secured.key(Scope.BALANCE_READ).text
    accepted = guarded.post("/console/sign-in", data={"credentials": key}, headers=HTMX)
    cookie = accepted.headers["set-cookie"]
    assert "/console/" == accepted.headers["hx-redirect"]
    assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= set(cookie.split("; "))
    found = guarded.get("/console/customer", params={"card": CARD}).text
    assert "417.04" in found
    assert "Adjust" not in found
    forced = guarded.post("/console/customer/erase", data={"card": CARD, "key": "k"}, headers=HTMX).text
    assert "customer:erase" in forced
    # The API itself knows no cookie.
    assert 401 == guarded.get(f"/v1/customers/{CARD}/balance").status_code
    assert "dead-letters:manage" in guarded.get("/console/operations/dead-letters").text

    guarded.post("/console/sign-out", headers=HTMX)
    assert 303 == guarded.get("/console/", follow_redirects=False).status_code


@pytest.mark.parametrize(("scope", "sees"), [(Scope.BALANCE_READ, False), (Scope.OPERATE, True)])
def test_only_operators_begin_with_the_overview(
    guarded: TestClient, secured: SecuredGroup, scope: Scope, *, sees: bool
) -> None:
    """For the helpdesk each part of the overview would be an error, and its stream would make the page load again."""
    guarded.cookies.set(COOKIE, secured.key(scope).text, path="/console")
    first = guarded.get("/")
    assert ("/console/" if sees else "/console/helpdesk", 200) == (first.url.path, first.status_code)
    assert sees == (">Overview</a>" in first.text)


@pytest.mark.parametrize("path", ["/console/", "/console/helpdesk", "/console/operations", "/console/customer?card=1"])
def test_a_user_whom_the_api_cannot_name_now_sees_the_reason(
    guarded: TestClient, secured: SecuredGroup, path: str
) -> None:
    """The instance still restores its API keys."""
    guarded.cookies.set(COOKIE, secured.key(Scope.BALANCE_READ).text, path="/console")
    (task,) = secured.keys.tasks.values()
    task.progress.restored = False
    for headers in ({}, HTMX):
        answer = guarded.get(path, headers=headers)
        assert (200, True) == (answer.status_code, "Credentials cannot be checked now" in answer.text)


def test_text_that_fits_into_no_header_is_refused_as_a_key(client: TestClient) -> None:
    """An API without credentials accepts every caller, and a cookie has Latin-1 characters only."""
    answer = client.post("/console/sign-in", data={"credentials": "\u20ac"}, headers=HTMX)
    assert "This is not an API key or a token" in answer.text


def test_a_token_that_fits_into_no_cookie_is_refused(guarded: TestClient, secured: SecuredGroup) -> None:
    """The browser would drop the cookie, and ask the user to sign in again without a reason."""
    for length, is_refused in ((100, False), (4_000, True)):
        token = secured.issuer.token(padding="x" * length)
        answer = guarded.post("/console/sign-in", data={"credentials": token}, headers=HTMX)
        assert is_refused == ("The token is too long" in answer.text)
        assert is_refused == ("set-cookie" not in answer.headers)


def test_a_form_without_credentials_is_not_read(guarded: TestClient) -> None:
    """The API asks for the credentials first. A form that is too large shows that nobody has read it."""
    for path in ("customer/adjust", "operations/simulate", "operations/replay", "operations/programmes"):
        answer = guarded.post(f"/console/{path}", content=endless(), headers=HTMX)
        assert (200, True) == (answer.status_code, "The API does not know you any more" in answer.text)


def endless() -> Iterator[bytes]:
    """A form without a Content-Length."""
    for _ in range(40):
        yield b"a=b&" * 16_384


def test_a_form_of_another_site_has_no_effect(client: TestClient, instance: Instance) -> None:
    """A page of another site cannot send the header of htmx."""
    forms = ["customer/adjust", "customer/erase", "operations/replay", "operations/programmes", "sign-in"]
    for path in forms:
        answer = client.post(
            f"/console/{path}", data={"card": CARD, "key": "k", "confirmed": "yes"}, follow_redirects=False
        )
        assert (303, "/console/sign-in") == (answer.status_code, answer.headers["location"])
    assert [] == instance.command_log.commands


def test_a_client_that_leaves_before_its_form_leaves_no_traceback(
    instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    """Signing in needs no credentials, so anybody could fill the log, and cause the alert about failures."""
    settings, form = Settings(api_port=free_port()), b"Host: a\r\nHX-Request: true\r\nContent-Length: 9\r\n\r\n"

    def counted() -> str:
        lines = instance.app.state.dependencies.metrics.exposition().decode().splitlines()
        return "".join(line for line in lines if line.startswith("loyalty_http_requests_total{"))

    with running(server_of(instance.app, settings, None, 1)):
        with socket.create_connection((HOST, settings.api_port)) as connection:
            connection.sendall(b"POST /console/sign-in HTTP/1.1\r\n" + form)
        wait_for("the end of the request", lambda: 'route="/console/sign-in"' in counted())

    assert 'status="400"' in counted()
    assert [] == [each for each in caplog.records if each.levelname == "ERROR"]


def test_a_form_has_2_000_fields(client: TestClient) -> None:
    """An instance needs half a second to decode a million, and answers nobody in this time."""
    answers = [
        client.post("/console/operations/programmes", content="&".join(["a=1"] * number), headers=HTMX)
        for number in (2_000, 2_001)
    ]
    assert 200 == answers[0].status_code
    assert "unreadable-body" == problem_type(answers[1], 400)
