"""The parts of the overview and of the page of operations."""

from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from api.console.rendering import page
from schemas.topics import LOYALTY_PROGRAMMES
from tests.support.clusters import Instance
from tests.unit.api.console.console_customer import HTMX


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
