"""POST /v1/simulate: the points that the published programme would give for a basket."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import current_programme
from api.http import bodies
from api.routers import simulation
from schemas.topics import LOYALTY_PROGRAMMES
from services.clock import now
from tests.support.builders import balance, problem_type
from tests.support.clusters import Group, Instance, damage

NOW = now()
PROGRAMME = """
loyalty-factor: 0.02
tier-period: year
tiers:
  - {name: silver, points: 100, multiplier: 1.5}
campaigns:
  - {name: tea week, items: ["458"], multiplier: 3}
"""


@pytest.fixture
def instance() -> Instance:
    instance = Instance()
    instance.own_everything()
    return instance


@pytest.fixture
def client(instance: Instance) -> Iterator[TestClient]:
    with TestClient(instance.app, raise_server_exceptions=False) as client:
        yield client


def publish(instance: Instance, version: int, effective_time: int, text: str = PROGRAMME) -> None:
    record = {"Version": version, "EffectiveTime": effective_time, "PublishedTime": 0, "Programme": text}
    instance.write(LOYALTY_PROGRAMMES, str(version), record)


def simulate(client: TestClient, **basket: Any) -> dict[str, Any]:
    answer = client.post("/v1/simulate", json=basket)
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


def parts(answer: dict[str, Any]) -> dict[str, str]:
    return {part["Name"]: part["LoyaltyPoints"] for part in answer["Parts"]}


def test_rules_that_take_points_are_negative_parts(client: TestClient, instance: Instance) -> None:
    """They are tax, excluded items and the cap."""
    rules = "loyalty-factor: 0.02\ntax-basis: taxable\nexcluded-items: ['458']\ncap-per-invoice: 1.00\n"
    publish(instance, 1, NOW - 1_000, rules)
    lines = [{"ItemCode": "458", "TotalValue": 20.0}, {"TotalValue": 98.0}]

    earned = simulate(client, TotalAmount=118.0, TaxableAmount=100.0, InvoiceLineItems=lines)

    assert {"base": "2.36", "tax": "-0.36", "excluded-items": "-0.40", "cap-per-invoice": "-0.60"} == parts(earned)
    assert "1.00" == earned["EarnedLoyaltyPoints"]
    little = simulate(client, TotalAmount=118.0, TaxableAmount=0.0)
    assert {"base": "2.36", "tax": "-2.36"} == parts(little)


def test_a_blocked_card_earns_nothing_if_the_programme_says_so(client: TestClient, instance: Instance) -> None:
    """A part shows what the block takes. By default a blocked card earns."""
    topic, card, record = balance("4711", "150.00")
    instance.write(topic, card, record | {"Blocked": True})
    assert "2.00" == simulate(client, TotalAmount=100.0, CustomerCardNo="4711")["EarnedLoyaltyPoints"]
    publish(instance, 1, NOW - 1_000, "loyalty-factor: 0.02\nblocked-cards: earn-nothing\n")

    earned = simulate(client, TotalAmount=100.0, CustomerCardNo="4711")

    assert {"base": "2.00", "card-blocked": "-2.00"} == parts(earned)
    assert "0.00" == earned["EarnedLoyaltyPoints"]


def test_before_any_programme_the_factor_decides(client: TestClient) -> None:
    """0.02 points for PRIME, rounded half up, and none for others. Other members of the invoice are ignored."""
    earned = simulate(client, TotalAmount=100.25, InvoiceNumber="1", CashierID="x", PaymentMethod="CARD")

    assert ("2.01", 0, True, None) == (
        earned["EarnedLoyaltyPoints"],
        earned["ProgrammeVersion"],
        earned["Eligible"],
        earned["Tier"],
    )
    assert {"base": "2.01"} == parts(earned)
    other = simulate(client, TotalAmount=100.25, CustomerType="NONPRIME")
    assert ("0.00", False, []) == (other["EarnedLoyaltyPoints"], other["Eligible"], other["Parts"])


def test_the_parts_say_where_points_come_from(client: TestClient, instance: Instance) -> None:
    """The parts are base, tier and campaign, and add up. The tier is the present tier of the customer."""
    publish(instance, 1, NOW - 1_000)
    topic, card, record = balance("4711", "150.00")
    instance.write(topic, card, {**record, "Tier": "silver"})
    lines = [{"ItemCode": "458", "TotalValue": 100.0}, {"ItemCode": "1", "TotalValue": 400.0}]

    earned = simulate(client, TotalAmount=500.0, CustomerCardNo="4711", InvoiceLineItems=lines)

    assert {"base": "10.00", "silver": "5.00", "tea week": "6.00"} == parts(earned)
    assert ("21.00", "silver", 1) == (earned["EarnedLoyaltyPoints"], earned["Tier"], earned["ProgrammeVersion"])
    stranger = simulate(client, TotalAmount=500.0, CustomerCardNo="nobody", InvoiceLineItems=lines)
    assert ({"base": "10.00", "tea week": "4.00"}, None) == (parts(stranger), stranger["Tier"])


def test_the_version_in_force_decides(client: TestClient, instance: Instance) -> None:
    """The latest version that has taken effect decides. A future version does not count."""
    publish(instance, 1, NOW - 2_000, "loyalty-factor: 0.03\n")
    publish(instance, 2, NOW - 1_000, "loyalty-factor: 0.04\n")
    publish(instance, 3, NOW + 3_600_000, "loyalty-factor: 0.05\n")

    earned = simulate(client, TotalAmount=100.0)

    assert ("4.00", 2) == (earned["EarnedLoyaltyPoints"], earned["ProgrammeVersion"])


def test_a_basket_has_the_notation_of_invoices(client: TestClient, instance: Instance) -> None:
    """A whole number may stand for a text, seconds for milliseconds, and null for a missing member."""
    publish(instance, 1, 0)
    line = {"ItemCode": "458", "TotalValue": 100}
    expected = simulate(client, TotalAmount=100, StoreID="7", CreatedTime=NOW // 1000 * 1000, InvoiceLineItems=[line])
    spelled = {"StoreID": 7, "CustomerType": None, "TaxableAmount": None, "OriginalInvoiceNumber": None}
    line = {"ItemCode": 458, "TotalValue": 100}

    found = simulate(client, TotalAmount=100, CreatedTime=NOW // 1000, InvoiceLineItems=[line], **spelled)
    assert expected == found
    assert "tea week" in parts(found)
    assert "0.00" != simulate(client, TotalAmount=100, InvoiceLineItems=None)["EarnedLoyaltyPoints"]


def test_nothing_is_stored(client: TestClient, instance: Instance) -> None:
    """There is no command and no balance, so the customer stays unknown."""
    simulate(client, TotalAmount=100.0, CustomerCardNo="4711")

    assert ([], []) == (instance.command_log.commands, instance.command_log.marks)
    assert 404 == client.get("/v1/customers/4711/balance").status_code
    assert 0 == sum(task.store.count() for store in instance.stores.values() for task in store.tasks.values())


def test_a_discount_is_a_negative_line(client: TestClient, instance: Instance) -> None:
    """This is as on an invoice."""
    publish(instance, 1, NOW - 1_000)
    lines = [{"ItemCode": "458", "TotalValue": 120.0}, {"ItemCode": "discount", "TotalValue": -20.0}]
    assert "6.80" == simulate(client, TotalAmount=100.0, InvoiceLineItems=lines)["EarnedLoyaltyPoints"]


def test_a_late_receipt_is_decided_as_the_invoice_would_be(client: TestClient, instance: Instance) -> None:
    """The version at the time of the receipt decides, unless the receipt is too old."""
    basis = "time-basis: till\nlargest-backdating: P1D\n"
    publish(instance, 1, 0, f"loyalty-factor: 0.01\n{basis}")
    publish(instance, 2, NOW - 1_000, f"loyalty-factor: 0.02\n{basis}")
    for created, points, version in ((NOW - 5_000, "1.00", 1), (NOW - 90_000_000, "2.00", 2), (NOW, "2.00", 2)):
        found = simulate(client, TotalAmount=100.0, CreatedTime=created)
        assert (points, version) == (found["EarnedLoyaltyPoints"], found["ProgrammeVersion"])


def test_a_replaced_card_is_no_new_customer(client: TestClient, instance: Instance) -> None:
    """The invoices of the card earn for the new card, whose tier can be another one."""
    topic, card, record = balance("4711", "0.00")
    instance.write(topic, card, {**record, "MovedTo": "4712"})
    answer = client.post("/v1/simulate", json={"TotalAmount": 100.0, "CustomerCardNo": "4711"})
    assert (410, "4712") == (answer.status_code, answer.json()["newCard"])


def test_the_time_to_wait_comes_from_the_owner_of_the_card() -> None:
    """Clients repeat a request after 503 only with Retry-After."""

    async def steps() -> None:
        group = Group.of(2)
        group.instances[0].own_everything(target=1)
        group.share(lambda _: 0)
        async with group.running() as client:
            answer = await client.post(1, "/v1/simulate", {"TotalAmount": 100, "CustomerCardNo": "4711"})
        assert ("1", "restoring") == (answer.headers["retry-after"], problem_type(answer, 503))

    asyncio.run(steps())


def test_a_standby_marks_its_balance_as_stale() -> None:
    """It can lag, so a card that it does not have may exist."""

    async def steps() -> None:
        group = Group.of(2)
        owner, standby = group.instances
        group.share(lambda _: 0, lambda _: 1)
        topic, card, record = balance("4711", "150.00")
        standby.write(topic, card, {**record, "Tier": "silver"})
        owner.write(topic, card, {**record, "Tier": "gold", "Sequence": record["Sequence"] + 1})
        async with group.running() as client:
            for tier, stale in (("gold", "false"), ("silver", "true")):
                answer = await client.post(1, "/v1/simulate", {"TotalAmount": 100, "CustomerCardNo": card})
                assert (200, tier) == (answer.status_code, answer.json()["Tier"])
                assert stale == answer.headers["loyalty-stale"]
                url = f"{standby.url}/console/operations/simulate"
                form = {"TotalAmount": "100", "CustomerCardNo": card}
                page = await client.http.post(url, data=form, headers={"HX-Request": "true"})
                assert (True, stale == "true") == (tier in page.text, "standby" in page.text)
                group.dead.add(owner.url)
            answer = await client.post(1, "/v1/simulate", {"TotalAmount": 100, "CustomerCardNo": "4712"})
            assert "rebalancing" == problem_type(answer, 503)
            answer = await client.post(1, "/v1/simulate", {"TotalAmount": 100})
            assert "loyalty-stale" not in answer.headers

    asyncio.run(steps())


@pytest.mark.parametrize(
    "basket",
    [
        {},
        {"TotalAmount": -1},
        {"TotalAmount": 1e11},
        {"TotalAmount": 1, "InvoiceLineItems": [{"ItemCode": "1", "TotalValue": -1e11}]},
        {"TotalAmount": 1, "CreatedTime": 2**62},
        {"TotalAmount": 1, "CustomerCardNo": ""},
    ],
)
def test_an_invalid_basket_is_refused(client: TestClient, basket: dict[str, Any]) -> None:
    """422 for a missing, negative or too large amount, an impossible time and an empty card."""
    assert "invalid-parameters" == problem_type(client.post("/v1/simulate", json=basket), 422)


def test_a_programme_that_cannot_be_read_says_so(client: TestClient, instance: Instance) -> None:
    """503 programme-unreadable with the version, which may need a newer instance."""
    publish(instance, 4, NOW - 1_000, "loyalty-factor: much\n")

    answer = client.post("/v1/simulate", json={"TotalAmount": 1})

    assert ("programme-unreadable", 4) == (problem_type(answer, 503), answer.json()["version"])


def test_the_programme_must_be_restored_first(instance: Instance, client: TestClient) -> None:
    """503 while the global store is missing. An answer by version 0 would be wrong."""
    instance.drop((LOYALTY_PROGRAMMES.name, 0))

    assert "starting" == problem_type(client.post("/v1/simulate", json={"TotalAmount": 1}), 503)


def test_a_damaged_programme_store_is_a_problem(client: TestClient, instance: Instance) -> None:
    """503 until the store is rebuilt."""
    damage(instance.stores["programmes"].tasks[0])

    for _ in range(2):
        assert "restoring" == problem_type(client.post("/v1/simulate", json={"TotalAmount": 1}), 503)


def test_a_thread_computes_a_basket(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large basket takes a second of Python. Meanwhile the instance answers other requests."""
    threads: list[str] = []
    whole = simulation.accrual

    def accrual(*basket: Any, **rules: Any) -> Any:
        threads.append(threading.current_thread().name)
        return whole(*basket, **rules)

    monkeypatch.setattr(simulation, "accrual", accrual)
    simulate(client, TotalAmount=100.0)

    (thread,) = threads
    assert thread == "AnyIO worker thread"


def test_a_thread_parses_a_large_body(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest basket takes 20 ms of Python. A small body would wait longer for a thread than for the parser."""
    threads: list[str] = []
    whole = bodies.parse_body

    def parse(body: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return whole(body)

    monkeypatch.setattr(bodies, "parse_body", parse)
    simulate(client, TotalAmount=1.0)
    line = {"ItemCode": "458", "TotalValue": 1.0}
    simulate(client, TotalAmount=500.0, InvoiceLineItems=[line] * 500)
    small, large = threads
    assert small != large == "AnyIO worker thread"


def test_a_thread_parses_a_new_version(client: TestClient, instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large programme takes seconds of Python. Meanwhile the instance answers other requests."""
    threads: list[str] = []
    whole = current_programme.parse_programme

    def parse(text: str, *, is_published: bool) -> Any:
        threads.append(threading.current_thread().name)
        return whole(text, is_published=is_published)

    monkeypatch.setattr(current_programme, "parse_programme", parse)
    publish(instance, 1, NOW - 1000)
    simulate(client, TotalAmount=100.0)
    simulate(client, TotalAmount=100.0)

    (thread,) = threads
    assert thread.startswith("asyncio_")
