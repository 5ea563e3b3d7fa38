"""Which instance answers a lookup: the owner, or a standby in its place."""

from pathlib import Path

import httpx
import pytest

from api.http.problems import TooManyConnections
from api.routing.locator import Target
from api.routing.peer_messages import PeerRequest, PeerResponse
from api.routing.problems import Rebalancing
from services.clock import boot_seconds
from services.state_stores.catalogue import BALANCES, PROGRAMMES
from services.state_stores.contract import Checkpoint
from services.state_stores.definition import VersionedValue
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options
from tests.support.builders import problem_type
from tests.support.clusters import Callers, Group, app_of, damage, view
from tests.support.failing_disk import flip
from tests.unit.api.three_instances import (
    CARD,
    PATH,
    TOPIC,
    URLS,
    copy_at,
    move_partition,
    running,
    see_on_refresh,
    summary,
    three,
    time_out,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def hops(group: Group) -> list[httpx.Request]:
    """The requests that instances have forwarded to each other."""
    return [each for each in group.sent if "loyalty-forwarded-to" in each.headers]


def forwarded_to(group: Group) -> list[str]:
    """The URLs of the instances to which requests were forwarded."""
    return [f"{each.url.scheme}://{each.url.netloc.decode()}" for each in hops(group)]


async def test_the_owner_serves_the_lookup_itself(group: Group, callers: Callers) -> None:
    """The owner forwards nothing."""
    answer = await callers.get(1, PATH)
    assert (200, "1", "active", "false") == summary(answer)
    headers = {name: answer.headers[f"loyalty-{name}"] for name in ("partition", "offset", "lag", "sequence")}
    position = copy_at(group, 1).progress.position
    assert {"partition": "1", "offset": str(position), "lag": "0", "sequence": "1"} == headers
    assert [] == hops(group)


async def test_other_instances_forward_to_the_owner_once(group: Group, callers: Callers) -> None:
    """Status, body and headers are those of the owner, also for an unknown customer."""
    direct, forwarded = await callers.get(1, PATH), await callers.get(0, PATH)
    assert (direct.status_code, direct.content) == (forwarded.status_code, forwarded.content)
    same = ("content-type", "etag", "cache-control", "loyalty-served-by", "loyalty-role", "loyalty-sequence")
    assert [direct.headers[name] for name in same] == [forwarded.headers[name] for name in same]
    assert [URLS[1]] == forwarded_to(group)
    for number in range(3):
        assert "unknown-customer" == problem_type(await callers.get(number, "/v1/customers/nobody/balance"), 404)


async def test_only_listed_headers_are_forwarded() -> None:
    """A forwarded request has the listed headers of the client, the deadline and the expected role."""
    group = three()
    listed = {
        **dict.fromkeys(("accept", "authorization", "last-event-id", "traceparent", "tracestate", "x-request-id"), "x"),
        "if-none-match": '"1"',
    }
    async with running(group) as callers:
        url = f"{URLS[0]}{PATH}?minSequence=1"
        answer = await callers.http.get(url, headers={**listed, "cookie": "secret", "x-forwarded-for": "10.1.1.1"})
        assert (304, b"", '"1"') == (answer.status_code, answer.content, answer.headers["etag"])
        (hop,) = hops(group)
        assert listed == {name: hop.headers.get(name) for name in listed}
        assert not {"cookie", "x-forwarded-for"} & hop.headers.keys()
        assert ("active", "test") == (hop.headers["loyalty-forwarded-to"], hop.headers["loyalty-group"])
        assert 0 < float(hop.headers["loyalty-deadline"]) <= 5
        assert b"minSequence=1" == hop.url.query


async def test_a_forwarded_request_is_never_forwarded_again(group: Group, callers: Callers) -> None:
    """An instance that is not the owner, or has no copy, responds with a problem."""
    active, standby = ({"Loyalty-Forwarded-To": role} for role in ("active", "standby"))
    for number in (0, 2):
        assert "not-the-owner" == problem_type(await callers.http.get(URLS[number] + PATH, headers=active), 421)
    assert "starting" == problem_type(await callers.http.get(URLS[0] + PATH, headers=standby), 503)
    assert (200, "2", "standby", "true") == summary(await callers.http.get(URLS[2] + PATH, headers=standby))
    assert 4 == len(hops(group))  # the requests of this test


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", PATH),
        ("HEAD", PATH),
        ("GET", "/v1/stores/customer-balances/local/all"),
        ("GET", f"/v1/customers/{CARD}/events"),
        ("POST", f"/v1/customers/{CARD}/redemptions"),
    ],
)
async def test_a_request_of_another_group_is_refused(callers: Callers, method: str, path: str) -> None:
    """Before any work. Release 0.1 sends no group, so its requests are served."""
    for role in ("active", "standby"):
        headers = {"Loyalty-Forwarded-To": role, "Loyalty-Group": "other"}
        refused = await callers.http.request(method, URLS[1] + path, headers=headers)
        assert 403 == refused.status_code
        assert method == "HEAD" or "forward-refused" == problem_type(refused, 403)
    if not path.endswith("events"):
        for sender in ({}, {"Loyalty-Group": "test"}):
            headers = {"Loyalty-Forwarded-To": "active", **sender}
            accepted = await callers.http.request(method, URLS[1] + path, headers=headers)
            assert accepted.status_code in {200, 400}


@pytest.mark.parametrize("standbys", [True, False])
async def test_an_instance_of_another_group_at_the_address_of_the_owner_serves_nothing(*, standbys: bool) -> None:
    """Two deployments on one machine have the same address. A standby answers, or nobody."""
    group = three(standbys=standbys)
    stranger = group.instances[1]
    stranger.membership.group = "other"
    stranger.app = app_of(stranger.local, stranger.reports, stranger.command_log)
    async with running(group) as callers:
        for _ in range(2):
            answer = await callers.get(0, PATH)
            if standbys:
                assert (200, "2", "standby", "true") == summary(answer)
            else:
                assert "owner-unreachable" == problem_type(answer, 502)
        listed = (await callers.get(0, "/v1/stores/customer-balances/all")).json()
        assert ([] if standbys else [1]) == listed["missingPartitions"]
        assert URLS[1] not in {each["servedBy"] for each in listed["partitions"]}
        for key in range(4):  # two of them belong to the stranger
            body = {"points": "5", "reason": "x", "actor": "me"}
            headers = {"Idempotency-Key": str(key)}
            await callers.http.post(f"{URLS[0]}/v1/customers/{CARD}/adjustments?timeout=0", json=body, headers=headers)
        assert group.instances[0].command_log.marks
        assert not stranger.command_log.marks


@pytest.mark.parametrize("failure", ["dead", "mute"])
async def test_a_standby_serves_while_the_owner_does_not_respond(group: Group, callers: Callers, failure: str) -> None:
    """The response is stale. The next request goes to the standby at once, until the owner reports again.

    The standby serves its own clients, too.
    """
    getattr(group, failure).add(URLS[1])
    assert (200, "2", "standby", "true") == summary(await callers.get(0, PATH))
    tried = len(hops(group))
    assert (200, "2", "standby", "true") == summary(await callers.get(0, PATH))
    assert [URLS[2]] == forwarded_to(group)[tried:]
    assert (200, "2", "standby", "true") == summary(await callers.get(2, PATH))

    getattr(group, failure).clear()
    group.instances[0].reports.note(group.instances[1].local.report())
    assert (200, "1", "active", "false") == summary(await callers.get(0, PATH))


async def test_a_standby_elsewhere_does_not_prove_that_a_key_is_unknown(callers: Callers) -> None:
    """The owner may know it. The lookup of a command for an unknown card ends with a problem, and not without a value.

    The value of a known key counts.
    """
    callers.group.dead.add(URLS[1])
    first = callers.group.instances[0]
    store, lookup = first.stores[BALANCES], first.app.state.dependencies.lookup
    unknown = next(card for card in "abcdefgh" if store.partition_of(card.encode()) == 1)
    with pytest.raises(Rebalancing):
        await lookup.known_value_of(BALANCES, unknown)
    assert (await lookup.known_value_of(BALANCES, CARD)).stale


@pytest.mark.parametrize(
    ("failure", "status", "expected"), [("dead", 502, "owner-unreachable"), ("mute", 504, "owner-timeout")]
)
async def test_no_instance_responds(group: Group, callers: Callers, failure: str, status: int, expected: str) -> None:
    """502 for failed connections and 504 for timeouts. Both name the owner and the standby."""
    getattr(group, failure).update(URLS[1:])
    answer = await callers.get(0, PATH)
    assert expected == problem_type(answer, status)
    assert URLS[1:] == answer.json()["tried"]
    assert int(answer.headers["retry-after"]) >= 1


async def test_an_instance_that_hangs_counts_more_than_a_dead_one(group: Group, callers: Callers) -> None:
    """504: the request may still be executed."""
    group.dead.add(URLS[1])
    group.mute.add(URLS[2])
    assert "owner-timeout" == problem_type(await callers.get(0, PATH), 504)


@pytest.mark.parametrize("standbys", [False])
async def test_a_short_deadline_of_a_client_makes_no_suspect(group: Group, callers: Callers) -> None:
    """A client may send any deadline. A peer that does not answer within a millisecond is not dead."""
    group.mute.add(URLS[1])
    answer = await callers.http.get(URLS[0] + PATH, headers={"loyalty-deadline": "0.001"})
    assert 504 == answer.status_code
    assert group.instances[0].reports.why_suspect(URLS[1]) is None
    await callers.get(0, PATH)
    assert group.instances[0].reports.why_suspect(URLS[1])


async def test_a_read_without_time_is_504(callers: Callers) -> None:
    """The deadline has passed. The partition does not move. A deadline that is no number does not count."""
    answer = await callers.http.get(URLS[0] + PATH, headers={"loyalty-deadline": "0"})
    assert "owner-timeout" == problem_type(answer, 504)
    answer = await callers.http.get(URLS[0] + PATH, headers={"loyalty-deadline": "nan"})
    assert (200, "1", "active", "false") == summary(answer)


async def test_a_standby_serves_while_the_owner_has_too_many_connections(group: Group, callers: Callers) -> None:
    """The next copy answers, as it does for a dead owner."""
    peers = group.instances[0].app.state.dependencies.peers
    forward = peers.forward

    async def refused(request: PeerRequest, target: Target, *seconds: float) -> PeerResponse:
        if target.url == URLS[1]:
            return PeerResponse.from_problem(TooManyConnections())
        found: PeerResponse = await forward(request, target, *seconds)
        return found

    peers.forward = refused
    assert (200, "2", "standby", "true") == summary(await callers.get(0, PATH))


async def test_the_owner_has_the_time_of_a_long_poll(group: Group, callers: Callers) -> None:
    """It waits for the sequence number. Only then a standby gets the rest of the time."""
    timeouts = time_out(group.instances[0])
    assert "owner-timeout" == problem_type(await callers.get(0, f"{PATH}?minSequence=2&timeout=20"), 504)
    assert [21, 25] == timeouts


@pytest.mark.parametrize("standbys", [False])
async def test_a_suspect_does_not_cost_all_the_time(group: Group, callers: Callers) -> None:
    """The last instance may use all the remaining time, unless it is a suspect."""
    timeouts = time_out(group.instances[0])
    assert "owner-timeout" == problem_type(await callers.get(0, PATH), 504)
    group.instances[0].reports.suspect(URLS[1], "it did not answer")
    assert "owner-timeout" == problem_type(await callers.get(0, PATH), 504)
    assert [5, 1] == timeouts


@pytest.mark.parametrize("standbys", [False])
async def test_a_new_owner_is_discovered(group: Group, callers: Callers) -> None:
    """The former owner responds with 421, the group is asked again, and the new owner serves."""
    first, _, third = group.instances
    see_on_refresh(first, move_partition(group))
    group._restore(third, (TOPIC, 1))
    assert (200, "2", "active", "false") == summary(await callers.get(0, PATH))
    assert [URLS[1], URLS[2]] == forwarded_to(group)


@pytest.mark.parametrize("standbys", [False])
async def test_without_owner_and_copies_the_response_is_rebalancing(group: Group, callers: Callers) -> None:
    """503 rebalancing with Retry-After."""
    first, second, _ = group.instances
    second.membership.owned = frozenset()
    second.drop((TOPIC, 1))
    first.reports.keep_only([])
    first.membership.view = view({url: [] for url in URLS}, boot_seconds())
    answer = await callers.get(0, PATH)
    assert "rebalancing" == problem_type(answer, 503)
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_standby_serves_while_the_new_owner_restores(group: Group, callers: Callers) -> None:
    """Without a standby the client gets the 503 restoring of the owner."""
    owner = copy_at(group, 1)
    owner.progress.restored = False
    for number in range(3):
        assert (200, "2", "standby", "true") == summary(await callers.get(number, PATH))
    group.instances[2].drop((TOPIC, 1))
    for instance in group.instances:
        if instance.url != URLS[2]:
            instance.reports.note(group.instances[2].local.report())
    for number in range(3):
        assert "restoring" == problem_type(await callers.get(number, PATH), 503)


async def test_a_standby_serves_for_a_damaged_copy(group: Group, callers: Callers) -> None:
    """The first read that finds the damage stops the copy from serving. Without a standby the response is 503."""
    copy = copy_at(group, 1)
    damage(copy)
    for query in ("", "?minSequence=1&timeout=1"):
        for number in (1, 0, 2):
            answer = await callers.get(number, PATH + query)
            assert (200, "2", "standby", "true") == summary(answer)
    assert "Corruption: block checksum mismatch" == copy.store.damage
    damage(copy_at(group, 2))
    for number in range(3):
        assert "restoring" == problem_type(await callers.get(number, PATH), 503)


async def test_a_damaged_block_on_disk_is_served_by_a_standby(tmp_path: Path) -> None:
    """The owner reads from RocksDB, and 64 bytes of its SST file are flipped. No read gets 500, and none gets 404."""
    group = three()
    keys = [f"card{number:06d}".encode() for number in range(3_000)]
    values = {key: VersionedValue(1, 7, 0, b'{"padding":"%s"}' % (key * 25)).pack() for key in keys}
    storage = RocksDbStorePartition(tmp_path / "1", rocksdb_options())
    storage.apply(values, Checkpoint("test", 7, 1))
    storage._db.flush()
    storage.close()
    (file,) = (tmp_path / "1").glob("*.sst")
    flip(file)
    owner, standby = copy_at(group, 1), copy_at(group, 2)
    owner.store = RocksDbStorePartition(tmp_path / "1", rocksdb_options())
    standby.store.apply(values, Checkpoint("test", 7, 1))
    async with running(group) as callers:
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

    owner.store.close()


async def test_a_damaged_copy_is_reported_as_not_restored(group: Group, callers: Callers) -> None:
    """Peers do not ask the instance for the copy any more. Metrics and reports show the damage.

    The instance stays ready, because other instances have copies.
    """
    damaged = group.instances[1]
    damage(copy_at(group, 1))
    await callers.get(1, PATH)

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


async def test_an_instance_with_a_damaged_global_store_is_not_ready(group: Group, callers: Callers) -> None:
    """No other instance can serve a global store in its place."""
    task = group.instances[1].stores[PROGRAMMES].tasks[0]
    assert 200 == (await callers.get(1, "/readyz")).status_code
    task.store.damage = "Corruption: block checksum mismatch"

    assert "not-ready" == problem_type(await callers.get(1, "/readyz"), 503)


async def test_each_instance_lists_the_same_instances_and_stores(group: Group, callers: Callers) -> None:
    """The lists of the holders of a store and of a key are the same, too."""
    for number in range(3):
        found = (await callers.get(number, "/v1/instances")).json()["instances"]
        assert [(url, url == URLS[number], True) for url in URLS] == [
            (each["url"], each["self"], each["reachable"]) for each in found
        ]
        holders = (await callers.get(number, "/v1/stores/customer-balances/metadata")).json()["instances"]
        assert [{"url": url, "active": [each], "standby": [(each - 1) % 3]} for each, url in enumerate(URLS)] == holders
        key = (await callers.get(number, f"/v1/stores/customer-balances/metadata/{CARD}")).json()
        assert {"store": "customer-balances", "partition": 1, "active": URLS[1], "standbys": [URLS[2]]} == key
        assert "unknown-store" == problem_type(await callers.get(number, "/v1/stores/none/metadata"), 404)
        assert "unknown-store" == problem_type(await callers.get(number, "/v1/stores/none/metadata/x"), 404)
        stores = (await callers.get(number, "/v1/stores")).json()["stores"]
        assert {"customer-balances", "stores"} <= {each["name"] for each in stores}
    group.dead.add(URLS[1])
    await callers.get(0, PATH)
    found = (await callers.get(0, "/v1/instances")).json()["instances"]
    assert [True, False, True] == [each["reachable"] for each in found]
