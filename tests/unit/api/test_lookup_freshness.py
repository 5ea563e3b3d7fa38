"""How new the balance of a lookup is: the lag of a copy, the lease of the owner, and waits for a sequence number."""

import asyncio

import pytest

from api.http.problems import Problem
from schemas.topics import LOYALTY_BALANCES
from services.clock import boot_seconds
from services.state_stores.assignment import Role
from services.state_stores.catalogue import BALANCES
from services.state_stores.definition import ReadConsistency
from tests.support.builders import balance, problem_type
from tests.support.clusters import Callers, Group
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
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NEVER_OLD = 4_000_000_000_000
"""A time in the year 2096."""


async def test_max_lag_bounds_the_lag_of_a_standby(group: Group, callers: Callers) -> None:
    """A standby with a greater or an unknown lag is too stale. The problem names the lag."""
    group.dead.add(URLS[1])
    copy = copy_at(group, 2)
    copy.progress.end_offset = copy.progress.position + 3
    for number in (0, 2):
        assert (200, "2", "standby", "true") == summary(await callers.get(number, f"{PATH}?maxLag=3"))
        refused = await callers.get(number, f"{PATH}?maxLag=2")
        assert "too-stale" == problem_type(refused, 503)
        assert (2, 3) == (refused.json()["maxLag"], refused.json()["lag"])
    copy.progress.end_asked_at -= 7200
    assert "too-stale" == problem_type(await callers.get(0, f"{PATH}?maxLag=3"), 503)


async def test_the_lag_of_the_best_copy_is_named(group: Group, callers: Callers) -> None:
    """No copy is within maxLag. The client learns which maxLag helps: the lag of the copy with the highest position."""
    group.dead.add(URLS[1])
    group.instances[0].hold((TOPIC, 1), Role.STANDBY)
    group.instances[0].reports.note(group.instances[2].local.report())
    for number, lag in ((0, 5), (2, 3)):
        progress = copy_at(group, number).progress
        progress.end_offset = progress.position + lag
    refused = await callers.get(0, f"{PATH}?maxLag=2")
    assert "too-stale" == problem_type(refused, 503)
    assert (3, URLS[2]) == (refused.json()["lag"], refused.headers["loyalty-served-by"])


async def test_a_replaced_card_says_how_new_its_entry_is() -> None:
    """The client can demand this version of a standby that has not read the replacement yet."""
    group = three()
    group.write([(LOYALTY_BALANCES, CARD, {**balance(CARD, "0.00", 2)[2], "OpenedTime": 1, "MovedTo": "new"})])
    async with running(group) as callers:
        for expected in (("1", "active", "false"), ("2", "standby", "true")):
            gone = await callers.get(0, PATH)
            assert (410, *expected) == summary(gone)
            assert ('"1.2"', "2") == (gone.headers["etag"], gone.headers["loyalty-sequence"])
            group.dead.add(URLS[1])


@pytest.mark.parametrize("standbys", [False])
async def test_an_owner_without_its_lease_serves_as_a_standby(group: Group, callers: Callers) -> None:
    """The group may have replaced it. Its answers are stale, and too stale for a client with maxLag=0."""
    group.instances[1].membership.lease_holds = False
    for number in (0, 1):
        assert (200, "1", "standby", "true") == summary(await callers.get(number, PATH))
    assert "loyalty_stale_answers_total 2.0" in (await callers.get(1, "/metrics")).text
    copy_at(group, 1).progress.end_asked_at -= 7200
    for number in (0, 1):
        assert "too-stale" == problem_type(await callers.get(number, f"{PATH}?maxLag=0"), 503)


@pytest.mark.parametrize("standbys", [False])
async def test_an_owner_that_loses_its_lease_during_the_read_serves_as_a_standby(
    group: Group, callers: Callers
) -> None:
    """The lease is checked after the read, too."""
    owner, store = group.instances[1], copy_at(group, 1).store
    read = store.get

    def slow_read(key: bytes) -> bytes | None:
        owner.membership.lease_holds = False
        return read(key)

    store.get = slow_read  # type: ignore[method-assign]
    assert (200, "1", "standby", "true") == summary(await callers.get(1, PATH))


@pytest.mark.parametrize("standbys", [False])
async def test_a_response_claims_no_record_that_was_applied_during_the_read(group: Group, callers: Callers) -> None:
    """Loyalty-Offset is the position before the read. A stream that continues there misses nothing."""
    task = copy_at(group, 1)
    position, read = task.progress.position, task.store.get

    def slow_read(key: bytes) -> bytes | None:
        found = read(key)
        task.advance(position + 1)
        return found

    task.store.get = slow_read  # type: ignore[method-assign]
    assert str(position) == (await callers.get(1, PATH)).headers["loyalty-offset"]


@pytest.mark.parametrize("standbys", [False])
async def test_instances_without_the_coordinator_still_read_from_each_other(group: Group, callers: Callers) -> None:
    """No instance owns a partition any more, but the last view and the copies still serve."""
    for instance in group.instances:
        instance.membership.owned, instance.membership.lease_holds = frozenset(), False
    for number in range(3):
        assert (200, "1", "standby", "true") == summary(await callers.get(number, PATH))


async def test_a_long_poll_waits_at_the_owner(group: Group, callers: Callers) -> None:
    """MinSequence is forwarded, and the write at the owner ends the wait."""
    waiting = asyncio.create_task(callers.get(0, f"{PATH}?minSequence=2&timeout=30"))
    await until(lambda: bool(group.instances[1].waiters._waiting))
    group.write([balance(CARD, "2.50", 2)])
    answer = await asyncio.wait_for(waiting, 20)
    assert (200, "1", "active", "false") == summary(answer)
    assert 2 == answer.json()["Sequence"]


async def test_a_long_poll_follows_a_partition_that_moves(group: Group, callers: Callers) -> None:
    """The owner loses the partition while a client waits. The wait continues at the new owner."""
    first, second, third = group.instances
    waiting = [asyncio.create_task(callers.get(number, f"{PATH}?minSequence=2&timeout=30")) for number in (0, 1)]
    await until(lambda: bool(second.local.stores.waiters._waiting))
    moved = move_partition(group)
    for instance in (first, second):
        see_on_refresh(instance, moved)
    second.membership.view = moved
    second.local.stores.waiters.notify_all()
    await until(lambda: bool(third.local.stores.waiters._waiting))
    group.write([balance(CARD, "2.50", 2)])
    for answer in await asyncio.wait_for(asyncio.gather(*waiting), 20):
        assert (200, "2", "active", "false") == summary(answer)


async def test_a_long_poll_ends_before_the_deadline_of_its_client(callers: Callers) -> None:
    """The timeout is longer. The client gets the current sequence, because the owner keeps time for the response."""
    url, deadline = f"{URLS[1]}{PATH}?minSequence=2&timeout=30", {"loyalty-deadline": "0.6"}
    answer = await asyncio.wait_for(callers.http.get(url, headers=deadline), 20)
    assert "sequence-not-reached" == problem_type(answer, 503)


@pytest.mark.parametrize(
    "required", [ReadConsistency(2), ReadConsistency(1, NEVER_OLD), ReadConsistency(1, erased=True)]
)
async def test_an_instance_requires_of_a_peer_what_it_needs_itself(
    group: Group, callers: Callers, required: ReadConsistency
) -> None:
    """A command waits for the balance of another instance: for its sequence number, account or erasure."""
    lookup = callers.group.instances[0].app.state.dependencies.lookup
    with pytest.raises(Problem) as raised:
        await lookup.value_of(BALANCES, CARD, required, 0.01)
    assert "sequence-not-reached" == raised.value.code
    group.write([(LOYALTY_BALANCES, CARD, {**balance(CARD, "0.00", 2)[2], "OpenedTime": NEVER_OLD})])
    assert (await lookup.value_of(BALANCES, CARD, required, 60)).value["Sequence"] == 2


async def test_the_sequence_is_not_reached_in_time(callers: Callers) -> None:
    """Each instance responds with the 503 of the owner, which names the current sequence."""
    for number in range(3):
        answer = await callers.get(number, f"{PATH}?minSequence=2&timeout=0.05")
        assert "sequence-not-reached" == problem_type(answer, 503)
        assert (1, URLS[1]) == (answer.json()["currentSequence"], answer.headers["loyalty-served-by"])


@pytest.mark.parametrize("standbys", [False])
@pytest.mark.parametrize(
    ("opened", "asked", "expected"),
    [(5, 60.0, 404), (5, -60.0, 503), (0, 60.0, 503), (NEVER_OLD, 60.0, 503)],
)
async def test_a_client_that_has_seen_an_erased_account_learns_that_it_is_gone(
    group: Group, callers: Callers, opened: int, asked: float, expected: int
) -> None:
    """An owner with every record from before the read knows that the account is gone. Without the opened time the
    account may still come. So may a new account. Then the client must ask again.
    """
    group.write([(LOYALTY_BALANCES, CARD, None)])
    copy_at(group, 1).progress.end_asked_at = boot_seconds() + asked
    for number in (0, 1):
        answer = await callers.get(number, f"{PATH}?minSequence=1&openedTime={opened}&timeout=0.01")
        assert ("unknown-customer" if expected == 404 else "sequence-not-reached") == problem_type(answer, expected)


@pytest.mark.parametrize("standbys", [False])
async def test_a_wait_ends_when_the_owner_learns_that_nothing_is_missing(
    group: Group, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record of the card comes, but the broker reports the end of the topic."""
    monkeypatch.setattr("services.state_stores.waiters._PAUSE_SECONDS", 0.01)
    group.write([(LOYALTY_BALANCES, CARD, None)])
    waiting = asyncio.create_task(callers.get(1, f"{PATH}?minSequence=1&openedTime=5&timeout=30"))
    await until(lambda: bool(group.instances[1].waiters._waiting))
    copy_at(group, 1).progress.end_asked_at = boot_seconds()
    assert "unknown-customer" == problem_type(await asyncio.wait_for(waiting, 20), 404)
