"""Lookups through several instances: real apps in one process. The test replaces Kafka and the group."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.routing.peer_client import PeerTimeoutError
from api.routing.report_collector import ReportCollector
from schemas.topics import LOYALTY_BALANCES
from services.boot_clock import boot_seconds
from services.interactive_queries.group import GroupView, Member
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.catalogue import PROGRAMMES
from services.state_stores.contract import Checkpoint
from services.state_stores.definition import VersionedValue
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options
from tests.support.builders import balance, problem_type
from tests.support.clusters import Callers, Group, damage

CARDS = [f"C{number:02}" for number in range(12)]
URLS = [f"http://instance-{number}:8080" for number in range(3)]
TOPIC = "loyalty-balances"
NEVER_OLD = 4_000_000_000_000
"""A time in the year 2096."""


def three(*, standbys: bool = True) -> Group:
    """Three instances. Instance n owns partition n. With standbys, the next instance has a copy."""
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


def summary(response: httpx.Response) -> tuple[int, str, str, str]:
    """Status, number of the serving instance, its role, and whether the answer is stale."""
    found = response.headers
    served_by = found["loyalty-served-by"].removeprefix("http://instance-").removesuffix(":8080")
    return response.status_code, served_by, found["loyalty-role"], found["loyalty-stale"]


def hops(group: Group) -> list[httpx.Request]:
    """The requests that instances have forwarded to each other."""
    return [each for each in group.sent if "loyalty-forwarded-to" in each.headers]


def new_owner(partition: int, number: int) -> GroupView:
    """A view in which a partition belongs to that instance. The other partitions keep their owners."""
    shares: dict[int, set[ChangelogPartition]] = {each: {(TOPIC, each)} - {(TOPIC, partition)} for each in range(3)}
    shares[number].add((TOPIC, partition))
    members = tuple(Member(str(each), URLS[each], frozenset(places)) for each, places in shares.items())
    return GroupView(members, stable=True, asked_at=boot_seconds())


def test_the_owner_serves_the_lookup_itself() -> None:
    """The owner forwards nothing."""
    group = three()

    async def steps(callers: Callers) -> None:
        answer = await callers.get(1, path(group, 1))
        assert (200, "1", "active", "false") == summary(answer)
        headers = {name: answer.headers[f"loyalty-{name}"] for name in ("partition", "offset", "lag", "sequence")}
        position = group.instances[1].stores["customer-balances"].tasks[1].progress.position
        assert {"partition": "1", "offset": str(position), "lag": "0", "sequence": "1"} == headers
        assert [] == hops(group)

    run(group, steps)


def test_other_instances_forward_to_the_owner_once() -> None:
    """Status, body and headers are those of the owner, also for an unknown customer."""
    group = three()

    async def steps(callers: Callers) -> None:
        direct, forwarded = await callers.get(1, path(group, 1)), await callers.get(0, path(group, 1))
        assert (direct.status_code, direct.content) == (forwarded.status_code, forwarded.content)
        same = ("content-type", "etag", "cache-control", "loyalty-served-by", "loyalty-role", "loyalty-sequence")
        assert [direct.headers[name] for name in same] == [forwarded.headers[name] for name in same]
        assert [URLS[1]] == [f"http://{each.url.netloc.decode()}" for each in hops(group)]
        for number in range(3):
            assert "unknown-customer" == problem_type(await callers.get(number, "/v1/customers/nobody/balance"), 404)

    run(group, steps)


def test_a_short_deadline_of_a_client_makes_no_suspect() -> None:
    """A client may send any deadline. A peer that does not answer within a millisecond is not dead."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        group.mute.add(URLS[1])
        answer = await callers.http.get(URLS[0] + path(group, 1), headers={"loyalty-deadline": "0.001"})
        assert 504 == answer.status_code
        assert group.instances[0].reports.why_suspect(URLS[1]) is None
        await callers.get(0, path(group, 1))
        assert group.instances[0].reports.why_suspect(URLS[1])

    run(group, steps)


def test_a_suspect_does_not_cost_all_the_time() -> None:
    """The last instance may take all the time that is left, unless it is a suspect."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        peers, patiences = group.instances[0].app.state.dependencies.peers, []

        async def noted(_: object, __: object, ___: float, patience: float) -> None:
            patiences.append(round(patience))
            raise PeerTimeoutError

        peers.forward = noted
        assert "owner-timeout" == problem_type(await callers.get(0, path(group, 1)), 504)
        group.instances[0].reports.suspect(URLS[1], "it did not answer")
        assert "owner-timeout" == problem_type(await callers.get(0, path(group, 1)), 504)
        assert [5, 1] == patiences

    run(group, steps)


def test_an_unexpected_error_does_not_end_the_reports() -> None:
    """The peer becomes a suspect, and the next report ends that."""
    group = Group.of(2)
    group.share(lambda place: place[1] % 2)

    async def steps(_: Callers) -> None:
        first, dependencies = group.instances[0], group.instances[0].app.state.dependencies
        collector = ReportCollector(dependencies.peers, dependencies.locator, first.reports, "test")
        report = dependencies.peers.report

        async def broken(*_: object) -> None:
            raise httpx.InvalidURL("no host")

        dependencies.peers.report = broken
        await collector._collect(URLS[1])
        assert first.reports.why_suspect(URLS[1])
        dependencies.peers.report = report
        await collector._collect(URLS[1])
        assert first.reports.why_suspect(URLS[1]) is None

    run(group, steps)


def test_only_listed_headers_are_forwarded() -> None:
    """A forwarded request has the listed headers of the client, the deadline and the expected role."""
    group = three()
    listed = {"authorization": "Bearer x", "traceparent": "00-1-2-01", "if-none-match": '"1"'}

    async def steps(callers: Callers) -> None:
        url = URLS[0] + path(group, 1, "?minSequence=1")
        answer = await callers.http.get(url, headers={**listed, "cookie": "secret", "x-forwarded-for": "10.1.1.1"})
        assert (304, b"", '"1"') == (answer.status_code, answer.content, answer.headers["etag"])
        (hop,) = hops(group)
        assert listed == {name: hop.headers.get(name) for name in listed}
        assert not {"cookie", "x-forwarded-for"} & hop.headers.keys()
        assert "active" == hop.headers["loyalty-forwarded-to"]
        assert 0 < float(hop.headers["loyalty-deadline"]) <= 5
        assert b"minSequence=1" == hop.url.query

    run(group, steps)


def test_a_forwarded_request_is_never_forwarded_again() -> None:
    """An instance that is not the owner, or has no copy, responds with a problem."""
    group = three()

    async def steps(callers: Callers) -> None:
        for role, number, expected in [("active", 2, "not-the-owner"), ("active", 0, "not-the-owner")]:
            answer = await callers.http.get(URLS[number] + path(group, 1), headers={"Loyalty-Forwarded-To": role})
            assert expected == problem_type(answer, 421)
        standby = {"Loyalty-Forwarded-To": "standby"}
        assert "starting" == problem_type(await callers.http.get(URLS[0] + path(group, 1), headers=standby), 503)
        assert (200, "2", "standby", "true") == summary(
            await callers.http.get(URLS[2] + path(group, 1), headers=standby)
        )
        assert 4 == len(hops(group))  # the requests of this test

    run(group, steps)


@pytest.mark.parametrize("failure", ["dead", "mute"])
def test_a_standby_serves_while_the_owner_does_not_respond(failure: str) -> None:
    """The response is stale. The next request goes to the standby at once, until the owner reports again."""
    group = three()

    async def steps(callers: Callers) -> None:
        getattr(group, failure).add(URLS[1])
        assert (200, "2", "standby", "true") == summary(await callers.get(0, path(group, 1)))
        tried = len(hops(group))
        assert (200, "2", "standby", "true") == summary(await callers.get(0, path(group, 1)))
        assert [URLS[2]] == [f"http://{each.url.netloc.decode()}" for each in hops(group)[tried:]]

        getattr(group, failure).clear()
        group.instances[0].reports.note(group.instances[1].local.report())
        assert (200, "1", "active", "false") == summary(await callers.get(0, path(group, 1)))

    run(group, steps)


def test_a_standby_serves_its_own_clients() -> None:
    """A client that asks the standby gets the answer from its copy."""
    group = three()

    async def steps(callers: Callers) -> None:
        group.dead.add(URLS[1])
        assert (200, "2", "standby", "true") == summary(await callers.get(2, path(group, 1)))

    run(group, steps)


@pytest.mark.parametrize(
    ("failure", "status", "expected"), [("dead", 502, "owner-unreachable"), ("mute", 504, "owner-timeout")]
)
def test_no_instance_responds(failure: str, status: int, expected: str) -> None:
    """502 for failed connections and 504 for timeouts. Both name the owner and the standby."""
    group = three()

    async def steps(callers: Callers) -> None:
        getattr(group, failure).update(URLS[1:])
        answer = await callers.get(0, path(group, 1))
        assert expected == problem_type(answer, status)
        assert URLS[1:] == answer.json()["tried"]
        assert int(answer.headers["retry-after"]) >= 1

    run(group, steps)


def test_a_new_owner_is_discovered() -> None:
    """The former owner responds with 421, the group is asked again, and the new owner serves."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        first, second, third = group.instances
        third.hold((TOPIC, 1))
        group._restore(third, (TOPIC, 1))
        second.membership.owned, third.membership.owned = frozenset(), frozenset({(TOPIC, 1), (TOPIC, 2)})
        on_refresh_see(first, new_owner(1, 2))
        assert (200, "2", "active", "false") == summary(await callers.get(0, path(group, 1)))
        assert [URLS[1], URLS[2]] == [f"http://{each.url.netloc.decode()}" for each in hops(group)]

    run(group, steps)


def on_refresh_see(instance: Any, view: GroupView) -> None:
    """Let an instance see this view after its next refresh."""

    def refresh() -> None:
        instance.membership.view = view

    instance.membership.refresh = refresh


def test_without_owner_and_copies_the_client_is_told_to_wait() -> None:
    """503 rebalancing with Retry-After."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        first, second, _ = group.instances
        second.membership.owned = frozenset()
        second.drop((TOPIC, 1))
        first.reports.keep_only([])
        members = tuple(Member(str(number), url, frozenset()) for number, url in enumerate(URLS))
        first.membership.view = GroupView(members, stable=True, asked_at=boot_seconds())
        answer = await callers.get(0, path(group, 1))
        assert "rebalancing" == problem_type(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1

    run(group, steps)


def test_a_standby_serves_while_the_new_owner_restores() -> None:
    """Without a standby the client gets the 503 restoring of the owner."""
    group = three()

    async def steps(callers: Callers) -> None:
        owner = group.instances[1].stores["customer-balances"].tasks[1]
        owner.progress.restored = False
        for number in range(3):
            assert (200, "2", "standby", "true") == summary(await callers.get(number, path(group, 1)))
        group.instances[2].drop((TOPIC, 1))
        for instance in group.instances:
            if instance.url != URLS[2]:
                instance.reports.note(group.instances[2].local.report())
        for number in range(3):
            assert "restoring" == problem_type(await callers.get(number, path(group, 1)), 503)

    run(group, steps)


def test_a_standby_serves_for_a_damaged_copy() -> None:
    """The first read that finds the damage stops the copy from serving. Without a standby the response is 503."""
    group = three()

    async def steps(callers: Callers) -> None:
        copy = group.instances[1].stores["customer-balances"].tasks[1]
        damage(copy)
        for query in ("", "?minSequence=1&timeout=1"):
            for number in (1, 0, 2):
                answer = await callers.get(number, path(group, 1, query))
                assert (200, "2", "standby", "true") == summary(answer)
        assert "Corruption: block checksum mismatch" == copy.store.damage
        damage(group.instances[2].stores["customer-balances"].tasks[1])
        for number in range(3):
            assert "restoring" == problem_type(await callers.get(number, path(group, 1)), 503)

    run(group, steps)


def test_a_damaged_block_on_disk_is_served_by_a_standby(tmp_path: Path) -> None:
    """The owner reads from RocksDB, and 64 bytes of its SST file are flipped. No read gets 500, and none gets 404."""
    group = three()
    keys = [f"card{number:06d}".encode() for number in range(3_000)]
    values = {key: VersionedValue(1, 7, 0, b'{"padding":"%s"}' % (key * 25)).pack() for key in keys}
    storage = RocksDbStorePartition(tmp_path / "1", rocksdb_options())
    storage.apply(values, Checkpoint("test", 7, 1))
    storage._db.flush()
    storage.close()
    (file,) = (tmp_path / "1").glob("*.sst")
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(255 - byte for byte in content[middle : middle + 64])
    file.write_bytes(content)
    owner, standby = (group.instances[number].stores["customer-balances"].tasks[1] for number in (1, 2))
    owner.store = RocksDbStorePartition(tmp_path / "1", rocksdb_options())
    standby.store.apply(values, Checkpoint("test", 7, 1))

    async def steps(callers: Callers) -> None:
        store = group.instances[1].stores["customer-balances"]
        served_by = []
        for key in keys[:: len(keys) // 1_000]:
            if store.partition_of(key) == 1:
                answer = await callers.get(1, f"/v1/customers/{key.decode()}/balance")
                assert 200 == answer.status_code
                served_by.append(answer.headers["loyalty-served-by"])
        first = served_by.index(URLS[2])
        assert 0 < first
        assert {URLS[2]} == set(served_by[first:])
        assert "Corruption" in str(owner.store.damage)

    run(group, steps)
    owner.store.close()


def test_an_instance_with_a_damaged_global_store_is_not_ready() -> None:
    """No other instance can serve a global store in its place."""
    group = three()

    async def steps(callers: Callers) -> None:
        task = group.instances[1].stores[PROGRAMMES].tasks[0]
        assert 200 == (await callers.get(1, "/readyz")).status_code
        task.store.damage = "Corruption: block checksum mismatch"

        assert "not-ready" == problem_type(await callers.get(1, "/readyz"), 503)

    run(group, steps)


def test_a_damaged_copy_is_reported_as_not_restored() -> None:
    """Peers do not ask the instance for the copy any more. Metrics and reports show the damage.

    The instance stays ready, because other instances have copies.
    """
    group = three()

    async def steps(callers: Callers) -> None:
        damaged = group.instances[1]
        damage(damaged.stores["customer-balances"].tasks[1])
        await callers.get(1, path(group, 1))

        (held,) = [each for each in damaged.local.report().partitions if each.store == "customer-balances"][1:]
        assert (1, False) == (held.partition, held.restored)
        ready = await callers.get(1, "/readyz")
        assert 200 == ready.status_code
        reports = {(each["store"], each["partition"]): each for each in ready.json()["partitions"]}
        report = reports["customer-balances", 1]
        assert (False, None, "Corruption: block checksum mismatch") == tuple(
            report[name] for name in ("restored", "entries", "rebuiltBecause")
        )
        samples = (await callers.get(1, "/metrics")).text
        assert 'loyalty_store_restored{partition="1",store="customer-balances"} 0.0' in samples
        assert 'loyalty_store_damaged{partition="1",store="customer-balances"} 1.0' in samples

    run(group, steps)


def test_max_lag_bounds_the_lag_of_a_standby() -> None:
    """A standby with a greater or an unknown lag is too stale. The problem names the lag."""
    group = three()

    async def steps(callers: Callers) -> None:
        group.dead.add(URLS[1])
        copy = group.instances[2].stores["customer-balances"].tasks[1]
        copy.progress.end_offset = copy.progress.position + 3
        for number in (0, 2):
            assert (200, "2", "standby", "true") == summary(await callers.get(number, path(group, 1, "?maxLag=3")))
            refused = await callers.get(number, path(group, 1, "?maxLag=2"))
            assert "too-stale" == problem_type(refused, 503)
            assert (2, 3) == (refused.json()["maxLag"], refused.json()["lag"])
        copy.progress.end_asked_at -= 7200
        assert "too-stale" == problem_type(await callers.get(0, path(group, 1, "?maxLag=3")), 503)

    run(group, steps)


def test_an_owner_without_its_lease_serves_as_a_standby() -> None:
    """The group may have replaced it. Its answers are stale, and too stale for a client with maxLag=0."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        group.instances[1].membership.lease_holds = False
        for number in (0, 1):
            assert (200, "1", "standby", "true") == summary(await callers.get(number, path(group, 1)))
        group.instances[1].stores["customer-balances"].tasks[1].progress.end_asked_at -= 7200
        for number in (0, 1):
            assert "too-stale" == problem_type(await callers.get(number, path(group, 1, "?maxLag=0")), 503)

    run(group, steps)


def test_an_owner_that_loses_its_lease_during_the_read_serves_as_a_standby() -> None:
    """The lease is checked after the read, too."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        owner = group.instances[1]
        store = owner.stores["customer-balances"].tasks[1].store
        read = store.get

        def slow_read(key: bytes) -> bytes | None:
            owner.membership.lease_holds = False
            return read(key)

        store.get = slow_read  # type: ignore[method-assign]
        assert (200, "1", "standby", "true") == summary(await callers.get(1, path(group, 1)))

    run(group, steps)


def test_instances_without_the_coordinator_still_read_from_each_other() -> None:
    """No instance owns a partition any more, but the last view and the copies still serve."""
    group = three(standbys=False)

    async def steps(callers: Callers) -> None:
        for instance in group.instances:
            instance.membership.owned, instance.membership.lease_holds = frozenset(), False
        for number in range(3):
            assert (200, "1", "standby", "true") == summary(await callers.get(number, path(group, 1)))

    run(group, steps)


def test_a_long_poll_waits_at_the_owner() -> None:
    """MinSequence is forwarded, and the write at the owner ends the wait."""
    group = three()

    async def steps(callers: Callers) -> None:
        waiting = asyncio.create_task(callers.get(0, path(group, 1, "?minSequence=2&timeout=30")))
        await until(lambda: bool(group.instances[1].waiters._waiting))
        group.write([balance(card_of(group, 1), "2.50", 2)])
        answer = await asyncio.wait_for(waiting, 20)
        assert (200, "1", "active", "false") == summary(answer)
        assert 2 == answer.json()["Sequence"]

    run(group, steps)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # no event announces the condition
            await asyncio.sleep(0)


def test_a_long_poll_follows_a_partition_that_moves() -> None:
    """The owner loses the partition while a client waits. The wait continues at the new owner."""
    group = three()

    async def steps(callers: Callers) -> None:
        first, second, third = group.instances
        waiting = [
            asyncio.create_task(callers.get(number, path(group, 1, "?minSequence=2&timeout=30"))) for number in (0, 1)
        ]
        await until(lambda: bool(second.local.stores.waiters._waiting))
        second.membership.owned, third.membership.owned = frozenset(), frozenset({(TOPIC, 1), (TOPIC, 2)})
        third.hold((TOPIC, 1), Role.ACTIVE)
        moved = new_owner(1, 2)
        for instance in (first, second):
            on_refresh_see(instance, moved)
        second.membership.view = moved
        second.local.stores.waiters.notify_all()
        await until(lambda: bool(third.local.stores.waiters._waiting))
        group.write([balance(card_of(group, 1), "2.50", 2)])
        for answer in await asyncio.wait_for(asyncio.gather(*waiting), 20):
            assert (200, "2", "active", "false") == summary(answer)

    run(group, steps)


def test_the_sequence_is_not_reached_in_time() -> None:
    """Each instance responds with the 503 of the owner, which names the current sequence."""
    group = three()

    async def steps(callers: Callers) -> None:
        for number in range(3):
            answer = await callers.get(number, path(group, 1, "?minSequence=2&timeout=0.05"))
            assert "sequence-not-reached" == problem_type(answer, 503)
            assert (1, "1") == (answer.json()["currentSequence"], answer.headers["loyalty-served-by"][-6:-5])

    run(group, steps)


def test_discovery() -> None:
    """Each instance lists the same instances, stores, holders of a store and holders of a key."""
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
            assert "unknown-store" == problem_type(await callers.get(number, "/v1/stores/none/metadata"), 404)
            assert "unknown-store" == problem_type(await callers.get(number, "/v1/stores/none/metadata/x"), 404)
            stores = (await callers.get(number, "/v1/stores")).json()["stores"]
            assert {"customer-balances", "stores"} <= {each["name"] for each in stores}
        group.dead.add(URLS[1])
        await callers.get(0, path(group, 1))
        found = (await callers.get(0, "/v1/instances")).json()["instances"]
        assert [True, False, True] == [each["reachable"] for each in found]

    run(group, steps)


@pytest.mark.parametrize(
    ("opened", "asked", "expected"),
    [(5, 60.0, 404), (5, -60.0, 503), (0, 60.0, 503), (NEVER_OLD, 60.0, 503)],
)
def test_a_client_that_has_seen_an_erased_account_learns_that_it_is_gone(
    opened: int, asked: float, expected: int
) -> None:
    """The owner knows it if it has every record from before the read.

    Without the opened time the account may come later, so the client must ask again. So may a new account.
    """
    group = three(standbys=False)
    card = card_of(group, 1)

    async def steps(callers: Callers) -> None:
        group.write([(LOYALTY_BALANCES, card, None)])
        group.instances[1].stores["customer-balances"].tasks[1].progress.end_asked_at = boot_seconds() + asked
        for number in (0, 1):
            answer = await callers.get(number, path(group, 1, f"?minSequence=1&openedTime={opened}&timeout=0.01"))
            assert ("unknown-customer" if expected == 404 else "sequence-not-reached") == problem_type(answer, expected)

    run(group, steps)


def test_a_wait_ends_when_the_owner_learns_that_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record of the card comes, but the broker reports the end of the topic."""
    monkeypatch.setattr("services.state_stores.waiters._PAUSE_SECONDS", 0.01)
    group = three(standbys=False)
    card = card_of(group, 1)

    async def steps(callers: Callers) -> None:
        group.write([(LOYALTY_BALANCES, card, None)])
        waiting = asyncio.create_task(callers.get(1, path(group, 1, "?minSequence=1&openedTime=5&timeout=30")))
        await until(lambda: bool(group.instances[1].waiters._waiting))
        group.instances[1].stores["customer-balances"].tasks[1].progress.end_asked_at = boot_seconds()
        assert "unknown-customer" == problem_type(await asyncio.wait_for(waiting, 20), 404)

    run(group, steps)
