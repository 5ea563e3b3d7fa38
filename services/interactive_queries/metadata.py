"""Which instance holds which store and key, as this instance knows it: the group's word, and its members' reports."""

from dataclasses import dataclass
from typing import NamedTuple

from services.interactive_queries.local import LocalInstance
from services.interactive_queries.reports import InstanceReport, PeerReports
from services.state_stores.assignment import Role
from services.state_stores.store import StateStore


class MetadataNotAvailableError(LookupError):
    """Nobody is known to own the partition: this instance has just started, or the group is rebalancing."""


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """Where a key is (the name and the shape are those of Kafka Streams, KIP-535).

    Attributes:
        active: URL of the owner.
        standbys: URLs of the instances with a copy that they serve reads from, the nearest to the end first.
    """

    store: str
    partition: int
    active: str
    standbys: tuple[str, ...]


class Target(NamedTuple):
    """An instance to ask, and as what."""

    url: str
    role: Role


class ClusterMetadata:
    """Answers from memory. The membership and the reports are kept fresh by others."""

    def __init__(self, local: LocalInstance, reports: PeerReports) -> None:
        self._local = local
        self._reports = reports

    @property
    def peers(self) -> frozenset[str]:
        """The URLs of the other instances in the group: the only addresses that a request is ever sent to."""
        view = self._local.membership.view
        return view.urls - {self._local.url} if view else frozenset()

    def instances(self) -> list[tuple[str, InstanceReport | None]]:
        """Every instance of the group with its newest report, this one included, in the order of their URLs."""
        own = self._local.url
        others = [(url, self._reports.of(url)) for url in self.peers]
        return sorted([(own, self._local.report()), *others], key=lambda each: each[0])

    def why_suspect(self, url: str) -> str | None:
        return self._reports.why_suspect(url)

    def of_key(self, store: StateStore, key: bytes) -> KeyQueryMetadata:
        """Where a key is, whether or not there is such a key. Raises MetadataNotAvailableError.

        Every instance has the whole of a global store, so of that each names itself.
        """
        name, partition = store.definition.name, store.partition_of(key)
        if store.definition.is_global:
            return KeyQueryMetadata(name, partition, self._local.url, ())
        active = self._active(store, partition)
        if active is None:
            raise MetadataNotAvailableError(f"nobody is known to own partition {partition} of {name}")
        return KeyQueryMetadata(name, partition, active, tuple(self._copies(store, partition, active)))

    def targets(self, store: StateStore, partition: int) -> list[Target]:
        """Whom to ask, best first: the owner, then copies by how far they are; whoever did not answer lately, last."""
        if store.definition.is_global:
            return [Target(self._local.url, Role.ACTIVE)]
        active = self._active(store, partition)
        copies = [Target(url, Role.STANDBY) for url in self._copies(store, partition, active)]
        targets = copies if active is None else [self._as_owner(active), *copies]
        return sorted(targets, key=lambda target: self._reports.why_suspect(target.url) is not None)

    def _as_owner(self, url: str) -> Target:
        # That this instance is the owner it knows by itself; what the group said of it before is worth a copy.
        return Target(url, Role.STANDBY if url == self._local.url else Role.ACTIVE)

    def _active(self, store: StateStore, partition: int) -> str | None:
        if self._local.owns(store, partition):
            return self._local.url
        view = self._local.membership.view
        owner = view.owners.get(self._local.place(store, partition)) if view else None
        return owner.url if owner else None

    def _copies(self, store: StateStore, partition: int, active: str | None) -> list[str]:
        """Positions are compared, not lags: each instance's idea of the end is of another moment."""
        found = []
        for url in self.peers:
            report = self._reports.of(url)
            held = report.copies.get((store.definition.name, partition)) if report else None
            if held and held.restored:
                found.append((-held.position, url))
        own = store.tasks.get(partition)
        if own and own.progress.restored:
            found.append((-own.progress.position, self._local.url))
        return [url for _, url in sorted(found) if url != active]
