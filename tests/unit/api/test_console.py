"""The console: its pages show responses of the HTTP API, with the credentials of the user."""

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from fastapi.testclient import TestClient

from api.console import helpdesk
from api.console.actions import ACTIONS
from api.console.own_api import COOKIE
from api.console.rendering import page
from api.http.server import server_of
from infra.local.ports import HOST, free_port
from schemas.topics import LOYALTY_BALANCES, LOYALTY_DECISIONS, LOYALTY_PROGRAMMES
from services.api_keys.keys import Scope
from services.codecs.records import mark_of
from services.domain.entries import Kind
from services.ledger.queries import LedgerQueries
from services.settings import Settings
from services.state_stores.contract import Checkpoint
from services.state_stores.definition import VersionedValue
from tests.support.builders import available_points, entry, problem_type
from tests.support.clusters import Instance, with_marks
from tests.support.ledger import Ledger
from tests.support.secured import SecuredGroup
from tests.support.waiting import wait_for
from tests.unit.api.servers import running

CARD = "9265846829"
HTMX = {"HX-Request": "true"}
BALANCE = {
    "CustomerCardNo": CARD,
    **available_points("417.04"),
    "Sequence": 3,
    "OpenedTime": 1_767_373_451_000,
    "UpdatedTime": 1_767_373_451_000,
}


@pytest.fixture
def instance() -> Instance:
    instance = Instance()
    instance.own_everything()
    instance.write(LOYALTY_BALANCES, CARD, BALANCE)
    return instance


@pytest.fixture
def client(instance: Instance) -> Iterator[TestClient]:
    with TestClient(instance.app) as client:
        yield client


@pytest.fixture
def secured(tmp_path: Path) -> SecuredGroup:
    return SecuredGroup(tmp_path)


@pytest.fixture
def guarded(secured: SecuredGroup) -> Iterator[TestClient]:
    """An API that needs credentials."""
    instance = Instance("http://one:8080", secured.security("http://one:8080"))
    instance.own_everything()
    instance.write(LOYALTY_BALANCES, CARD, BALANCE)
    with TestClient(instance.app) as client:
        yield client


PAGES = ["", "helpdesk", f"helpdesk?card={CARD}", "operations", "sign-in"]


@pytest.mark.parametrize("page", PAGES)
def test_pages_load_from_this_instance_only(client: TestClient, page: str) -> None:
    """The policy allows no other host, no script and no style in the page. All files of the page are there."""
    answer = client.get(f"/console/{page}")
    assert 200 == answer.status_code
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"<script(?! src=)|<style| style=| on\w+=", answer.text)
    files = set(re.findall(r'(?:src|href)="(/console/static/[^"]+)"', answer.text))
    assert len(files) > 4
    assert {200} == {client.get(file).status_code for file in files}
    assert "//" not in re.sub(r'xmlns="[^"]+"', "", answer.text)


def test_the_root_leads_to_the_console(client: TestClient) -> None:
    for path in ("/", "/console"):
        answer = client.get(path, follow_redirects=False)
        assert (303, "/console/") == (answer.status_code, answer.headers["location"])


def test_a_customer_is_found_by_card(client: TestClient) -> None:
    """The page has the balance, the actions and the address of the stream. For an unknown card it shows the problem."""
    found = client.get("/console/customer", params={"card": f" {CARD} "}).text
    assert "417.04" in found
    assert f'data-events="/console/events/customers/{CARD}"' in found
    for action in ACTIONS.values():
        assert f">{action.label}</button>" in found
    assert "No such customer" in client.get("/console/customer", params={"card": "nobody"}).text
    assert "&lt;b&gt;" in client.get("/console/customer/adjust", params={"card": "<b>"}).text


def decide(instance: Instance, sequence: int = 3, **changes: Any) -> None:
    """Let each command be decided at once."""

    def answer(command: dict[str, Any]) -> None:
        decision = {
            **mark_of(command["CommandID"], "adjust", command["RequestHash"]),
            "Sequence": 2,
            "Status": "done",
            "CustomerCardNo": CARD,
            "Points": Decimal("5.00"),
            "OpenedTime": BALANCE["OpenedTime"],
            "AccountSequence": sequence,
            **changes,
        }
        instance.write(LOYALTY_DECISIONS, command["CommandID"], decision)

    with_marks(instance)
    instance.command_log.on_send = answer


def test_an_action_is_confirmed_and_takes_effect_once(client: TestClient, instance: Instance) -> None:
    """The confirmation has a key of its own. A second click sends no command."""
    decide(instance)
    fields = {"card": CARD, "points": "5.00", "reason": "goodwill", "actor": "Ann"}
    confirmation = client.post("/console/customer/adjust", data=fields, headers=HTMX).text
    assert [] == instance.command_log.commands
    (key,) = re.findall(r'name="key" value="([^"]+)"', confirmation)
    for _ in range(2):
        outcome = client.post("/console/customer/adjust", data=fields | {"key": key}, headers=HTMX).text
        assert "Adjust: done." in outcome
        assert "changed by 5.00" in outcome
    (command,) = instance.command_log.commands
    assert ("goodwill", "Ann", CARD) == (command["Reason"], command["Actor"], command["CustomerCardNo"])
    another = client.post("/console/customer/adjust", data=fields, headers=HTMX).text
    assert key not in another


def test_the_end_of_a_redemption_shows_its_card_and_its_points(client: TestClient, instance: Instance) -> None:
    """The user can type the redemption of another customer. A wrong one gives the form back."""
    decision = {
        **mark_of("r1", "reserve", ""),
        "Sequence": 2,
        "Status": "done",
        "Points": Decimal("50.00"),
        "OpenedTime": BALANCE["OpenedTime"],
    }
    for redemption, card in (("r1", CARD), ("r2", "OTHER")):
        instance.write(LOYALTY_DECISIONS, redemption, decision | {"CommandID": redemption, "CustomerCardNo": card})
        form = {"card": CARD, "redemption": redemption}
        asked = client.post("/console/customer/capture", data=form, headers=HTMX).text
        assert f"The redemption reserved 50.00 points of card {card}." in asked
        assert [redemption] == re.findall("<dd>(.*?)</dd>", asked)
        assert (card != CARD) == (f"This page has another card, {CARD}. It may have replaced the first card." in asked)
    instance.write(LOYALTY_DECISIONS, "r4", mark_of("r4", "reserve", ""))
    instance.write(LOYALTY_DECISIONS, "a1", decision | mark_of("a1", "adjust", "") | {"CustomerCardNo": CARD})
    instance.write(LOYALTY_DECISIONS, "r5", decision | {"CommandID": "r5", "CustomerCardNo": CARD, "Status": "refused"})
    for without in ("r4", "a1", "r5"):
        asked = client.post("/console/customer/capture", data=form | {"redemption": without}, headers=HTMX).text
        assert "This command has reserved no points." in asked
        assert [without] == re.findall("<dd>(.*?)</dd>", asked)
    wrong = client.post("/console/customer/void", data=form | {"redemption": "r3"}, headers=HTMX).text
    assert "No such command" in wrong
    assert ('value="r3"' in wrong, ">Continue</button>" in wrong) == (True, True)


def test_a_repetition_of_a_command_in_flight_keeps_its_key(client: TestClient, instance: Instance) -> None:
    """Somebody who started again with a new key would change the points twice."""
    with_marks(instance)
    client.post(
        f"/v1/customers/{CARD}/adjustments?timeout=0",
        json={"points": "5.00", "reason": "goodwill", "actor": "Ann"},
        headers={"Idempotency-Key": "k"},
    ).raise_for_status()
    fields = {"card": CARD, "points": "5.00", "reason": "goodwill", "actor": "Ann", "key": "k"}
    outcome = client.post("/console/customer/adjust", data=fields, headers=HTMX)
    assert "has no decision yet" in outcome.text
    assert "beforeend" == outcome.headers["hx-reswap"]
    assert 1 == len(instance.command_log.commands)


def test_a_form_without_credentials_is_not_read(guarded: TestClient) -> None:
    """The API asks for the credentials first. A form that is too large shows that nobody has read it."""
    for path in ("customer/adjust", "operations/simulate", "operations/replay", "operations/programmes"):
        answer = guarded.post(f"/console/{path}", content=endless(), headers=HTMX)
        assert (200, True) == (answer.status_code, "The API does not know you any more" in answer.text)


def endless() -> Iterator[bytes]:
    """A form without a Content-Length."""
    for _ in range(40):
        yield b"a=b&" * 16_384


def test_a_refused_command_can_be_corrected(client: TestClient) -> None:
    """The fields keep their texts, also after Back. The next confirmation has another key."""
    fields = {"card": CARD, "points": "0.00", "reason": "goodwill", "actor": "Ann", "key": "k"}
    refused = client.post("/console/customer/adjust", data=fields, headers=HTMX).text
    back = client.get("/console/customer/adjust", params=fields).text
    assert (True, False) == ("points: must not be 0" in refused, "points: must not be 0" in back)
    for form in (refused, back):
        assert ["0.00", "goodwill", "Ann"] == re.findall(r'<input id="field-\w+" name="\w+" value="([^"]+)"', form)
        assert ">Continue</button>" in form
        assert 'name="key"' not in form


def test_a_refusal_says_how_many_points_are_available(client: TestClient, instance: Instance) -> None:
    """The advice of the API names the member of the problem."""
    decide(instance, Status="refused", Reason="insufficient-points", AvailableLoyaltyPoints=Decimal("9.98"))
    fields = {"card": CARD, "points": "10.00", "reason": "", "key": "k"}
    refused = client.post("/console/customer/redeem", data=fields, headers=HTMX).text
    assert "Not enough points" in refused
    assert "9.98 points are available." in refused


@pytest.mark.usefixtures("_short_grace")
def test_a_command_that_reads_do_not_show_yet_is_called_done(
    client: TestClient, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision is known. Only the balance is not up to date yet."""
    monkeypatch.setattr(helpdesk, "_DECISION_SECONDS", 0)
    decide(instance, sequence=4)
    fields = {"card": CARD, "points": "5.00", "reason": "goodwill", "actor": "Ann", "key": "k"}
    outcome = client.post("/console/customer/adjust", data=fields, headers=HTMX)
    assert "The command is done, and the balance does not show it yet." in outcome.text
    assert "beforeend" == outcome.headers["hx-reswap"]


def test_the_page_of_a_refusal_has_the_reason_of_the_field(client: TestClient) -> None:
    """The reason is that of the API."""
    fields = {"card": CARD, "points": "many", "reason": "", "actor": "", "key": "k"}
    outcome = client.post("/console/customer/adjust", data=fields, headers=HTMX).text
    assert 'role="alert"' in outcome
    assert "points: should be a number in quotes" in outcome


def test_a_card_is_replaced_with_the_fields_of_the_api(client: TestClient, instance: Instance) -> None:
    decide(instance)
    fields = {"card": CARD, "newCard": "NEW", "reason": "lost", "actor": "Ann", "key": "k"}
    client.post("/console/customer/replace", data=fields, headers=HTMX)
    (command,) = instance.command_log.commands
    assert (CARD, "NEW") == (command["CustomerCardNo"], command["Counterparty"])


def test_the_page_of_a_replaced_card_leads_to_the_new_one(client: TestClient, instance: Instance) -> None:
    instance.write(LOYALTY_BALANCES, CARD, BALANCE | {"Sequence": 4, "MovedTo": "N E"})
    assert 'href="/console/helpdesk?card=N%20E"' in client.get("/console/customer", params={"card": CARD}).text


@pytest.mark.parametrize(("name", "accepts_negative"), [("adjust", True), ("redeem", False)])
def test_the_form_accepts_the_points_that_the_api_accepts(
    client: TestClient, name: str, *, accepts_negative: bool
) -> None:
    """The browser refuses other texts before the confirmation, and shows the label as the reason."""
    form = client.get(f"/console/customer/{name}", params={"card": CARD}).text
    (pattern,) = re.findall(r'name="points"[^>]* pattern="([^"]+)" title="Points, for example', form)
    assert all(re.fullmatch(pattern, points) for points in ("10", "10.5", "9999999999.99"))
    assert not any(re.fullmatch(pattern, points) for points in ("abc", '"2.50"', "1.234", "1,50", "", "12345678901"))
    assert accepts_negative == bool(re.fullmatch(pattern, "-5.00"))


def test_the_helpdesk_explains_that_it_cannot_show_a_card_with_a_slash(client: TestClient) -> None:
    """No path of a customer can have such a card. The store of balances shows it. An invoice may have a slash."""
    of_card = client.get("/console/helpdesk", params={"card": "a/bA"}).text
    assert "cannot show a card with a slash" in of_card
    assert "/v1/stores/customer-balances/keys/a%2FbA" in of_card
    assert "hx-get" not in of_card
    assert "The ledger is unavailable" in client.get("/console/helpdesk", params={"invoice": "1/2"}).text


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


def test_versions_are_shown_and_files_checked(client: TestClient, instance: Instance) -> None:
    version = {"Version": 1, "EffectiveTime": 0, "PublishedTime": 0, "Programme": "loyalty-factor: 0.05\n"}
    instance.write(LOYALTY_PROGRAMMES, "1", version)
    shown = client.get("/console/operations/programmes").text
    assert "loyalty-factor: 0.05" in shown
    for file, outcome in (("loyalty-factor: 0.05\n", "is valid"), ("loyalty-factor: x\n", "line 1")):
        answer = client.post("/console/operations/programmes", data={"programme": file, "do": "check"}, headers=HTMX)
        assert outcome in answer.text
    file = {"programme": "loyalty-factor: 0.05\n", "edited": "1"}
    asked = client.post("/console/operations/programmes", data=file | {"do": "publish"}, headers=HTMX).text
    assert "A version cannot be removed" in asked
    forced = client.post("/console/operations/programmes", data=file | {"do": "confirm"}, headers=HTMX).text
    assert "Kafka does not answer" in forced
    instance.write(LOYALTY_PROGRAMMES, "2", version | {"Version": 2})
    for do in ("publish", "confirm"):
        late = client.post("/console/operations/programmes", data=file | {"do": do}, headers=HTMX).text
        assert "Your text does not begin with the newest version" in late
    assert 'name="edited" value="2"' in client.get("/console/operations/programmes").text
    basket = client.post("/console/operations/simulate", data={"TotalAmount": "100"}, headers=HTMX).text
    assert "5.00 points" in basket
    for amount in ("nan", "1e999", "much", "10,5", "1_0", "\uff11\uff10\uff10", "[1]", "true"):
        refused = client.post("/console/operations/simulate", data={"TotalAmount": amount}, headers=HTMX)
        assert "TotalAmount: must be a number" in refused.text
    assert "TotalAmount: is missing" in client.post("/console/operations/simulate", headers=HTMX).text


def test_a_stream_that_cannot_begin_is_tried_again(client: TestClient, instance: Instance) -> None:
    """The browser tries again after an empty stream. It would log another status than 200 as an error."""
    for place in instance.membership.owned:
        instance.drop(place)
    shown = client.get("/console/customer/balance", params={"card": CARD}).text
    (again,) = re.findall(r'hx-get="([^"]+)" hx-trigger="every 2s"', shown)
    assert (204, "") == ((answer := client.get(again.replace("&amp;", "&"))).status_code, answer.text)
    away = client.get(f"/console/events/customers/{CARD}")
    assert (200, b"retry: 2000\n\n") == (away.status_code, away.content)
    assert "text/event-stream" == away.headers["content-type"]


@pytest.mark.parametrize("card", ["nobody", "%0A"])
def test_a_stream_that_can_never_begin_says_so(client: TestClient, guarded: TestClient, card: str) -> None:
    """The page then makes no more attempts. Each attempt with an ended token would count as a failed login."""
    ended, unknown = guarded.get(f"/console/events/customers/{card}"), client.get(f"/console/events/customers/{card}")
    assert (200, b"event: ended\ndata:\n\n") == (ended.status_code, ended.content)
    assert (200, b"event: erased\ndata: {}\n\n" + ended.content) == (unknown.status_code, unknown.content)
    assert "text/event-stream" == ended.headers["content-type"]
    assert 'addEventListener("ended"' in client.get("/console/static/console.js").text


def test_the_statement_loads_again_until_the_ledger_has_the_entries(
    client: TestClient, instance: Instance, ledger: Ledger
) -> None:
    """The ledger does not answer. Then it has no entry of the new customer, then an older one, and then all of them."""

    def statement(kind: str = "") -> tuple[str, bool]:
        answer = client.get("/console/customer/entries", params={"card": CARD, "kind": kind})
        again = r'hx-get="/console/customer/entries.*\bevery 2s'
        return answer.text, "again" in answer.headers.get("hx-trigger", "") or bool(re.search(again, answer.text))

    shown, loads_again = statement()
    assert ("The ledger is unavailable" in shown, loads_again) == (True, True)
    with closing(LedgerQueries(Settings(ledger_url=ledger.url))) as queries:
        instance.app.state.dependencies.ledger = queries
        shown, loads_again = statement()
        assert ("not in the ledger yet" in shown, loads_again) == (True, True)
        for sequence, is_behind in ((1, True), (3, False)):
            opened = BALANCE["OpenedTime"]
            ledger.append((CARD, entry(sequence, 100, time=opened, opened_time=opened, total=100)))
            shown, loads_again = statement()
            assert ("1.00" in shown, is_behind) == (True, loads_again)
            shown, loads_again = statement("adjusted")
            assert ("No entries." in shown, is_behind) == (True, loads_again)
        with patch.object(queries, "page", wraps=queries.page) as read:
            statement()
        assert 1 == read.call_count


@pytest.mark.parametrize(
    ("later", "offered"),
    [
        ([(Kind.EARNED, 300, "p3")], ["r2"]),
        ([(Kind.REDEEMED, 0, "c-r2")], []),
        ([(Kind.REDEEMED, 0, "c-r2"), (Kind.RESERVED, 200, "r4")], ["r4"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.REDEEMED, 300, "c-r2")], ["r3"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.VOIDED, 300, "c-r3")], ["r2"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.LAPSED, 300, "r2")], ["r3"]),
        ([(Kind.RESERVED, 600, "r3"), (Kind.VOIDED, 300, "unknown")], ["r3", "r2"]),
    ],
)
def test_the_statement_offers_no_end_for_reservations_that_have_ended(
    client: TestClient, instance: Instance, ledger: Ledger, later: list[tuple[Kind, int, str]], offered: list[str]
) -> None:
    """The decision of a capture or a void names its redemption, and the entry of a lapse does it, too. Two reservations
    have the same points. If the decision is not known, either one may be open. With a filter, the page does not show
    whether the reservations have ended.
    """
    kinds = [(Kind.EARNED, 0, "p1"), (Kind.RESERVED, 300, "r2"), *later]
    for number, (kind, reserved, event) in enumerate(kinds, start=1):
        change = {"kind": kind, "total": 900, "reserved": reserved, "event_id": event}
        ledger.append((CARD, entry(number, 0, time=BALANCE["OpenedTime"], opened_time=BALANCE["OpenedTime"], **change)))
    opened = {"CustomerCardNo": CARD, "OpenedTime": BALANCE["OpenedTime"]}
    for redemption in ("r2", "r3"):
        mark = {**mark_of(f"c-{redemption}", "capture", ""), "Sequence": 2, "Status": "done"}
        instance.write(LOYALTY_DECISIONS, f"c-{redemption}", mark | opened | {"RedemptionID": redemption})
    with closing(LedgerQueries(Settings(ledger_url=ledger.url))) as queries:
        instance.app.state.dependencies.ledger = queries
        pages = [
            client.get("/console/customer/entries", params={"card": CARD, "kind": kind}).text
            for kind in ("", "reserved")
        ]
    shown, filtered = (re.findall(r"/console/customer/capture\?[^\"]+redemption=(\w+)", page) for page in pages)
    assert (offered, []) == (shown, filtered)


def test_a_balance_of_release_01_is_shown(client: TestClient, instance: Instance) -> None:
    """An instance of release 0.1 answers without the newer members during an upgrade. The card is not blocked."""
    store = instance.stores["customer-balances"]
    task = store.tasks[store.partition_of(CARD.encode())]
    value = VersionedValue.unpack(task.store.get(CARD.encode()) or b"")
    newer = ("Blocked", "MovedTo", "NextExpiryTime", "NextExpiryPoints")
    body = {name: member for name, member in orjson.loads(value.body).items() if name not in newer}
    old = value._replace(body=orjson.dumps(body)).pack()
    task.store.apply({CARD.encode(): old}, Checkpoint("test", value.offset + 1, 0))
    shown = client.get("/console/customer/balance", params={"card": CARD}).text
    assert ("417.04" in shown, "blocked" in shown) == (True, False)
    basket = {"TotalAmount": "100", "CustomerCardNo": CARD}
    assert "2.00 points" in client.post("/console/operations/simulate", data=basket, headers=HTMX).text


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


def test_a_form_keeps_its_key_if_the_api_cannot_name_the_user(guarded: TestClient, secured: SecuredGroup) -> None:
    """An earlier attempt may have been executed. With a new key the points would change twice."""
    made = secured.key(Scope.POINTS_ADJUST)
    guarded.cookies.set(COOKIE, made.text, path="/console")
    fields = {"card": CARD, "points": "5.00", "reason": "goodwill", "actor": "Ann", "key": "k"}

    def reason() -> str:
        answer = guarded.post("/console/customer/adjust", data=fields, headers=HTMX)
        assert (200, "beforeend") == (answer.status_code, answer.headers["hx-reswap"])
        assert "hx-redirect" not in answer.headers
        return answer.text

    (task,) = secured.keys.tasks.values()
    task.progress.restored = False
    assert "Credentials cannot be checked now" in reason()
    task.progress.restored = True
    secured.publish(made.key.revoked(1))
    assert 'href="/console/sign-in" target="_blank"' in reason()


def test_a_form_keeps_its_key_if_its_user_has_lost_the_scope(guarded: TestClient, secured: SecuredGroup) -> None:
    """The first attempt may be executed without a response. Somebody who began again would change the points twice."""
    key = secured.key(Scope.BALANCE_READ)
    guarded.post("/console/sign-in", data={"credentials": key.text}, headers=HTMX)
    fields = {"card": CARD, "points": "5.00", "reason": "goodwill", "key": "k"}
    answer = guarded.post("/console/customer/adjust", data=fields, headers=HTMX)
    assert ("beforeend", True) == (answer.headers["hx-reswap"], "points:adjust" in answer.text)


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


@pytest.mark.parametrize("path", ["overview/state", "overview/reasons", "operations/dead-letters"])
def test_a_missing_broker_is_a_problem_on_the_page(client: TestClient, path: str) -> None:
    assert "Kafka does not answer" in client.get(f"/console/{path}").text


def test_the_settings_are_shown_without_kafka(client: TestClient) -> None:
    assert "LOYALTY_LOG_FORMAT" in client.get("/console/operations/settings").text


def test_a_replay_says_how_many_old_dead_letters_it_leaves_out() -> None:
    """If it leaves out all of them, there is nothing to confirm."""
    for selected, left_out in ((1, 0), (1, 2), (0, 2)):
        body = {"selected": selected, "leftOut": left_out, "topics": {"pos-invoices": selected}, "dryRun": True}
        answer = SimpleNamespace(is_good=True, body=body)
        html = bytes(page("replay.html", answer=answer, positions=["0:7"]).body).decode()
        assert bool(left_out) == ("Left out because of their age: 2." in html)
        assert bool(selected) == ("The replay publishes 1 to pos-invoices" in html) == ("Confirm" in html)


@pytest.mark.parametrize(
    ("may_replay", "shown", "not_shown"),
    [(True, ["<summary>no value</summary>", "5003"], "hidden"), (False, ["0 bytes, hidden"], "<summary>")],
)
def test_a_dead_letter_without_a_value_shows_its_key_to_users_who_may_see_it(
    shown: list[str], not_shown: str, *, may_replay: bool
) -> None:
    """A record with a null value is not hidden: it has nothing to show."""
    letter = {"position": "0:7", "time": None, "topic": "pos-invoices", "origin": "0:3", "reason": "there is no value"}
    letter |= {"key": "5003" if may_replay else None, "size": 0, "text": None, "hex": None}
    found = {"deadLetters": [letter], "total": 1, "next": None}

    html = bytes(page("dead_letters.html", found=found, may_replay=may_replay, reason="", is_first=True).body).decode()

    assert all(text in html for text in shown)
    assert not_shown not in html.partition("<tbody>")[2]
