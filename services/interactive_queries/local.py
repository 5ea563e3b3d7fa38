"""This instance's own copies, and what may be claimed of an answer from them."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from services.boot_clock import boot_seconds
from services.interactive_queries.group import GroupView, leaders
from services.interactive_queries.reports import HeldPartition, InstanceReport
from services.settings import Settings
from services.state_stores.assignment import Place, Role
from services.state_stores.local import LocalStores
from services.state_stores.store import StateStore
from services.state_stores.task import StoreTask


class Membership(Protocol):
    """What reads ask of the group (see ``GroupMembership``)."""

    url: str
    group: str
    lease_seconds: float
    view: GroupView | None

    @property
    def owned(self) -> frozenset[Place]: ...

    @property
    def lease_holds(self) -> bool: ...

    def on_change(self, callback: Callable[[], None]) -> None: ...

    def refresh(self) -> None: ...


class ReplicaStatus(NamedTuple):
    """How a copy stood at the moment of a read.

    Attributes:
        role: active only under a lease that holds, and with all that the changelog had when the partition was taken.
        position: the next changelog offset to apply: all below it is in the answer.
        lag: records between position and the end of the changelog, as far as it is known.
        lag_known: whether the broker has said so within the length of a lease.
    """

    role: Role
    partition: int
    position: int
    lag: int
    lag_known: bool

    @property
    def stale(self) -> bool:
        """Whether somebody else may know better."""
        return self.role is not Role.ACTIVE

    def is_within(self, max_lag: int | None) -> bool:
        """Whether a caller who bears this lag may have the answer; an active copy always, an unknown lag never."""
        return max_lag is None or not self.stale or (self.lag_known and self.lag <= max_lag)


class LocalInstance:
    """The copies of this process, seen together with the group."""

    def __init__(self, stores: LocalStores, membership: Membership, settings: Settings) -> None:
        self.stores = stores
        self.membership = membership
        definitions = [store.definition for store in stores.by_name.values()]
        topics = {each.name: settings.name_of(each.changelog) for each in definitions}
        shared = leaders({topics[each.name]: each.changelog.partitions for each in definitions if not each.is_global})
        self._leader_of = {name: shared.get(topic, topic) for name, topic in topics.items()}

    @property
    def url(self) -> str:
        return self.membership.url

    def place(self, store: StateStore, partition: int) -> Place:
        """The partition of the group's that stands for it (see ``leaders``)."""
        return self._leader_of[store.definition.name], partition

    def owns(self, store: StateStore, partition: int) -> bool:
        """Whether the group gave it to this instance, as far as that has heard; always so for a global store."""
        definition = store.definition
        return definition.is_global or (self._leader_of[definition.name], partition) in self.membership.owned

    def may_claim(self, store: StateStore, partition: int) -> bool:
        """Whether nobody else can own it now."""
        return store.definition.is_global or (self.owns(store, partition) and self.membership.lease_holds)

    def standing(self, store: StateStore, partition: int) -> ReplicaStatus:
        """How the copy stands. Ask before the read, or it may claim more than was read; see ``after_read``.

        Raises NotServingError for a partition that is not here, or not restored.
        """
        return self.standing_of(store, store.serving(partition))

    def standing_of(self, store: StateStore, task: StoreTask) -> ReplicaStatus:
        """How the copy of a partition that is here stands."""
        progress, partition = task.progress, task.partition
        role = Role.ACTIVE if progress.caught_up and self.may_claim(store, partition) else Role.STANDBY
        lag_known = boot_seconds() - progress.end_asked_at < self.membership.lease_seconds
        return ReplicaStatus(role, partition, progress.position, progress.lag, lag_known)

    def after_read(self, store: StateStore, standing: ReplicaStatus) -> ReplicaStatus:
        """The same, with the lease checked once more: the process may have been stopped during the read."""
        if standing.stale or self.may_claim(store, standing.partition):
            return standing
        return standing._replace(role=Role.STANDBY)

    def report(self) -> InstanceReport:
        """What the other instances are told."""
        held = [
            _held(name, task, self.standing_of(store, task).role)
            for name, store in self.stores.by_name.items()
            for _, task in sorted(store.tasks.items())
        ]
        return InstanceReport(url=self.url, group=self.membership.group, partitions=tuple(held))


def _held(store: str, task: StoreTask, role: Role) -> HeldPartition:
    progress = task.progress
    return HeldPartition(
        store=store,
        partition=task.partition,
        role=role,
        restored=progress.restored,
        position=progress.position,
        end_offset=progress.end_offset,
        lag=progress.lag,
    )
