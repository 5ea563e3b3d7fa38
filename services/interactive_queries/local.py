"""The copies of this instance, and the status of each of them at a read."""

from typing import NamedTuple

from services.clock import boot_seconds
from services.interactive_queries.group import representative_topics
from services.interactive_queries.membership import GroupMembership
from services.interactive_queries.reports import HeldPartition, InstanceReport
from services.settings import Settings
from services.state_stores.assignment import ChangelogPartition, Role
from services.state_stores.materialiser import LocalStores
from services.state_stores.store import StateStore
from services.state_stores.task import StoreTask


class ReplicaStatus(NamedTuple):
    """The status of a copy at the moment of a read.

    Attributes:
        role: active only if the lease is valid, and the copy has all records that existed when it became active.
        position: the next changelog offset to apply. The response contains all records below it.
        lag: the number of records between the position and the last known end offset.
        lag_known: whether the broker has reported that end offset within the length of a lease.
        end_asked_at: when the broker was asked for it, by ``boot_seconds``.
    """

    role: Role
    partition: int
    position: int
    lag: int
    lag_known: bool
    end_asked_at: float = 0.0

    @property
    def stale(self) -> bool:
        """Whether another instance may have newer data."""
        return self.role is not Role.ACTIVE

    def has_all_before(self, moment: float) -> bool:
        """Whether an owner has applied every record that existed at this moment (by ``boot_seconds``)."""
        return not self.stale and self.lag == 0 and self.end_asked_at >= moment

    def is_within(self, max_lag: int | None) -> bool:
        """Whether the copy may serve a caller that accepts this lag. An active copy always may."""
        return max_lag is None or not self.stale or (self.lag_known and self.lag <= max_lag)


class LocalInstance:
    """The copies of this process and its membership of the group."""

    def __init__(self, stores: LocalStores, membership: GroupMembership, settings: Settings) -> None:
        self.stores = stores
        self.membership = membership
        topics = {name: settings.name_of(store.definition.changelog) for name, store in stores.by_name.items()}
        representatives = representative_topics(
            {topics[name]: store.partitions for name, store in stores.by_name.items() if not store.definition.is_global}
        )
        self._representative_of = {name: representatives.get(topic, topic) for name, topic in topics.items()}

    @property
    def url(self) -> str:
        return self.membership.url

    def group_partition(self, store: StateStore, partition: int) -> ChangelogPartition:
        """The partition that the group distributes for a store partition (see ``representative_topics``)."""
        return self._representative_of[store.definition.name], partition

    def owns(self, store: StateStore, partition: int) -> bool:
        """Whether the group has given the partition to this instance, as far as the instance knows.

        It is always true for a global store.
        """
        return store.definition.is_global or self.group_partition(store, partition) in self.membership.owned

    def holds_lease(self, store: StateStore, partition: int) -> bool:
        """Whether no other instance can have newer data.

        Only the owner of a partition of a keyed store can hold the lease. A copy of a global store has no owner. It
        holds the lease if it has all records up to the last reported end offset, and if the request for this end offset
        is not older than the length of a lease.
        """
        if store.definition.is_global:
            task = store.tasks.get(partition)
            return task is not None and task.progress.lag == 0 and self._end_is_known(task)
        return self.owns(store, partition) and self.membership.lease_holds

    def status_of(self, store: StateStore, task: StoreTask) -> ReplicaStatus:
        """The status of a copy. Call it before the read, so that it does not promise more than the read returns."""
        progress, partition = task.progress, task.partition
        role = Role.STANDBY
        # Check the ownership before reading its time. An older time would accept the target of an earlier ownership.
        if self.holds_lease(store, partition):
            assigned_at = self.membership.assigned_at.get(self.group_partition(store, partition), 0.0)
            role = Role.ACTIVE if progress.has_reached_active_target(assigned_at) else Role.STANDBY
        # Read the time before the lag, so that the lag belongs to this answer of the broker or to a later one.
        asked_at = progress.end_asked_at
        return ReplicaStatus(role, partition, progress.position, progress.lag, self._end_is_known(task), asked_at)

    def _end_is_known(self, task: StoreTask) -> bool:
        return boot_seconds() - task.progress.end_asked_at < self.membership.lease_seconds

    def confirm(self, store: StateStore, status: ReplicaStatus) -> ReplicaStatus:
        """The status after the read. It checks the lease again, because the process may have paused meanwhile."""
        if status.stale or self.holds_lease(store, status.partition):
            return status
        return status._replace(role=Role.STANDBY)

    def report(self) -> InstanceReport:
        """The report for the other instances."""
        copies = [
            HeldPartition(
                store=name,
                partition=number,
                role=self.status_of(store, task).role,
                restored=task.serving,
                position=task.progress.position,
                end_offset=task.progress.end_offset,
                lag=task.progress.lag,
            )
            for name, store in self.stores.by_name.items()
            for number, task in sorted(store.tasks.items())
        ]
        return InstanceReport(
            url=self.url,
            group=self.membership.group,
            partitions=tuple(copies),
            kafka_error=self.stores.materialiser.kafka_error,
        )
