"""/v1/stores/{store}/… over several instances: each merges the results of all, or says what is missing."""

import asyncio
from threading import Event
from typing import Any

import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from api.routing import scatter_gather
from schemas.topics import LOYALTY_BALANCES
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.contract import StoreClosedError, StoreError
from tests.support.builders import MINUTE, NOON, balance, problem_type, sales, shop
from tests.support.clusters import Callers, Group, damage
from tests.support.examples import examples
from tests.unit.api.three_instances import running, three_without_data, time_out

pytestmark = pytest.mark.anyio

BASE = "/v1/stores/customer-balances"
CARDS = [f"C{number:02}" for number in range(40)]


def three(*, standbys: bool = False) -> Group:
    """Three instances with customers, minutes of sales, and shops."""
    group = three_without_data(standbys=standbys)
    group.write(balance(card, f"{50 * number}.00", number + 1) for number, card in enumerate(CARDS))
    group.write(sales("S1", NOON + minute * MINUTE, "10.00", f"{minute}.01") for minute in range(30))
    group.write(shop(store_id, "Kochi") for store_id in ("S1", "S2"))
    return group


@pytest.fixture(name="standbys")
def _standbys() -> bool:
    return False


@pytest.fixture(name="group")
def _group(standbys: bool) -> Group:  # noqa: FBT001
    return three(standbys=standbys)


def keys_of(answer: dict[str, Any]) -> list[str]:
    return [entry["key"] for entry in answer["entries"]]


def cards_of_partition_1(group: Group) -> list[str]:
    store = group.instances[0].stores["customer-balances"]
    return [card for card in CARDS if store.partition_of(card.encode()) == 1]


async def test_each_instance_answers_for_all_instances(callers: Callers) -> None:
    """Each instance answers every kind of query completely, and names the copy of each partition."""
    for number in range(3):
        every = (await callers.get(number, f"{BASE}/all?limit=1000")).json()
        assert CARDS == keys_of(every)
        assert (False, [], None) == (every["partial"], every["missingPartitions"], every["next"])
        assert [(each, f"http://instance-{each}:8080", "active", False) for each in range(3)] == [
            (each["partition"], each["servedBy"], each["role"], each["stale"]) for each in every["partitions"]
        ]
        assert 40 == (await callers.get(number, f"{BASE}/count")).json()["count"]
        assert CARDS[5:9] == keys_of((await callers.get(number, f"{BASE}/range?from=C05&to=C08")).json())
        assert CARDS[10:20] == keys_of((await callers.get(number, f"{BASE}/range?prefix=C1")).json())
        found = (await callers.post(number, f"{BASE}/keys", {"keys": ["C39", "no", "C01", "C02", "nor"]})).json()
        assert (["C01", "C02", "C39"], ["no", "nor"]) == (keys_of(found), found["unknownKeys"])
        top = (await callers.get(number, "/v1/stores/top-customers/all")).json()
        assert CARDS[20:] == keys_of(top)
        windows = f"/v1/stores/store-sales/windows/S1?from={NOON + MINUTE}&to={NOON + 20 * MINUTE}"
        minutes = [each["value"]["Minimum"] for each in (await callers.get(number, windows)).json()["entries"]]
        assert [f"{minute}.01" for minute in range(1, 10)] == minutes[:9]
        assert 20 == len(minutes)


@pytest.mark.parametrize("path", ["/v1/stores/customer-balances%2Fcount", "/v1/%73tores/customer-balances/count"])
async def test_an_encoded_path_is_the_same_path(callers: Callers, path: str) -> None:
    """Peers get the path in its decoded form."""
    found = (await callers.get(0, path)).json()
    assert (40, False) == (found["count"], found["partial"])


async def test_one_key_is_found_through_each_instance(callers: Callers) -> None:
    """Each instance returns the response of the owner with its headers, also for an unknown key."""
    for number in range(3):
        for card in ("C00", "C17", "C39"):
            answer = await callers.get(number, f"{BASE}/keys/{card}")
            owner = answer.json()["partition"]
            assert (200, card) == (answer.status_code, answer.json()["key"])
            assert f"http://instance-{owner}:8080" == answer.headers["loyalty-served-by"]
        assert "unknown-key" == problem_type(await callers.get(number, f"{BASE}/keys/nobody"), 404)
        assert "unknown-store" == problem_type(await callers.get(number, "/v1/stores/x/keys/nobody"), 404)


async def test_a_global_store_is_read_locally(group: Group, callers: Callers) -> None:
    """Every instance has all of it, so the query needs no other instance."""
    group.dead |= {"http://instance-0:8080", "http://instance-2:8080"}
    answer = (await callers.get(1, "/v1/stores/stores/all")).json()
    assert (["S1", "S2"], False) == (keys_of(answer), answer["partial"])
    assert ["http://instance-1:8080"] == [each["servedBy"] for each in answer["partitions"]]
    assert "Kochi" == (await callers.get(1, "/v1/stores/stores/keys/S2")).json()["value"]["City"]


@pytest.mark.parametrize("standbys", [True])
async def test_standbys_answer_for_a_dead_owner(group: Group, callers: Callers) -> None:
    """The result is complete. The partition of the dead owner is stale and has the URL of the standby."""
    group.dead.add("http://instance-1:8080")
    answer = (await callers.get(0, f"{BASE}/all?limit=1000")).json()
    assert (CARDS, False) == (keys_of(answer), answer["partial"])
    assert ("http://instance-2:8080", "standby", True) == tuple(
        answer["partitions"][1][name] for name in ("servedBy", "role", "stale")
    )


@pytest.mark.parametrize("standbys", [True, False])
async def test_a_damaged_partition_is_read_elsewhere(group: Group, callers: Callers, *, standbys: bool) -> None:
    """A standby serves it. Without one the result is partial. The other partitions stay with their instances."""
    damage(group.instances[1].stores["customer-balances"].tasks[1])
    damage(group.instances[1].stores["store-sales"].tasks[1])
    for number in range(3):
        for path in ("all?limit=1000", "count"):
            answer = (await callers.get(number, f"{BASE}/{path}")).json()
            read = {each["partition"]: each["servedBy"][-6:-5] for each in answer["partitions"]}
            assert {0: "0", 2: "2", **({1: "2"} if standbys else {})} == read
            assert (not standbys) == answer["partial"]
    found = (await callers.post(1, f"{BASE}/keys", {"keys": CARDS})).json()
    assert (not standbys) == found["partial"]


@pytest.mark.parametrize("standbys", [True])
async def test_a_local_query_skips_a_damaged_partition(group: Group, callers: Callers) -> None:
    """The result of /local is partial."""
    damage(group.instances[1].stores["customer-balances"].tasks[1])
    answer = (await callers.get(1, f"{BASE}/local/all?limit=1000")).json()
    assert [0] == [each["partition"] for each in answer["partitions"]]
    assert [1, 2] == answer["missingPartitions"]


async def test_a_copy_that_nobody_has_reported_yet_is_found() -> None:
    """A new standby serves for a dead owner, although its last report does not contain the copy."""
    group = three()
    group.instances[2].hold(("loyalty-balances", 1), Role.STANDBY)
    for record in group.log:
        if group.instances[2].stores["customer-balances"].partition_of(record[1].encode()) == 1:
            group.instances[2].write(*record)
    async with running(group) as callers:
        group.dead.add("http://instance-1:8080")
        answer = (await callers.get(0, f"{BASE}/all?limit=1000")).json()
        assert (CARDS, False) == (keys_of(answer), answer["partial"])


async def test_a_client_bounds_the_lag() -> None:
    """A copy that lags more than maxLag is not read. The next copy is read, or the partition is missing."""
    group = three(standbys=True)
    late = group.instances[2].stores["customer-balances"].tasks[1]
    late.progress.end_offset = late.progress.position + 5
    async with running(group) as callers:
        group.dead.add("http://instance-1:8080")
        for asked in (0, 2):
            enough = (await callers.get(asked, f"{BASE}/count?maxLag=5")).json()
            assert (40, False) == (enough["count"], enough["partial"])
            assert 5 == enough["partitions"][1]["lag"]
            partial = (await callers.get(asked, f"{BASE}/count?maxLag=4")).json()
            assert (True, [1]) == (partial["partial"], partial["missingPartitions"])
        assert [0] == (await callers.get(2, f"{BASE}/local/count?maxLag=5")).json()["missingPartitions"]
        assert [0, 1] == (await callers.get(2, f"{BASE}/local/count?maxLag=4")).json()["missingPartitions"]
        asked = await callers.post(0, f"{BASE}/keys?maxLag=0", {"keys": cards_of_partition_1(group)})
        assert "too-stale" == problem_type(asked, 503)


async def test_a_lease_that_ends_during_a_scan_does_not_count(group: Group, callers: Callers) -> None:
    """The owner may have been replaced meanwhile. Its result is stale, and too stale for a client with maxLag=0."""
    owner = group.instances[1]
    task = owner.stores["customer-balances"].tasks[1]
    count = task.store.count

    def slow_count() -> int:
        owner.membership.lease_holds = False
        task.progress.end_offset += 1
        return count()

    task.store.count = slow_count  # type: ignore[method-assign]
    read = (await callers.get(0, f"{BASE}/count")).json()["partitions"][1]
    assert ("standby", True) == (read["role"], read["stale"])
    owner.membership.lease_holds = True
    assert [1] == (await callers.get(0, f"{BASE}/count?maxLag=0")).json()["missingPartitions"]


@pytest.mark.parametrize(("deadline", "seconds"), [("60", 2), ("1", 1)])
async def test_a_peer_that_does_not_answer_leaves_time_for_the_next_one(
    callers: Callers, deadline: str, seconds: int
) -> None:
    """A request to a peer ends after two seconds, and not after the deadline of the client."""
    first = callers.group.instances[0]
    timeouts = time_out(first)
    await callers.http.get(f"{first.url}{BASE}/count", headers={"loyalty-deadline": deadline})
    assert {seconds} == {*timeouts}


@pytest.mark.parametrize("path", ["count", "count?maxLag=0"])
async def test_a_query_whose_deadline_has_passed_asks_nobody_and_blames_nobody(callers: Callers, path: str) -> None:
    url = f"{callers.group.instances[0].url}{BASE}/{path}"
    refused = await callers.http.get(url, headers={"loyalty-deadline": "0"})
    assert "owner-timeout" == problem_type(refused, 504)


async def test_a_partial_result_names_the_missing_partitions(group: Group, callers: Callers) -> None:
    """Without a copy of a dead owner's partition the result is partial. Without any result it is 502."""
    group.dead.add("http://instance-1:8080")
    answer = (await callers.get(0, f"{BASE}/all?limit=1000")).json()
    lost = {*cards_of_partition_1(group)}
    assert (True, [1]) == (answer["partial"], answer["missingPartitions"])
    assert [card for card in CARDS if card not in lost] == keys_of(answer)
    count = (await callers.get(2, f"{BASE}/count")).json()
    assert (40 - len(lost), True, [1]) == (count["count"], count["partial"], count["missingPartitions"])
    asked = await callers.post(0, f"{BASE}/keys", {"keys": sorted(lost)})
    assert "owner-unreachable" == problem_type(asked, 502)
    others = (await callers.post(0, f"{BASE}/keys", {"keys": sorted(set(CARDS) - lost)})).json()
    assert (False, []) == (others["partial"], others["missingPartitions"])


async def test_invalid_requests_are_not_forwarded(group: Group, callers: Callers) -> None:
    """400 and 422 as in the local form, whether or not the peers respond."""
    group.dead |= {each.url for each in group.instances[1:]}
    for path in (f"{BASE}/all?limit=0", f"{BASE}/all?cursor=x", "/v1/stores/store-sales/windows/S1"):
        assert "invalid-parameters" == problem_type(await callers.get(0, path), 422)
    windows = f"{BASE}/windows/C01?from={NOON}&to={NOON}"
    assert "not-windowed" == problem_type(await callers.get(0, windows), 400)
    assert "invalid-parameters" == problem_type(await callers.post(0, f"{BASE}/keys", {"keys": 7}), 422)


async def test_a_query_that_can_find_nothing_needs_no_instance(group: Group, callers: Callers) -> None:
    """No minute begins between the two times, so no partition is read. The result is complete."""
    group.dead |= {each.url for each in group.instances[1:]}
    windows = f"/v1/stores/store-sales/windows/S1?from={NOON + 1}&to={NOON + 2}"
    found = (await callers.get(0, windows)).json()
    assert ([], False) == (found["entries"], found["partial"])


async def test_without_a_known_group_the_response_is_rebalancing() -> None:
    """503 with Retry-After while the group is unknown."""
    group = Group.of(1)
    async with running(group) as callers:
        answer = await callers.get(0, f"{BASE}/all")
        assert "rebalancing" == problem_type(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1


@settings(max_examples=examples(25), deadline=None)
@given(
    limit=st.integers(1, 15),
    moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([None, 0, 1, 2])), max_size=12),
)
async def test_pages_are_complete_while_instances_come_and_go(
    limit: int, moves: list[tuple[int, int, int | None]]
) -> None:
    """Partitions move, and an instance may die between two pages. With standbys each key comes once, in order."""
    group = three(standbys=True)
    del group.log[len(CARDS) :]  # Nobody reads the other stores, so they need not move.

    def change(turn: int, standby: int, dies: int | None) -> None:
        """Move all partitions. At most one instance is dead afterwards."""
        group.dead.clear()

        def owner(place: ChangelogPartition) -> int:
            return (place[1] + turn) % 3

        group.share(owner, lambda place: (owner(place) + 1 + standby % 2) % 3)
        if dies is not None:
            group.dead.add(group.instances[dies].url)

    visited: list[str] = []
    cursor: str | None = ""
    pending = list(moves)
    async with running(group) as callers:
        while cursor is not None:
            asked = next(number for number, each in enumerate(group.instances) if each.url not in group.dead)
            path = f"{BASE}/all?limit={limit}" + (f"&cursor={cursor}" if cursor else "")
            answer = (await callers.get(asked, path)).json()
            assert not answer["partial"]
            assert len(answer["entries"]) <= limit
            visited += keys_of(answer)
            cursor = answer["next"]
            if pending:
                change(*pending.pop(0))
    assert CARDS == visited


@pytest.mark.parametrize("query", ["", "?partition=1", "?partition=1&partition=2"])
async def test_the_local_form_asks_no_peer(group: Group, callers: Callers, query: str) -> None:
    """All peers are dead. The instance reads its own partitions at once, and says what is missing."""
    group.dead |= {each.url for each in group.instances[1:]}
    answer = (await callers.get(0, f"{BASE}/local/count{query}")).json()
    here = group.instances[0].stores["customer-balances"].tasks[0].store.count()
    assert (0 if query else here) == answer["count"]
    assert answer["missingPartitions"] == ([1, 2] if query != "?partition=1" else [1])
    away = await callers.get(0, f"{BASE}/local/keys/{cards_of_partition_1(group)[0]}")
    assert "not-here" == problem_type(away, 421)


async def test_a_deleted_key_is_in_no_store() -> None:
    """A tombstone also deletes the key from the derived store."""
    group = three()
    group.write([(LOYALTY_BALANCES, "C39", None)])
    async with running(group) as callers:
        assert "unknown-key" == problem_type(await callers.get(0, f"{BASE}/keys/C39"), 404)
        for _ in range(10):  # On a busy machine a peer may answer too late.
            top = (await callers.get(1, "/v1/stores/top-customers/all")).json()
            if not top["partial"]:
                break
        assert CARDS[20:39] == keys_of(top)


@pytest.mark.parametrize("query", ["partition=0", "partition=0&partition=1&partition=2", "p%61rtition=1", "partition"])
async def test_the_partitions_of_the_client_are_refused(query: str) -> None:
    """The query of all instances has no such parameter, so no partition counts twice. /local has it."""
    async with running(three(standbys=True)) as callers:
        for number in range(3):
            answer = await callers.get(number, f"{BASE}/count?{query}")
            assert "invalid-parameters" == problem_type(answer, 422)
            assert ["query", "partition"] == answer.json()["errors"][0]["in"]
            whole = (await callers.get(number, f"{BASE}/count?maxLag=9")).json()
            assert (40, False) == (whole["count"], whole["partial"])
            assert [0, 1, 2] == [each["partition"] for each in whole["partitions"]]


@pytest.mark.parametrize("standbys", [True])
async def test_a_result_with_unrequested_partitions_is_dropped(
    group: Group, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result with other partitions than requested is dropped, because another peer may return them too."""
    monkeypatch.setattr(
        "api.routing.scatter_gather._local_path", lambda request, numbers: f"{BASE}/local/count".encode()
    )
    answer = (await callers.get(0, f"{BASE}/count")).json()
    held = group.instances[0].stores["customer-balances"].tasks
    assert sum(held[each["partition"]].store.count() for each in answer["partitions"]) == answer["count"]
    assert {each["servedBy"] for each in answer["partitions"]} == {group.instances[0].url}
    assert (True, [1]) == (answer["partial"], answer["missingPartitions"])


async def test_scans_do_not_wait_for_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its database hangs, the routes of the ledger fill the threads of FastAPI. A scan needs no database."""
    monkeypatch.setattr(scatter_gather, "_ATTEMPT_SECONDS", 10.0)  # the other instances may be slow
    async with running(three()) as callers:
        answered = Event()
        to_thread.current_default_thread_limiter().total_tokens = 1
        read = asyncio.create_task(to_thread.run_sync(answered.wait, 20))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(10):
                assert 40 == (await callers.get(0, f"{BASE}/count")).json()["count"]
        finally:
            answered.set()
            await read


@pytest.mark.parametrize("standbys", [True])
async def test_a_scan_that_fails_is_repeated_elsewhere(group: Group, callers: Callers) -> None:
    """The disk of the owner does not allow a read. The data are not damaged, and the standby has them, too."""

    def fail() -> int:
        raise StoreError("IO error: Permission denied")

    group.instances[1].stores["customer-balances"].tasks[1].store.count = fail  # type: ignore[method-assign]
    for number in range(3):
        found = (await callers.get(number, f"{BASE}/count")).json()
        assert (40, False) == (found["count"], found["partial"])


async def test_a_partition_that_closes_during_a_scan_hides_no_other_partition() -> None:
    """A rebalance takes one partition away while an instance reads all of them."""
    group = Group.of(1)
    group.share(lambda _: 0)
    group.write(balance(card, "1.00") for card in CARDS)
    store = group.instances[0].stores["customer-balances"]

    def close(*_: object) -> int:
        if task := store.remove(2):
            task.store.close()
        raise StoreClosedError("the store is closed")

    async with running(group) as callers:
        before = sum(store.tasks[number].store.count() for number in (0, 1))
        store.tasks[2].store.count = close  # type: ignore[method-assign]
        found = (await callers.get(0, f"{BASE}/count")).json()
        assert (before, True, [2]) == (found["count"], found["partial"], found["missingPartitions"])
