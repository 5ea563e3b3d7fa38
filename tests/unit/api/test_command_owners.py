"""Which instance executes a command, and when it cannot: dead owners, moved partitions, damage, and limits.

The test plays Kafka.
"""

import asyncio
from dataclasses import replace

import httpx
import pytest

from api.commands import preconditions, service
from api.routing.lookup import Lookup
from services.clock import boot_seconds
from tests.support.builders import CARD, problem_type
from tests.support.clusters import damage, repair
from tests.support.loyalty_query import Scene
from tests.unit.api.three_instances import see_on_refresh

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def with_standbys(scene: Scene) -> tuple[int, str]:
    """Two instances with a standby of each partition. Returns the number of the owner of the balance, and a key whose
    command belongs to the other instance, and is decided.
    """
    scene.group.share(lambda place: place[1] % 2, lambda place: (place[1] + 1) % 2)
    scene.earn("25.00")
    stores = scene.group.instances[0].stores
    owner = stores["customer-balances"].partition_of(CARD.encode()) % 2
    for key in map(str, range(20)):
        decided = (await scene.redeem("0.01", key)).json()
        if stores["decisions"].partition_of(decided["CommandID"].encode()) % 2 != owner:
            return owner, key
    raise AssertionError("all keys belong to one instance")


@pytest.mark.parametrize("scene", [3], indirect=True)
async def test_every_instance_accepts_every_command(scene: Scene) -> None:
    """The owner of the command's record sends it. Each instance gives the same answer, also for the longest timeout."""
    scene.earn("100.00")
    for key in ("a", "b", "c", "d"):
        answers = [await scene.redeem(key=key, query="?timeout=30", number=number) for number in range(3)]
        assert [201] * 3 == [each.status_code for each in answers]
        assert all(each.content == answers[0].content for each in answers)
        assert all(each.headers["location"] == answers[0].headers["location"] for each in answers)
        redemption = answers[0].json()["RedemptionID"]
        found = [await scene.ask("GET", f"/v1/commands/{redemption}", number=number) for number in range(3)]
        assert all(each.json() == answers[0].json() for each in found)
        path = f"/v1/redemptions/{redemption}/capture"
        assert [200] * 3 == [(await scene.ask("POST", path, number=number)).status_code for number in range(3)]
    assert ["60.00"] * 3 == [(await scene.balance(number=number))["TotalLoyaltyPoints"] for number in range(3)]
    assert 8 == len(scene.sent)
    erased = [await scene.ask("DELETE", f"/v1/customers/{CARD}", number=number) for number in range(3)]
    assert [200] * 3 == [each.status_code for each in erased]


@pytest.mark.parametrize("scene", [3], indirect=True)
async def test_no_standby_replaces_the_owner(scene: Scene) -> None:
    """502 if the owner does not respond, and 503 if it has no lease. The command is not sent."""
    scene.earn("25.00")
    store = scene.group.instances[0].stores["decisions"]
    known = {key: await scene.redeem("0.01", key) for key in map(str, range(20))}
    places = {key: store.partition_of(each.json()["CommandID"].encode()) for key, each in known.items()}
    mine = next(key for key, place in places.items() if place == 0)
    others = next(key for key, place in places.items() if place == 1)
    sent = len(scene.sent)

    scene.group.dead.add(scene.group.instances[1].url)
    assert "owner-unreachable" == problem_type(await scene.redeem("0.01", others), 502)
    scene.group.instances[0].membership.lease_holds = False
    in_doubt = await scene.redeem("0.01", mine)
    assert "owner-in-doubt" == problem_type(in_doubt, 503)
    assert "1" == in_doubt.headers["retry-after"]
    assert "the command is executed once" in in_doubt.json()["detail"], "an earlier request has sent it"
    assert sent == len(scene.sent)


@pytest.mark.usefixtures("_short_grace")
@pytest.mark.usefixtures("_long_grace")
@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_standby_does_not_prove_that_the_next_read_shows_a_decision(scene: Scene) -> None:
    """202 while the owner of the balance does not answer. It may lag, and it answers the next read."""
    owner, key = await with_standbys(scene)
    scene.group.mute.add(scene.group.instances[owner].url)
    answer = await scene.redeem("0.01", key, "?timeout=0.1", number=1 - owner)
    assert (202, "done") == (answer.status_code, answer.json()["Status"])
    scene.group.mute.clear()
    assert 201 == (await scene.redeem("0.01", key, number=1 - owner)).status_code


async def hang(*_: object) -> None:
    """A lookup at an instance that accepts the request and never answers."""
    await asyncio.Event().wait()


@pytest.mark.usefixtures("_short_grace")
async def test_a_command_does_not_wait_for_a_balance_longer_than_the_client(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """202 if the owner of the balance hangs. Kafka has the command, so its state is not 503."""
    scene.earn("25.00")
    monkeypatch.setattr(Lookup, "value_of", hang)
    async with asyncio.timeout(60):
        answer = await scene.redeem(query="?timeout=1")
    assert (202, "done") == (answer.status_code, answer.json()["Status"])


async def test_a_command_ends_before_the_deadline_of_its_client(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout can be longer. The path of the command keeps the deadline, too, if the owner hangs."""
    scene.earn("25.00")
    scene.decides = False
    url, headers = scene.group.instances[0].url, {"Idempotency-Key": "1", "Loyalty-Deadline": "1.2"}
    path = f"{url}/v1/customers/{CARD}/redemptions?timeout=30"
    async with asyncio.timeout(25):
        answer = await scene.http.post(path, json={"points": "1.00"}, headers=headers)
        assert 202 == answer.status_code
        monkeypatch.setattr(Lookup, "value_of", hang)
        command = f"{url}{answer.headers['location']}?timeout=30"
        found = await scene.http.get(command, headers=headers | {"Loyalty-Deadline": "0.2"})
        assert "owner-timeout" == problem_type(found, 504)


@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_short_deadline_of_a_command_makes_no_suspect(scene: Scene) -> None:
    """A live owner needs up to a second for Kafka. So a shorter deadline of a client does not make it a suspect."""
    owner, key = await with_standbys(scene)
    asked, url = scene.group.instances[1 - owner], scene.group.instances[owner].url
    scene.group.mute.add(asked.url)
    path = f"{url}/v1/customers/{CARD}/redemptions"
    for deadline, is_suspect in (("1.5", False), ("5", True)):
        headers = {"Idempotency-Key": key, "Loyalty-Deadline": deadline}
        answer = await scene.http.post(path, json={"points": "0.01"}, headers=headers)
        assert "owner-timeout" == problem_type(answer, 504)
        assert is_suspect == bool(scene.group.instances[owner].reports.why_suspect(asked.url))


@pytest.mark.usefixtures("_short_grace")
async def test_a_capture_does_not_wait_longer_than_the_client(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """504 if the instance that knows the redemption accepts the request and never answers. Nothing is sent."""
    monkeypatch.setattr(Lookup, "value_of", hang)
    path = f"{scene.group.instances[0].url}/v1/redemptions/R/capture?timeout=0.1"
    async with asyncio.timeout(60):
        answer = await scene.http.post(path, headers={"Idempotency-Key": "1"})
    assert "owner-timeout" == problem_type(answer, 504)
    assert [] == scene.sent


@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_standby_does_not_prove_that_something_is_unknown(scene: Scene) -> None:
    """503 for a command that only the owner may know, and later 404. A command for an unknown card is sent."""
    owner, _ = await with_standbys(scene)
    first, other = scene.group.instances[owner].stores, 1 - owner
    command = next(each for each in "abcdefgh" if first["decisions"].partition_of(each.encode()) % 2 == owner)
    card = next(card for card in "abcdefgh" if first["customer-balances"].partition_of(card.encode()) % 2 == owner)
    sent = len(scene.sent)

    scene.group.mute.add(scene.group.instances[owner].url)
    assert "rebalancing" == problem_type(await scene.ask("GET", f"/v1/commands/{command}", number=other), 503)
    path = f"/v1/customers/{card}/redemptions"
    answers = [await scene.ask("POST", path, {"points": "1.00"}, key, other) for key in "abcdefgh"]
    assert {409, 502, 504} >= {each.status_code for each in answers}  # refused by the query, or not the owner
    assert len(scene.sent) > sent

    scene.group.mute.clear()
    scene.group.instances[other].reports.note(scene.group.instances[owner].local.report())
    answer = await scene.ask("GET", f"/v1/commands/{command}", number=other)
    assert "unknown-command" == problem_type(answer, 404)


@pytest.mark.parametrize("has_standby", [True, False])
@pytest.mark.parametrize("change", ["block", "unblock", "replacement", "merge"])
@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_card_changes_only_while_an_instance_knows_its_account(
    scene: Scene, change: str, *, has_standby: bool
) -> None:
    """The loyalty query would execute the command for a card that nobody has. So it is not sent without the owner."""
    if has_standby:
        scene.group.share(lambda place: place[1] % 2, lambda place: (place[1] + 1) % 2)
    partition_of = scene.group.instances[0].stores["customer-balances"].partition_of
    here, away = (next(card for card in "abcdefgh" if partition_of(card.encode()) % 2 == each) for each in (0, 1))
    body = {"reason": "lost", "actor": "clerk 7"}
    if change == "replacement":
        body["newCard"] = here
    elif change == "merge":
        scene.earn("1.00", here)
        body["into"] = here
    scene.group.dead.add(scene.group.instances[1].url)
    path = f"/v1/customers/{away}/{change}?timeout=0"
    answers = [await scene.ask("POST", path, body, key) for key in "abcdefgh"]
    assert ({502, 503} if has_standby else {502}) == {each.status_code for each in answers}
    assert [] == scene.sent


@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_suspect_is_asked_for_a_report_before_it_gets_a_command(scene: Scene) -> None:
    """A command to a dead owner would use up the whole time of the client."""
    owner, key = await with_standbys(scene)
    dead, asking = scene.group.instances[1 - owner], scene.group.instances[owner]
    scene.group.mute.add(dead.url)
    asking.reports.suspect(dead.url, "it does not answer")
    scene.group.sent.clear()
    assert "owner-unreachable" == problem_type(await scene.redeem("0.01", key, number=owner), 502)
    assert {("GET", "/v1/instances/local")} == {
        (each.method, each.url.path) for each in scene.group.sent if str(each.url).startswith(dead.url)
    }


@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_forwarded_command_is_never_forwarded_again(scene: Scene) -> None:
    """Two instances that disagree about the owner would forward it for ever."""
    scene.group.share(lambda _: 1)
    url, headers = scene.group.instances[0].url, {"Idempotency-Key": "1", "Loyalty-Forwarded-To": "active"}
    answer = await scene.http.post(f"{url}/v1/customers/{CARD}/redemptions", json={"points": "1.00"}, headers=headers)
    assert "not-the-owner" == problem_type(answer, 421)


@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_an_instance_that_becomes_the_owner_meanwhile_serves_the_command_itself(scene: Scene) -> None:
    """The former owner refuses. The next view of the group names the instance that asks."""
    scene.group.share(lambda _: 1)
    scene.earn("25.00")
    membership = scene.group.instances[0].membership
    stale = membership.view
    scene.group.share(lambda _: 0)
    owned, fresh = membership.owned, membership.view
    assert fresh is not None
    membership.owned, membership.view = frozenset(), stale

    def refresh() -> None:
        membership.owned, membership.view = owned, replace(fresh, asked_at=boot_seconds())

    membership.on_refresh = refresh
    assert 201 == (await scene.redeem()).status_code


@pytest.mark.parametrize("scene", [3], indirect=True)
async def test_a_partition_that_has_moved_is_found(scene: Scene) -> None:
    """The former owner refuses, the group is asked again, and the new owner executes the command."""
    scene.earn("25.00")
    first, last = scene.group.instances[0], scene.group.instances[2]
    stale = first.membership.view

    scene.group.share(lambda place: 2 if place[1] == 1 else place[1])
    fresh, first.membership.view = first.membership.view, stale
    assert fresh is not None
    see_on_refresh(first, fresh)
    for key in "abcdef":
        assert 201 == (await scene.redeem("0.01", key)).status_code
    assert last.command_log.commands


async def test_a_command_whose_partition_moves_meanwhile_can_be_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, which clients repeat. Only a peer gets 421, because it finds the owner again."""
    scene.earn("25.00")
    membership = scene.group.instances[0].membership

    async def moves(*_: object) -> None:
        membership.owned = frozenset()

    monkeypatch.setattr(preconditions.Preconditions, "_require_customer", moves)
    answer = await scene.redeem()
    assert ("rebalancing", "1") == (problem_type(answer, 503), answer.headers["retry-after"])
    assert [] == scene.sent


@pytest.mark.parametrize("scene", [2], indirect=True)
async def test_a_partition_that_comes_back_meanwhile_brings_the_decision(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner has executed the command. A mark after the decision would delete the decision in a compaction."""
    scene.group.share(lambda _: 0)
    scene.earn("25.00")
    others: list[httpx.Response] = []

    async def moves_and_comes_back(*_: object) -> None:
        monkeypatch.undo()
        scene.group.share(lambda _: 1)
        others.append(await scene.redeem(number=1))
        scene.group.share(lambda _: 0)

    monkeypatch.setattr(preconditions.Preconditions, "_require_customer", moves_and_comes_back)
    answer = await scene.redeem()
    assert [201, 201] == [answer.status_code, others[0].status_code]
    assert answer.content == others[0].content
    assert 1 == len(scene.sent) == len(scene.marks)


async def test_a_damaged_store_of_decisions_is_a_problem(scene: Scene) -> None:
    """A read of a command from a damaged copy gets 503 and not 500 while no other copy exists."""
    scene.earn("25.00")
    where = (await scene.redeem()).headers["location"]
    for task in scene.group.instances[0].stores["decisions"].tasks.values():
        damage(task)
    for _ in range(2):
        assert "restoring" == problem_type(await scene.ask("GET", where), 503)
        assert "restoring" == problem_type(await scene.redeem(), 503)


async def test_an_instance_limits_its_commands_in_flight(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 too-many-commands beyond the limit. The slots are free again after the decisions."""
    monkeypatch.setattr(service, "MOST_IN_FLIGHT", 3)
    scene.earn("25.00")
    scene.decides = False
    waiting = [asyncio.create_task(scene.redeem("1", str(number))) for number in range(3)]
    await scene.until_sent(3)
    answer = await scene.redeem("1", "3")
    assert ("too-many-commands", "1") == (problem_type(answer, 503), answer.headers["retry-after"])
    scene.decides = True
    scene.decide()
    assert [201] * 3 == [(await each).status_code for each in waiting]
    assert 201 == (await scene.redeem("1", "3")).status_code


async def test_command_slots_are_released_after_store_errors(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of decisions fails while commands wait: 503. When the store is repaired, their slots are free."""
    monkeypatch.setattr(service, "MOST_IN_FLIGHT", 3)
    monkeypatch.setattr(service, "_RESTORE_PAUSE_SECONDS", 0)
    scene.earn("25.00")
    scene.decides = False
    (instance,) = scene.group.instances
    tasks = instance.stores["decisions"].tasks.values()
    waiting = [asyncio.create_task(scene.redeem("1", str(number), "?timeout=0.1")) for number in range(3)]
    await scene.until_sent(3)
    for task in tasks:
        damage(task)
    assert ["command-not-visible"] * 3 == [problem_type(await each, 503) for each in waiting]
    assert "restoring" == problem_type(await scene.redeem("1", "0"), 503)

    for task in tasks:
        repair(task)
    instance.waiters.notify_all()
    scene.decides = True
    scene.decide()
    assert [201] * 3 == [(await scene.redeem("1", str(number))).status_code for number in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)  # lets the tasks run that end the claims
    assert 201 == (await scene.redeem("1", "3")).status_code
