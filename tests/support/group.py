"""A group without a broker, for tests of what is done with it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confluent_kafka import ConsumerGroupState, ConsumerGroupType, Node, TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription, MemberAssignment, MemberDescription

from services.boot_clock import boot_seconds
from services.interactive_queries.group import GroupView, view_of
from services.interactive_queries.local import LocalInstance
from services.settings import Settings
from services.state_stores.assignment import ChangelogPartition
from services.state_stores.store import LocalStores

URL = "http://127.0.0.1:8080"


def member(url: str, places: Iterable[ChangelogPartition], suffix: str = "1") -> MemberDescription:
    """A member as the broker describes it; its id begins with its client id, as the broker makes them."""
    partitions = [TopicPartition(topic, number) for topic, number in places]
    return MemberDescription(f"{url}-{suffix}", url, "/127.0.0.1", MemberAssignment(partitions))


def description(*members: MemberDescription, stable: bool = True) -> ConsumerGroupDescription:
    state = ConsumerGroupState.STABLE if stable else ConsumerGroupState.PREPARING_REBALANCING
    return ConsumerGroupDescription(
        "loyalty-api",
        is_simple_consumer_group=False,
        members=list(members),
        partition_assignor="cooperative-sticky",
        state=state,
        coordinator=Node(1, "127.0.0.1", 9092),
        type=ConsumerGroupType.CLASSIC,
    )


def view(shares: dict[str, Iterable[ChangelogPartition]], asked_at: float = 0.0) -> GroupView:
    """A stable group: URL to what its instance owns."""
    return view_of(description(*(member(url, places) for url, places in shares.items())), asked_at, None)


@dataclass
class FixedMembership:
    """A membership that is as the test says, and changes when the test does."""

    owned: frozenset[ChangelogPartition] = frozenset()
    view: GroupView | None = None
    lease_holds: bool = True
    url: str = URL
    group: str = "loyalty-api"
    lease_seconds: float = 4.0
    refreshed: int = 0
    changed: Callable[[], None] = field(default=lambda: None)
    on_refresh: Callable[[], None] = field(default=lambda: None)

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback

    def refresh(self) -> None:
        self.refreshed += 1
        self.on_refresh()


def alone(stores: LocalStores) -> LocalInstance:
    """The only instance of its group, which owns everything."""
    topics = {store.definition.changelog for store in stores.by_name.values()}
    places = frozenset((topic.name, number) for topic in topics for number in range(topic.partitions))
    membership = FixedMembership(places, view({URL: places}, boot_seconds()))
    return LocalInstance(stores, membership, Settings())
