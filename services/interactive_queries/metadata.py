"""Which instance holds which store partition and key, from the group's view and the reports of its members."""

from dataclasses import dataclass
from typing import NamedTuple

from services.interactive_queries.local import LocalInstance
from services.interactive_queries.reports import InstanceReport, PeerReports
from services.state_stores.assignment import Role
from services.state_stores.store import StateStore


class MetadataNotAvailableError(LookupError):
    """The owner of the partition is unknown: this instance has just started, or the group is rebalancing."""


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """Where a key is. Kafka Streams (KIP-535) uses the same name and shape.

    Attributes:
        store: the name of the store.
        partition: the partition of the key.
        active: the URL of the owner.
        standbys: the URLs of the instances with a restored copy, the highest position first.
    """

    store: str
    partition: int
    active: str
    standbys: tuple[str, ...]


class Target(NamedTuple):
    """An instance that can be asked, and the expected role of its copy."""

    url: str
    role: Role


class ClusterMetadata:
    """Answers from memory. The membership and the reports are updated elsewhere."""

    def __init__(self, local: LocalInstance, reports: PeerReports) -> None:
        self._local = local
        self._reports = reports

    @property
    def peers(self) -> frozenset[str]:
        """The URLs of the other instances in the group. Requests are sent to no other address."""
        view = self._local.membership.view
        return view.urls - {self._local.url} if view else frozenset()

    def instances(self) -> list[tuple[str, InstanceReport | None]]:
        """All instances of the group, this one included, with their newest reports, in the order of their URLs."""
        own = self._local.url
        others = [(url, self._reports.of(url)) for url in self.peers]
        return sorted([(own, self._local.report()), *others], key=lambda each: each[0])

    def why_suspect(self, url: str) -> str | None:
        return self._reports.why_suspect(url)

    def of_key(self, store: StateStore, key: bytes) -> KeyQueryMetadata:
        """Where a key is, whether or not it exists. Raises MetadataNotAvailableError.

        Each instance holds all of a global store, so it names itself.
        """
        name, partition = store.definition.name, store.partition_of(key)
        if store.definition.is_global:
            return KeyQueryMetadata(name, partition, self._local.url, ())
        active = self._active(store, partition)
        if active is None:
            raise MetadataNotAvailableError(f"the owner of partition {partition} of {name} is not known")
        return KeyQueryMetadata(name, partition, active, tuple(self._copies(store, partition, active)))

    def targets(self, store: StateStore, partition: int) -> list[Target]:
        """The instances to ask, in this order: the owner, then copies by position; suspects come last."""
        if store.definition.is_global:
            return [Target(self._local.url, Role.ACTIVE)]
        active = self._active(store, partition)
        targets = [Target(url, Role.STANDBY) for url in self._copies(store, partition, active)]
        if active is not None:
            # Only the membership proves that this instance is the owner. A view of the group may be old.
            targets.insert(0, Target(active, Role.STANDBY if active == self._local.url else Role.ACTIVE))
        return sorted(targets, key=lambda target: self._reports.why_suspect(target.url) is not None)

    def _active(self, store: StateStore, partition: int) -> str | None:
        if self._local.owns(store, partition):
            return self._local.url
        view = self._local.membership.view
        owner = view.owners.get(self._local.group_partition(store, partition)) if view else None
        return owner.url if owner else None

    def _copies(self, store: StateStore, partition: int, active: str | None) -> list[str]:
        """Restored copies by position. Their lags cannot be compared: the end offsets are from different moments."""
        found = []
        for url in self.peers:
            report = self._reports.of(url)
            copy = report.copies.get((store.definition.name, partition)) if report else None
            if copy and copy.restored:
                found.append((-copy.position, url))
        own = store.tasks.get(partition)
        if own and own.serving:
            found.append((-own.progress.position, self._local.url))
        return [url for _, url in sorted(found) if url != active]


@dataclass(frozen=True, slots=True)
class Cluster:
    """This instance and its peers."""

    local: LocalInstance
    reports: PeerReports
    metadata: ClusterMetadata

    @classmethod
    def of(cls, local: LocalInstance, reports: PeerReports) -> "Cluster":
        return cls(local, reports, ClusterMetadata(local, reports))
