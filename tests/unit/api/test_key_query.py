"""The way of a look-up through several instances: real apps in one process; the test plays Kafka and its group."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from services.boot_clock import boot_seconds
from services.interactive_queries.group import GroupView, Member
from services.state_stores.assignment import ChangelogPartition, Role
from tests.support.builders import balance, kind
from tests.support.clusters import Callers, Group

CARDS = [f"C{number:02}" for number in range(12)]
URLS = [f"http://instance-{number}:8080" for number in range(3)]
TOPIC = "loyalty-balances"


def three(*, standbys: bool = True) -> Group:
    """Partition n belongs to instance n and, with standbys, has a copy on the next one."""
    group = Group.of(3)
    group.share(lambda place: place[1], (lambda place: (place[1] + 1) % 3) if standbys else lambda _: None)
    group.write(balance(card, "1.00", 1) for card in CARDS)
    return group


def run(group: Group, steps: Callable[[Callers], Awaitable[None]]) -> None:
    async def started() -> None:
        async with group.running() as callers:
            group.sent.clear()
            await steps(callers)

    asyncio.run(asyncio.wait_for(started(), 60))


def card_of(group: Group, partition: int) -> str:
    store = group.instances[0].stores["customer-balances"]
    return next(card for card in CARDS if store.partition_of(card.encode()) == partition)


def path(group: Group, partition: int, query: str = "") -> str:
    return f"/v1/customers/{card_of(group, partition)}/balance{query}"


def said(response: httpx.Response) -> tuple[int, str, str, str]:
    """Status, number of the instance that served, its role, stale."""
    found = response.headers
    served_by = found["loyalty-served-by"].removeprefix("http://instance-").removesuffix(":8080")
    return response.status_code, served_by, found["loyalty-role"], found["loyalty-stale"]


def hops(group: Group) -> list[httpx.Request]:
    """What instances have sent to each other, reports left out."""
    return [each for each in group.sent if "loyalty-forwarded-to" in each.headers]


def new_owner(partition: int, number: int) -> GroupView:
    """The view in which a partition belongs to that instance, the others to whom they belonged."""
    shares: dict[int, set[ChangelogPartition]] = {each: {(TOPIC, each)} - {(TOPIC, partition)} for each in range(3)}
    shares[number].add((TOPIC, partition))
    members = tuple(Member(str(each), URLS[each], frozenset(places)) for each, places in shares.items())
    return GroupView(members, stable=True, asked_at=boot_seconds())


def test_the_owner_answers_itself() -> None:
    """No hop where the partition is."""
    group = three()

    async def steps(callers: Callers) -> None:
        answer = await callers.get(1, path(group, 1))
        assert (200, "1", "active", "false") == said(answer)
        headers = {name: answer.headers[f"loyalty-{name}"] for name in ("partition", "offset", "lag", "sequence")}
        position = group.instances[1].stores["customer-balances"].tasks[1].progress.position
        assert {"partition": "1", "offset": str(position), "lag": "0", "sequence": "1"} == headers
        assert [] == hops(group)

    run(group, steps)


def test_any_other_asks_the_owner_once() -> None:
    """One hop, status, body and headers as the owner gave them; an unknown customer is the owner's word too."""
    group = three()

    async def steps(callers: Callers) -> None:
        direct, forwarded = await callers.get(1, path(group, 1)), await callers.get(0, path(group, 1))
        assert (direct.status_code, direct.content) == (forwarded.status_code, forwarded.content)
        same = ("content-type", "etag", "cache-control", "loyalty-served-by", "loyalty-role", "loyalty-sequence")
        assert [direct.headers[name] for name in same] == [forwarded.headers[name] for name in same]
        assert [URLS[1]] == [f"http://{each.url.netloc.decode()}" for each in hops(group)]
        for number in range(3):
            assert "unknown-customer" == kind(await callers.get(number, "/v1/customers/nobody/balance"), 404)

    run(group, steps)


def test_what_crosses_between_instances() -> None:
    """The headers of the list, the deadline, and as what the receiver is asked; nothing else of the caller's."""
    group = three()
    mine = {"authorization": "Bearer x", "traceparent": "00-1-2-01", "if-none-match": '"1"'}

    async def steps(callers: Callers) -> None:
        url = URLS[0] + path(group, 1, "?minSequence=1")
        answer = await callers.http.get(url, headers={**mine, "cookie": "secret", "x-forwarded-for": "10.1.1.1"})
        assert (304, b"", '"1"') == (answer.status_code, answer.content, answer.headers["etag"])
        (hop,) = hops(group)
        assert mine == {name: hop.headers.get(name) for name in mine}
        assert not {"cookie", "x-forwarded-for"} & hop.headers.keys()
        assert "active" == hop.headers["loyalty-forwarded-to"]
        assert 0 < float(hop.headers["loyalty-deadline"]) <= 5
        assert b"minSequence=1" == hop.url.query

    run(group, steps)


def test_a_forwarded_request_goes_no_further() -> None:
    """Who is asked as the owner and is not says so; who has no copy says so; neither asks anybody."""
    group = three()

    async def steps(callers: Callers) -> None:
        for role, number, expected in [("active", 2, "not-the-owner"), ("active", 0, "not-the-owner")]:
            answer = await callers.http.get(URLS[number] + path(group, 1), headers={"Loyalty-Forwarded-To": role})
            assert expected == kind(answer, 421)
        standby = {"Loyalty-Forwarded-To": "standby"}
        assert "starting" == kind(await callers.http.get(URLS[0] + path(group, 1), headers=standby), 503)
        assert (200, "2", "standby", "true") == said(await callers.http.get(URLS[2] + path(group, 1), headers=standby))
        assert 4 == len(hops(group))  # the test's own

    run(group, steps)


@pytest.mark.parametrize("failure", ["dead", "mute"])
def test_a_standby_answers_for_an_owner_that_does_not(failure: str) -> None:
    """Marked as stale; the next request goes to the standby at once; after a report of the owner, to the owner."""
    group = three()

    async def steps(callers: Callers) -> None:
        getattr(group, failure).add(URLS[1])
        assert (200, "2", "standby", "true") == said(await callers.get(0, path(group, 1)))
        tried = len(hops(group))
        assert (200, "2", "standby", "true") == said(await callers.get(0, path(group, 1)))
        assert [URLS[2]] == [f"http://{each.url.netloc.decode()}" for each in hops(group)[tried:]]

        getattr(group, failure).clear()
        group.instances[0].reports.note(group.instances[1].cluster.local.report())
        assert (200, "1", "active", "false") == said(await callers.get(0, path(group, 1)))

    run(group, steps)


def test_one_s_own_copy_serves_as_well() -> None:
    """The standby that is asked itself needs nobody else."""
    group = three()

    async def steps(callers: Callers) -> None:
        group.dead.add(URLS[1])
        assert (200, "2", "standby", "true") == said(await callers.get(2, path(group, 1)))

    run(group, steps)


@pytest.mark.parametrize(
    ("failure", "status", "expected"), [("dead", 502, "owner-unreachable"), ("mute", 504, "owner-timeout")]
)
def test_nobody_answers(failure: str, status: int, expected: str) -> None:
    """502 where connections fail, 504 where answers do not come; both after the standby was tried, and named."""
    group = three()

    async def steps(callers: Callers) -> None:
        getattr(group, failure).update(URLS[1:])
        answer = await callers.get(0, path(group, 1))
        assert expected == kind(answer, status)
        assert URLS[1:] == answer.json()["tried"]
        assert int(answer.headers["retry-after"]) >= 1

    run(group, steps)


def test_a_partition_that_has_moved_is_discovered_again() -> None:
    """The former owner says 421, the group is asked anew, and the new owner answers."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        first, second, third = group.instances
        third.hold((TOPIC, 1))
        group._restore(third, (TOPIC, 1))
        second.membership.owned, third.membership.owned = frozenset(), frozenset({(TOPIC, 1), (TOPIC, 2)})
        learns(first, new_owner(1, 2))
        assert (200, "2", "active", "false") == said(await callers.get(0, path(group, 1)))
        assert [URLS[1], URLS[2]] == [f"http://{each.url.netloc.decode()}" for each in hops(group)]

    run(group, steps)


def learns(instance: Any, view: GroupView) -> None:
    """Let an instance learn of a view when it asks."""

    def refresh() -> None:
        instance.membership.view = view

    instance.membership.refresh = refresh


def test_between_owners_the_caller_is_told_to_wait() -> None:
    """Nobody owns the partition, and nobody has a copy: 503 rebalancing, with Retry-After."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        first, second, _ = group.instances
        second.membership.owned = frozenset()
        second.drop((TOPIC, 1))
        first.reports.keep_only([])
        members = tuple(Member(str(number), url, frozenset()) for number, url in enumerate(URLS))
        first.membership.view = GroupView(members, stable=True, asked_at=boot_seconds())
        answer = await callers.get(0, path(group, 1))
        assert "rebalancing" == kind(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1

    run(group, steps)


def test_a_new_owner_that_restores_is_stood_in_for() -> None:
    """Its own word is 503 restoring; whoever has a copy answers meanwhile; without one the word is passed on."""
    group = three()

    async def steps(callers: Callers) -> None:
        owner = group.instances[1].stores["customer-balances"].tasks[1]
        owner.progress.restored = False
        for number in range(3):
            assert (200, "2", "standby", "true") == said(await callers.get(number, path(group, 1)))
        group.instances[2].drop((TOPIC, 1))
        for instance in group.instances:
            if instance.url != URLS[2]:
                instance.reports.note(group.instances[2].cluster.local.report())
        for number in range(3):
            assert "restoring" == kind(await callers.get(number, path(group, 1)), 503)

    run(group, steps)


def test_max_lag_bounds_what_a_standby_may_say() -> None:
    """Its lag by the broker's word counts; past it the caller is told, and by how much."""
    group = three()

    async def steps(callers: Callers) -> None:
        group.dead.add(URLS[1])
        copy = group.instances[2].stores["customer-balances"].tasks[1]
        copy.progress.end_offset = copy.progress.position + 3
        for number in (0, 2):
            assert (200, "2", "standby", "true") == said(await callers.get(number, path(group, 1, "?maxLag=3")))
            refused = await callers.get(number, path(group, 1, "?maxLag=2"))
            assert "too-stale" == kind(refused, 503)
            assert (2, 3) == (refused.json()["maxLag"], refused.json()["lag"])
        copy.progress.end_asked_at -= 7200
        assert "too-stale" == kind(await callers.get(0, path(group, 1, "?maxLag=3")), 503)

    run(group, steps)


def test_an_owner_without_its_lease_answers_as_a_standby() -> None:
    """Stopped or cut off, it may have been replaced: what it has is stale, and refused to who wants better."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        group.instances[1].membership.lease_holds = False
        for number in (0, 1):
            assert (200, "1", "standby", "true") == said(await callers.get(number, path(group, 1)))
        group.instances[1].stores["customer-balances"].tasks[1].progress.end_asked_at -= 7200
        for number in (0, 1):
            assert "too-stale" == kind(await callers.get(number, path(group, 1, "?maxLag=0")), 503)

    run(group, steps)


def test_an_owner_that_is_stopped_during_the_read_answers_as_a_standby() -> None:
    """The lease is looked at when the answer is made, not only before."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        owner = group.instances[1]
        store = owner.stores["customer-balances"].tasks[1].store
        read = store.get

        def slow_read(key: bytes) -> bytes | None:
            owner.membership.lease_holds = False
            return read(key)

        store.get = slow_read  # type: ignore[method-assign]
        assert (200, "1", "standby", "true") == said(await callers.get(1, path(group, 1)))

    run(group, steps)


def test_cut_off_instances_still_read_from_each_other() -> None:
    """After a session without the coordinator nobody owns anything; the last view and the copies still serve."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        for instance in group.instances:
            instance.membership.owned, instance.membership.lease_holds = frozenset(), False
        for number in range(3):
            assert (200, "1", "standby", "true") == said(await callers.get(number, path(group, 1)))

    run(group, steps)


def test_a_long_poll_waits_at_the_owner() -> None:
    """MinSequence crosses the hop; the write there ends the wait."""
    group = three()

    async def steps(callers: Callers) -> None:
        waiting = asyncio.create_task(callers.get(0, path(group, 1, "?minSequence=2&timeout=20")))
        await until(lambda: bool(hops(group)))
        write_and_wake(group, balance(card_of(group, 1), "2.50", 2))
        answer = await waiting
        assert (200, "1", "active", "false") == said(answer)
        assert 2 == answer.json()["Sequence"]

    run(group, steps)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # what it waits for has no event
        await asyncio.sleep(0)


def write_and_wake(group: Group, record: Any) -> None:
    group.write([record])
    for instance in group.instances:
        instance.cluster.local.stores.waiters.notify([record[1].encode()])


def test_a_long_poll_follows_a_partition_that_moves() -> None:
    """The owner loses the partition while somebody waits: the wait goes on at the new owner."""
    group = three()

    async def steps(callers: Callers) -> None:
        first, second, third = group.instances
        waiting = [
            asyncio.create_task(callers.get(number, path(group, 1, "?minSequence=2&timeout=20"))) for number in (0, 1)
        ]
        await until(lambda: bool(second.cluster.local.stores.waiters._waiting))
        second.membership.owned, third.membership.owned = frozenset(), frozenset({(TOPIC, 1), (TOPIC, 2)})
        third.hold((TOPIC, 1), Role.ACTIVE)
        moved = new_owner(1, 2)
        for instance in (first, second):
            learns(instance, moved)
        second.membership.view = moved
        second.cluster.local.stores.waiters.notify_all()
        await until(lambda: bool(third.cluster.local.stores.waiters._waiting))
        write_and_wake(group, balance(card_of(group, 1), "2.50", 2))
        for answer in await asyncio.gather(*waiting):
            assert (200, "2", "active", "false") == said(answer)

    run(group, steps)


def test_the_sequence_is_not_there_in_time() -> None:
    """503 with the current sequence, by the owner's word, wherever it is asked."""
    group = three()

    async def steps(callers: Callers) -> None:
        for number in range(3):
            answer = await callers.get(number, path(group, 1, "?minSequence=2&timeout=0.05"))
            assert "sequence-not-reached" == kind(answer, 503)
            assert (1, "1") == (answer.json()["currentSequence"], answer.headers["loyalty-served-by"][-6:-5])

    run(group, steps)


def test_discovery() -> None:
    """Instances, stores, who has a store, who has a key; the same from every instance."""
    group = three()

    async def steps(callers: Callers) -> None:
        for number in range(3):
            found = (await callers.get(number, "/v1/instances")).json()["instances"]
            assert [(url, url == URLS[number], True) for url in URLS] == [
                (each["url"], each["self"], each["reachable"]) for each in found
            ]
            holders = (await callers.get(number, "/v1/stores/customer-balances/metadata")).json()["instances"]
            assert [
                {"url": url, "active": [each], "standby": [(each - 1) % 3]} for each, url in enumerate(URLS)
            ] == holders
            key = (await callers.get(number, f"/v1/stores/customer-balances/metadata/{card_of(group, 1)}")).json()
            assert {"store": "customer-balances", "partition": 1, "active": URLS[1], "standbys": [URLS[2]]} == key
            assert "unknown-store" == kind(await callers.get(number, "/v1/stores/none/metadata"), 404)
            assert "unknown-store" == kind(await callers.get(number, "/v1/stores/none/metadata/x"), 404)
            stores = (await callers.get(number, "/v1/stores")).json()["stores"]
            assert {"customer-balances", "stores"} <= {each["name"] for each in stores}
        group.dead.add(URLS[1])
        await callers.get(0, path(group, 1))
        found = (await callers.get(0, "/v1/instances")).json()["instances"]
        assert [True, False, True] == [each["reachable"] for each in found]

    run(group, steps)
