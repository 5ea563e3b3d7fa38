"""Three instances: real apps in one process. The test replaces Kafka and the group.

The tests of lookups ask for one card, whose partition is 1.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx

from api.routing.peer_messages import PeerTimeoutError
from services.clock import boot_seconds
from services.interactive_queries.group import GroupView
from services.state_stores import catalogue
from services.state_stores.store import StateStore
from services.state_stores.task import StoreTask
from tests.support.builders import IDS, balance
from tests.support.clusters import Callers, Group, Instance, view

TOPIC = "loyalty-balances"
URLS = [f"http://instance-{number}:8080" for number in range(3)]
CARDS = [f"C{number:02}" for number in range(12)]
_BALANCES = StateStore(catalogue.stores(IDS)[0])
CARD = next(card for card in CARDS if _BALANCES.partition_of(card.encode()) == 1)
PATH = f"/v1/customers/{CARD}/balance"


def three_without_data(*, standbys: bool) -> Group:
    """Three instances. Instance n owns partition n. With standbys, the next instance has a copy."""
    group = Group.of(3)
    group.share(lambda place: place[1], (lambda place: (place[1] + 1) % 3) if standbys else lambda _: None)
    return group


def three(*, standbys: bool = True) -> Group:
    """Three instances with a balance of each card."""
    group = three_without_data(standbys=standbys)
    group.write(balance(card, "1.00", 1) for card in CARDS)
    return group


@asynccontextmanager
async def running(group: Group) -> AsyncIterator[Callers]:
    """Run the instances. Only the requests after their start count as sent."""
    async with group.running() as callers:
        group.sent.clear()
        yield callers


def copy_at(group: Group, number: int) -> StoreTask:
    """The copy of partition 1 of the balances at an instance."""
    return group.instances[number].stores["customer-balances"].tasks[1]


def summary(response: httpx.Response) -> tuple[int, str, str, str]:
    """Status, number of the serving instance, its role, and whether the answer is stale."""
    found = response.headers
    served_by = found["loyalty-served-by"].removeprefix("http://instance-").removesuffix(":8080")
    return response.status_code, served_by, found["loyalty-role"], found["loyalty-stale"]


async def until(condition: Callable[[], object]) -> None:
    """Let the applications run until the condition is true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event announces the condition
            await asyncio.sleep(0)


def time_out(instance: Instance) -> list[int]:
    """Let all peers of the instance time out at once. Returns the seconds that each of them had."""
    timeouts: list[int] = []

    async def noted(_: object, __: object, ___: float, timeout_seconds: float) -> None:
        timeouts.append(round(timeout_seconds))
        raise PeerTimeoutError

    instance.app.state.dependencies.peers.forward = noted
    return timeouts


def move_partition(group: Group) -> GroupView:
    """Partition 1 moves from the second to the third instance. Returns the new view, which no instance has seen yet."""
    _, second, third = group.instances
    third.hold((TOPIC, 1))
    second.membership.owned, third.membership.owned = frozenset(), frozenset({(TOPIC, 1), (TOPIC, 2)})
    return view({URLS[0]: [(TOPIC, 0)], URLS[1]: [], URLS[2]: [(TOPIC, 1), (TOPIC, 2)]}, boot_seconds())


def see_on_refresh(instance: Instance, found: GroupView) -> None:
    """Let an instance see this view after its next refresh."""

    def refresh() -> None:
        instance.membership.view = replace(found, asked_at=boot_seconds())

    instance.membership.on_refresh = refresh
