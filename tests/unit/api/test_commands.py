"""Commands over HTTP: real apps, memory stores and accounts. The test replaces Kafka."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from services.clock import boot_seconds
from services.domain.account.commands import MOST_RESERVATIONS
from services.domain.account.lots import Terms
from services.domain.account.model import EVENT_MEMORY, Account, Reservation
from tests.support.builders import CARD, problem_type
from tests.support.loyalty_query import NOW, Scene
from tests.unit.api.three_instances import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

MEMBERS = ("Status", "Kind", "Points", "ReservedPoints")


async def test_a_redemption_sets_points_aside_and_the_next_read_shows_it(scene: Scene) -> None:
    """201 with id and expiry. Loyalty-Sequence is that of the balance, which shows the reserved points."""
    scene.earn("25.00")
    answer = await scene.redeem("10.5")

    body = answer.json()
    assert (201, "done", "reserve", "0.00", "10.50") == (answer.status_code, *(body[each] for each in MEMBERS))
    assert body["RedemptionID"] == body["CommandID"]
    assert "2023-11-14T22:28:20.002000Z" == body["ExpiresTime"]
    assert f"/v1/commands/{body['CommandID']}" == answer.headers["location"]
    assert "RequestHash" not in body
    balance = await scene.balance()
    assert answer.headers["loyalty-sequence"] == str(balance["Sequence"])
    assert ("25.00", "14.50", "10.50") == tuple(
        balance[f"{part}LoyaltyPoints"] for part in ("Total", "Available", "Reserved")
    )
    assert body == (await scene.ask("GET", answer.headers["location"], key=None)).json()


@pytest.mark.parametrize("kind", ["redemption", "transfer"])
async def test_points_of_a_card_that_nobody_has_are_an_unknown_customer_and_open_no_account(
    scene: Scene, kind: str
) -> None:
    """404, and Kafka gets nothing: no mark, no command. After the first invoice, the same request is executed."""

    async def request() -> Any:
        if kind == "redemption":
            return await scene.redeem("10.00", key="a-key")
        body = {"from": CARD, "to": "another", "points": "10.00"}
        return await scene.ask("POST", "/v1/transfers", body, key="a-key")

    answer = await request()
    assert "unknown-customer" == problem_type(answer, 404)
    assert ([], []) == (scene.marks, scene.sent)
    assert {} == scene.accounts.by_card

    scene.earn("25.00")
    assert (201, "done") == ((again := await request()).status_code, again.json()["Status"])


async def test_a_redemption_is_captured_or_made_void(scene: Scene) -> None:
    """Capture takes the points and void frees them. A closed redemption is refused, and an unknown one is not found."""
    scene.earn("25.00")
    first, second = [(await scene.redeem(key=key)).json()["RedemptionID"] for key in ("a", "b")]

    captured = await scene.ask("POST", f"/v1/redemptions/{first}/capture")
    freed = await scene.ask("POST", f"/v1/redemptions/{second}/void")
    late = await scene.ask("POST", f"/v1/redemptions/{first}/void", key="k-2")
    unknown = await scene.ask("POST", "/v1/redemptions/nothing/capture")
    no_redemption = await scene.ask("POST", f"/v1/redemptions/{captured.json()['CommandID']}/void")

    assert [200, 200] == [captured.status_code, freed.status_code]
    assert ("capture", "-10.00", first) == tuple(captured.json()[name] for name in ("Kind", "Points", "RedemptionID"))
    assert "unknown-redemption" == problem_type(late, 409)
    assert "check whether this one was captured" in late.json()["detail"]
    assert ["unknown-redemption"] * 2 == [problem_type(unknown, 404), problem_type(no_redemption, 404)]
    balance = await scene.balance()
    assert ("15.00", "15.00", "0.00") == tuple(
        balance[f"{part}LoyaltyPoints"] for part in ("Total", "Available", "Reserved")
    )
    assert ["reserve", "reserve", "capture", "void", "void"] == [each["Kind"] for each in scene.sent]


async def test_a_capture_waits_for_the_decision_of_its_redemption(scene: Scene) -> None:
    """409 at the end of the wait, and nothing is sent: nobody knows the customer of the redemption yet."""
    scene.earn("25.00")
    scene.decides = False
    redemption = (await scene.redeem(query="?timeout=0")).json()["CommandID"]
    path = f"/v1/redemptions/{redemption}/capture"
    assert "redemption-pending" == problem_type(await scene.ask("POST", f"{path}?timeout=0"), 409)
    waiting = asyncio.create_task(scene.ask("POST", path, key="k-2"))
    await until(lambda: scene.group.instances[0].waiters._waiting)
    scene.decides = True
    scene.decide()
    assert 200 == (await asyncio.wait_for(waiting, 20)).status_code
    assert ["reserve", "capture"] == [each["Kind"] for each in scene.sent]


async def test_open_redemptions_of_a_customer_have_a_limit(scene: Scene) -> None:
    """409 too-many-redemptions, and the detail says what to do. After a void, a new key is accepted."""
    lapses_time = NOW + EVENT_MEMORY
    reservations = {f"open-{each}": Reservation(lapses_time, {Terms(): 1}) for each in range(MOST_RESERVATIONS - 1)}
    scene.accounts.by_card[CARD] = Account(NOW, reservations=reservations)
    scene.earn("25.00")
    last = await scene.redeem("1", key="last")
    refused = await scene.redeem("1", key="further")

    assert 201 == last.status_code
    assert "too-many-redemptions" == problem_type(refused, 409)
    assert "24.00" == refused.json()["AvailableLoyaltyPoints"]
    assert f"has {MOST_RESERVATIONS:,} open redemptions or more. Capture or void" in refused.json()["detail"]
    await scene.ask("POST", f"/v1/redemptions/{last.json()['RedemptionID']}/void", key="void")
    assert "too-many-redemptions" == problem_type(await scene.redeem("1", key="further"), 409)
    assert 201 == (await scene.redeem("1", key="new")).status_code


async def test_an_adjustment_changes_the_points(scene: Scene) -> None:
    """It has a sign, a reason and an actor. It goes below zero only if the client allows it."""
    path, words = f"/v1/customers/{CARD}/adjustments", {"reason": "goodwill", "actor": "clerk 7"}
    given = await scene.ask("POST", path, {"points": "5", **words})
    refused = await scene.ask("POST", path, {"points": "-5.01", **words}, "k-2")
    forced = await scene.ask("POST", path, {"points": "-5.01", "allowNegative": True, **words}, "k-3")

    assert [201, 201] == [given.status_code, forced.status_code]
    assert "insufficient-points" == problem_type(refused, 409)
    assert ("5.00", "refused") == tuple(refused.json()[name] for name in ("AvailableLoyaltyPoints", "Status"))
    assert "-0.01" == (await scene.balance())["TotalLoyaltyPoints"]
    assert ("goodwill", "clerk 7") == (scene.sent[0]["Reason"], scene.sent[0]["Actor"])


async def test_nothing_is_taken_from_an_unknown_card(scene: Scene) -> None:
    """A negative adjustment opens no account, except as a debt."""
    body = {"points": "-1.00", "reason": "typing error", "actor": "clerk 7"}
    unknown = await scene.ask("POST", "/v1/customers/4711/adjustments", body)
    assert ("unknown-customer", []) == (problem_type(unknown, 404), scene.sent)
    debt = await scene.ask("POST", "/v1/customers/4711/adjustments", {**body, "allowNegative": True}, "k-2")
    assert (201, "-1.00") == (debt.status_code, debt.json()["TotalLoyaltyPoints"])


async def test_points_are_given_to_another_customer(scene: Scene) -> None:
    """The points leave one card and arrive on the other. A transfer to the same card is refused."""
    scene.earn("25.00")
    sent = await scene.ask("POST", "/v1/transfers", {"from": CARD, "to": "4711", "points": "10.00"})
    same = await scene.ask("POST", "/v1/transfers", {"from": CARD, "to": CARD, "points": "1"}, "k-2")

    assert (201, "transfer", "-10.00") == (sent.status_code, sent.json()["Kind"], sent.json()["Points"])
    assert "same-customer" == problem_type(same, 409)
    assert ("15.00", "10.00") == (
        (await scene.balance())["TotalLoyaltyPoints"],
        (await scene.balance("4711"))["TotalLoyaltyPoints"],
    )


async def test_a_blocked_card_cannot_redeem_until_it_is_unblocked(scene: Scene) -> None:
    """The balance shows the block. A redemption and a transfer are 409 card-blocked. An unknown card stays unknown."""
    scene.earn("25.00")
    words = {"reason": "lost", "actor": "clerk 7"}
    assert "unknown-customer" == problem_type(await scene.ask("POST", "/v1/customers/4711/block", words), 404)

    blocked = await scene.ask("POST", f"/v1/customers/{CARD}/block", words)
    assert (201, "block", "0.00") == (blocked.status_code, blocked.json()["Kind"], blocked.json()["Points"])
    assert (await scene.balance())["Blocked"] is True
    transfer = {"from": CARD, "to": "4711", "points": "1"}
    assert "card-blocked" == problem_type(await scene.redeem("1", key="blocked"), 409)
    assert "card-blocked" == problem_type(await scene.ask("POST", "/v1/transfers", transfer), 409)

    unblocked = await scene.ask("POST", f"/v1/customers/{CARD}/unblock", words)
    assert (201, "unblock") == (unblocked.status_code, unblocked.json()["Kind"])
    assert (await scene.balance())["Blocked"] is False
    assert 201 == (await scene.redeem("1", key="unblocked")).status_code
    assert [("lost", "clerk 7")] * 2 == [
        (each["Reason"], each["Actor"]) for each in scene.sent if each["Kind"].endswith("block")
    ]


async def test_a_replaced_card_says_where_its_account_is(scene: Scene) -> None:
    """Reads of the old card are 410 with the new card, and its commands are refused. An open redemption continues."""
    scene.earn("25.00")
    scene.earn("1.00", card="used")
    open_redemption = (await scene.redeem("10.00", key="open")).json()["RedemptionID"]
    path, words = f"/v1/customers/{CARD}/replacement", {"reason": "lost", "actor": "clerk 7"}

    used = await scene.ask("POST", path, {"newCard": "used", **words})
    assert "card-in-use" == problem_type(used, 409)
    same = await scene.ask("POST", path, {"newCard": CARD, **words}, "same")
    assert "same-customer" == problem_type(same, 409)
    unknown = await scene.ask("POST", "/v1/customers/nobody/replacement", {"newCard": "new", **words})
    assert "unknown-customer" == problem_type(unknown, 404)

    moved = await scene.ask("POST", path, {"newCard": "new", **words}, "replace")
    assert (201, "replace", "-25.00") == (moved.status_code, moved.json()["Kind"], moved.json()["Points"])
    again = await scene.ask("POST", path, {"newCard": "new", **words}, "replace")
    assert moved.json() == again.json()
    back = await scene.ask("POST", "/v1/customers/used/replacement", {"newCard": CARD, **words}, "back")
    assert ("card-replaced", "new") == (problem_type(back, 409), back.json()["newCard"])
    assert "The other card of the request was replaced" in back.json()["detail"]
    nowhere = await scene.ask("POST", "/v1/customers/used/merge", {"into": "nobody", **words}, "nowhere")
    assert "unknown-customer" == problem_type(nowhere, 404)
    assert "(the member into) has no balance" in nowhere.json()["detail"]

    gone = await scene.ask("GET", f"/v1/customers/{CARD}/balance", key=None)
    assert ("card-replaced", "new") == (problem_type(gone, 410), gone.json()["newCard"])
    old = f"{scene.group.instances[0].url}/v1/customers/{CARD}/balance"
    known = await scene.http.get(old, headers={"If-None-Match": "*"})
    assert "card-replaced" == problem_type(known, 410), "a client with the old version learns it, too"
    assert "card-replaced" == problem_type(await scene.redeem("1.00", key="late"), 409)
    balance = await scene.balance("new")
    assert ("25.00", "10.00", None) == (
        *(balance[name] for name in ("TotalLoyaltyPoints", "ReservedLoyaltyPoints", "MovedTo")),
    )
    captured = await scene.ask("POST", f"/v1/redemptions/{open_redemption}/capture")
    assert (200, "new") == (captured.status_code, captured.json()["CustomerCardNo"])
    assert captured.headers["loyalty-sequence"] == str((await scene.balance("new"))["Sequence"])
    assert "15.00" == (await scene.balance("new"))["TotalLoyaltyPoints"]


async def test_two_accounts_are_merged(scene: Scene) -> None:
    """The target must have an account, and must not have moved itself."""
    scene.earn("25.00")
    scene.earn("1.00", card="4711")
    scene.earn("2.00", card="4712")
    words = {"reason": "two cards", "actor": "clerk 7"}
    unknown = await scene.ask("POST", f"/v1/customers/{CARD}/merge", {"into": "nobody", **words})
    assert "unknown-customer" == problem_type(unknown, 404)

    merged = await scene.ask("POST", f"/v1/customers/{CARD}/merge", {"into": "4711", **words}, "k-2")
    assert (201, "merge") == (merged.status_code, merged.json()["Kind"])
    assert "26.00" == (await scene.balance("4711"))["TotalLoyaltyPoints"]
    elsewhere = await scene.ask("POST", "/v1/customers/4712/merge", {"into": CARD, **words})
    assert ("card-replaced", "4711") == (problem_type(elsewhere, 409), elsewhere.json()["newCard"])


async def test_an_erased_customer_is_unknown_and_begins_anew(scene: Scene) -> None:
    """200, also when repeated. The balance is 404, old commands are unknown, and later events open a new account."""
    scene.earn("25.00")
    before = await scene.redeem()
    erased = await scene.ask("DELETE", f"/v1/customers/{CARD}")
    again = await scene.ask("DELETE", f"/v1/customers/{CARD}")

    assert (200, 200) == (erased.status_code, again.status_code)
    assert erased.json() == again.json()
    assert CARD not in erased.text
    gone = await scene.ask("GET", f"/v1/customers/{CARD}/balance", key=None)
    assert "unknown-customer" == problem_type(gone, 404)
    assert "unknown-command" == problem_type(await scene.ask("GET", before.headers["location"], key=None), 404)
    scene.earn("3.00")
    balance = await scene.balance()
    assert ("3.00", 1) == (balance["TotalLoyaltyPoints"], balance["Sequence"])
    assert 201 == (await scene.redeem("2.00", "k-2")).status_code
    assert 200 == (await scene.ask("DELETE", "/v1/customers/nobody")).status_code


async def test_a_retry_after_an_erasure_is_refused_and_not_sent(scene: Scene) -> None:
    """The decision is gone with the customer, so the retry gets 409. It does not open a new account."""
    scene.earn("25.00")
    assert 201 == (await scene.redeem("10.00", "k-1")).status_code
    assert 200 == (await scene.ask("DELETE", f"/v1/customers/{CARD}")).status_code
    sent = len(scene.sent)
    assert "command-erased" == problem_type(await scene.redeem("10.00", "k-1"), 409)
    assert "idempotency-key-reused" == problem_type(await scene.redeem("11.00", "k-1"), 422)
    assert sent == len(scene.sent)
    gone = await scene.ask("GET", f"/v1/customers/{CARD}/balance", key=None)
    assert "unknown-customer" == problem_type(gone, 404)


async def test_a_command_whose_customer_is_erased_while_it_waits_is_refused(scene: Scene) -> None:
    """One micro-batch decides the redemption and then erases the customer. The API shows nothing of an erased customer,
    and a client must not take the points for redeemed. A read that waits for the decision gets 404.
    """
    scene.earn("25.00")
    scene.decides = False
    waiting = asyncio.create_task(scene.redeem())
    await scene.until_sent(1)
    path = f"/v1/commands/{scene.sent[0]['CommandID']}?timeout=30"
    reading = asyncio.create_task(scene.ask("GET", path, key=None))
    erasing = asyncio.create_task(scene.ask("DELETE", f"/v1/customers/{CARD}"))
    await scene.until_sent(2)
    scene.decide()
    async with asyncio.timeout(20):
        assert "command-erased" == problem_type(await waiting, 409)
        assert "unknown-command" == problem_type(await reading, 404)
        assert 200 == (await erasing).status_code
    assert "command-erased" == problem_type(await scene.redeem(), 409)
    assert 2 == len(scene.sent)


@pytest.mark.parametrize("card", ["\0", "\N{ZERO WIDTH SPACE}", "\x029265846829\x03"])
async def test_an_account_under_a_card_of_invisible_characters_can_be_read_and_erased(scene: Scene, card: str) -> None:
    """Release 0.1 opened such accounts. Now an invoice with such a card is a dead letter."""
    scene.earn("25.00", card)
    assert "25.00" == (await scene.balance(quote(card)))["TotalLoyaltyPoints"]
    assert 200 == (await scene.ask("DELETE", f"/v1/customers/{quote(card)}")).status_code


async def test_a_retry_of_a_command_that_the_account_had_forgotten_at_its_erasure_is_refused(scene: Scene) -> None:
    """The decision stays, because the erasure does not know it. But the owner has all balances, and none of the card.

    The path of the command is unknown, also if the owner learns only at the end of the wait that it has all balances.
    """
    scene.earn("25.00")
    before = await scene.redeem("10.00", "k-1")
    scene.now += EVENT_MEMORY + 1
    assert 201 == (await scene.redeem("1.00", "k-2")).status_code
    assert 200 == (await scene.ask("DELETE", f"/v1/customers/{CARD}")).status_code
    sent = len(scene.sent)
    (instance,) = scene.group.instances
    balances = instance.stores["customer-balances"]
    progress = balances.tasks[balances.partition_of(CARD.encode())].progress

    reading = asyncio.create_task(scene.ask("GET", before.headers["location"], key=None))
    await until(lambda: instance.waiters._waiting)
    progress.end_asked_at = boot_seconds()
    assert "unknown-command" == problem_type(await reading, 404)
    progress.end_asked_at += 60
    assert "command-erased" == problem_type(await scene.redeem("10.00", "k-1"), 409)
    assert sent == len(scene.sent)
