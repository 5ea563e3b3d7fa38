"""Commands of the helpdesk: their forms, confirmations and outcomes."""

import re
from decimal import Decimal

import pytest
from fastapi.testclient import TestClient

from api.console import helpdesk
from api.console.own_api import COOKIE
from schemas.topics import LOYALTY_DECISIONS
from services.api_keys.keys import Scope
from services.codecs.records import mark_of
from tests.support.clusters import Instance, with_marks
from tests.support.secured import SecuredGroup
from tests.unit.api.console.console_customer import BALANCE, CARD, HTMX, decide


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


def test_a_card_is_replaced_with_the_fields_of_the_api(client: TestClient, instance: Instance) -> None:
    decide(instance)
    fields = {"card": CARD, "newCard": "NEW", "reason": "lost", "actor": "Ann", "key": "k"}
    client.post("/console/customer/replace", data=fields, headers=HTMX)
    (command,) = instance.command_log.commands
    assert (CARD, "NEW") == (command["CustomerCardNo"], command["Counterparty"])


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


def test_the_page_of_a_refusal_has_the_reason_of_the_field(client: TestClient) -> None:
    """The reason is that of the API."""
    fields = {"card": CARD, "points": "many", "reason": "", "actor": "", "key": "k"}
    outcome = client.post("/console/customer/adjust", data=fields, headers=HTMX).text
    assert 'role="alert"' in outcome
    assert "points: should be a number in quotes" in outcome


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
