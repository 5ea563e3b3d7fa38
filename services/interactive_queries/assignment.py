"""The partitions that this instance holds: its own, its standbys, and copies that it must not close yet."""

from collections.abc import Collection, Iterable, Mapping

from services.interactive_queries.group import GroupView, representative_topics, standbys_of
from services.interactive_queries.membership import GroupMembership
from services.interactive_queries.reports import PeerReports
from services.state_stores.assignment import ChangelogPartition, Role


class GroupAssignment:
    """Distributes partitions through the consumer group (see ``Assignment``)."""

    def __init__(
        self,
        membership: GroupMembership,
        reports: PeerReports,
        standby_replicas: int,
        on_disk: frozenset[ChangelogPartition],
        stores_of: Mapping[str, Collection[str]],
    ) -> None:
        """Prepare an assignment.

        Args:
            on_disk: the partitions with local data. The instance holds them until it knows the group. So it serves soon
                after a restart, while the coordinator still waits for heartbeats of the former process.
            stores_of: the names of the stores of each topic.
        """
        self._membership = membership
        self._reports = reports
        self._standby_replicas = standby_replicas
        self._stores_of = stores_of
        self._standbys = on_disk
        self._representative_of: Mapping[str, str] = {}
        self._last_view: GroupView | None = None
        self._active_since: Mapping[ChangelogPartition, float] = {}

    def attach(self, topics: Mapping[str, int]) -> None:
        self._representative_of = representative_topics(topics)
        self._standbys = frozenset(each for each in self._standbys if each[1] < topics.get(each[0], 0))
        self._membership.join({topic: topics[topic] for topic in set(self._representative_of.values())})

    def leave(self) -> None:
        self._membership.leave()

    @property
    def alive(self) -> bool:
        return self._membership.alive

    @property
    def error(self) -> str | None:
        return self._membership.error

    @property
    def settled(self) -> bool:
        view, member_id = self._membership.view, self._membership.member_id
        if view is None or not view.covers(self._membership.partitions):
            return False
        own = {partition for partition, owner in view.owners.items() if owner.member_id == member_id}
        return own == self._membership.owned and view.has(member_id or "")

    @property
    def can_hand_over(self) -> bool:
        view = self._membership.view
        peers = view.urls - {self._membership.url} if view else ()
        reports = [self._reports.of(url) for url in peers if self._reports.why_suspect(url) is None]
        return any(report is not None and report.kafka_error is None for report in reports)

    def holdings(self, held: Collection[ChangelogPartition]) -> Mapping[ChangelogPartition, Role]:
        # Read ``owned`` before ``assigned_at``, so that each owned partition has a time.
        own, times = self._membership.owned, self._membership.assigned_at
        active_since = {partition: times.get(partition, 0.0) for partition in own}
        # Another instance may have owned such a partition since the last call. For one call it is a standby, so that
        # the materialiser asks again which records exist.
        came_back = {each for each, time in active_since.items() if self._active_since.get(each, time) != time}
        self._active_since = active_since
        returned, owned = self._with_copartitioned(came_back), self._with_copartitioned(own - came_back)
        view = self._membership.view
        if view is not None and view is not self._last_view and view.covers(self._membership.partitions):
            # Compute standbys from complete views only. A view during a rebalance would close copies that the next one
            # opens again.
            url = self._membership.url
            self._standbys = self._with_copartitioned(
                partition
                for partition in self._membership.partitions
                if url in standbys_of(view, partition, self._standby_replicas)
            )
            self._last_view = view
        kept = self._standbys | returned | {partition for partition in held if self._is_needed(partition, view)}
        return {**dict.fromkeys(kept, Role.STANDBY), **dict.fromkeys(owned, Role.ACTIVE)}

    def _with_copartitioned(self, partitions: Iterable[ChangelogPartition]) -> frozenset[ChangelogPartition]:
        distributed = frozenset(partitions)
        return frozenset(
            (topic, number)
            for topic, representative in self._representative_of.items()
            for owned_topic, number in distributed
            if owned_topic == representative
        )

    def _is_needed(self, partition: ChangelogPartition, view: GroupView | None) -> bool:
        """Whether this copy must stay, because the new owner does not serve the partition yet."""
        topic, number = partition
        owner = view.owners.get((self._representative_of.get(topic, topic), number)) if view else None
        report = self._reports.of(owner.url) if owner else None
        if report is None:
            return True
        copies = [report.copies.get((store, number)) for store in self._stores_of[topic]]
        return not all(copy is not None and copy.role is Role.ACTIVE for copy in copies)
