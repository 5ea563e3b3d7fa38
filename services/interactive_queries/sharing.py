"""What this instance holds: what the group has given it, what it keeps for others, and what it must not drop yet."""

from collections.abc import Collection, Iterable, Mapping

from services.interactive_queries.group import GroupView, covers, leaders, standbys_of
from services.interactive_queries.membership import GroupMembership
from services.interactive_queries.reports import PeerReports
from services.state_stores.assignment import Place, Role


class GroupAssignment:
    """Shares partitions through the group (see ``Assignment``).

    Args:
        on_disk: partitions of which there is data from before. Until the group has settled they are held: a restarted
            instance answers from them while the coordinator still waits for its former self.
        stores_of: topic to the names of the stores that follow it.
    """

    def __init__(
        self,
        membership: GroupMembership,
        reports: PeerReports,
        standby_replicas: int,
        on_disk: frozenset[Place],
        stores_of: Mapping[str, Collection[str]],
    ) -> None:
        self._membership = membership
        self._reports = reports
        self._standby_replicas = standby_replicas
        self._stores_of = stores_of
        self._standby = on_disk
        self._leaders: Mapping[str, str] = {}
        self._reckoned: GroupView | None = None

    def attach(self, topics: Mapping[str, int]) -> None:
        self._leaders = leaders(topics)
        self._standby = frozenset(place for place in self._standby if place[1] < topics.get(place[0], 0))
        self._membership.join({topic: topics[topic] for topic in set(self._leaders.values())})

    def leave(self) -> None:
        self._membership.leave()

    @property
    def alive(self) -> bool:
        return self._membership.alive

    @property
    def settled(self) -> bool:
        view, member_id = self._membership.view, self._membership.member_id
        if view is None or not covers(view, self._membership.places):
            return False
        own = {place for place, owner in view.owners.items() if owner.member_id == member_id}
        return own == self._membership.owned and view.has(member_id or "")

    def holdings(self, held: Collection[Place]) -> Mapping[Place, Role]:
        owned, view = self._led_by(self._membership.owned), self._membership.view
        if view is not None and view is not self._reckoned and covers(view, self._membership.places):
            # Only from a complete picture: in the middle of a rebalance copies would be dropped and made again.
            own = self._membership.url
            self._standby = self._led_by(
                place for place in self._membership.places if own in standbys_of(view, place, self._standby_replicas)
            )
            self._reckoned = view
        kept = self._standby | {place for place in held if self._is_needed(place, view)}
        return {**dict.fromkeys(kept, Role.STANDBY), **dict.fromkeys(owned, Role.ACTIVE)}

    def _led_by(self, places: Iterable[Place]) -> frozenset[Place]:
        shared = frozenset(places)
        return frozenset(
            (topic, number) for topic, leader in self._leaders.items() for lead, number in shared if lead == leader
        )

    def _is_needed(self, place: Place, view: GroupView | None) -> bool:
        """Whether a copy that was this instance's to hold must stay until its new owner serves the partition."""
        topic, partition = place
        owner = view.owners.get((self._leaders.get(topic, topic), partition)) if view else None
        report = self._reports.of(owner.url) if owner else None
        if report is None:
            return True
        copies = [report.copies.get((store, partition)) for store in self._stores_of[topic]]
        return not all(copy is not None and copy.role is Role.ACTIVE for copy in copies)
