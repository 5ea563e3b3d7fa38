"""The pages of the console, and what they show of a customer."""

import re

import orjson
import pytest
from fastapi.testclient import TestClient

from api.console.actions import ACTIONS
from schemas.topics import LOYALTY_BALANCES
from services.state_stores.contract import Checkpoint
from services.state_stores.definition import VersionedValue
from tests.support.clusters import Instance
from tests.unit.api.console.console_customer import BALANCE, CARD, HTMX, PAGES


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


def test_the_page_of_a_replaced_card_leads_to_the_new_one(client: TestClient, instance: Instance) -> None:
    instance.write(LOYALTY_BALANCES, CARD, BALANCE | {"Sequence": 4, "MovedTo": "N E"})
    assert 'href="/console/helpdesk?card=N%20E"' in client.get("/console/customer", params={"card": CARD}).text


def test_the_helpdesk_explains_that_it_cannot_show_a_card_with_a_slash(client: TestClient) -> None:
    """No path of a customer can have such a card. The store of balances shows it. An invoice may have a slash."""
    of_card = client.get("/console/helpdesk", params={"card": "a/bA"}).text
    assert "cannot show a card with a slash" in of_card
    assert "/v1/stores/customer-balances/keys/a%2FbA" in of_card
    assert "hx-get" not in of_card
    assert "The ledger is unavailable" in client.get("/console/helpdesk", params={"invoice": "1/2"}).text


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
