"""Finds the instances that hold a store partition. It uses the view of the group and the reports of the peers."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from api.routing.problems import Rebalancing
from services.clock import boot_seconds
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.reports import InstanceReport, PeerReports
from services.state_stores.assignment import Role
from services.state_stores.store import StateStore

_REDISCOVERY_SECONDS = 1.0
_REDISCOVERY_STEP_SECONDS = 0.02


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
    """An instance to send a request to, and the expected role of its copy."""

    url: str
    role: Role


class Locator:
    """Finds instances without I/O. Other threads update the membership and the reports."""

    def __init__(self, local: LocalInstance, reports: PeerReports) -> None:
        self._local = local
        self._reports = reports

    @property
    def peers(self) -> frozenset[str]:
        """The URLs of the other instances in the group. Requests are sent to no other address."""
        view = self._local.membership.view
        return view.urls - {self._local.url} if view else frozenset()

    def instances(self) -> list[tuple[str, InstanceReport | None]]:
        """All instances of the group with their newest reports, ordered by URL. This instance is one of them."""
        own = self._local.url
        others = [(url, self._reports.of(url)) for url in self.peers]
        return sorted([(own, self._local.report()), *others], key=lambda each: each[0])

    def why_suspect(self, url: str) -> str | None:
        """Why an instance is a suspect: a request to it has failed since its last report. None: it is no suspect."""
        return self._reports.why_suspect(url)

    def owner(self, store: StateStore, partition: int) -> str | None:
        """The URL of the owner; None while no owner is known. Each instance owns all partitions of a global store."""
        if self._local.owns(store, partition):
            return self._local.url
        view = self._local.membership.view
        owner = view.owners.get(self._local.group_partition(store, partition)) if view else None
        return owner.url if owner else None

    def of_key(self, store: StateStore, key: bytes) -> KeyQueryMetadata:
        """Where a key is, whether or not it exists. Raises Rebalancing while no owner is known."""
        name, partition = store.definition.name, store.partition_of(key)
        owner = self.owner(store, partition)
        if owner is None:
            raise Rebalancing(partition=partition)
        standbys = () if store.definition.is_global else tuple(self._copies(store, partition, owner))
        return KeyQueryMetadata(name, partition, owner, standbys)

    def targets(self, store: StateStore, partition: int) -> list[Target]:
        """The instances to ask: first the owner, then the standbys by position, and last all suspects."""
        if store.definition.is_global:
            return [Target(self._local.url, Role.ACTIVE)]
        owner = self.owner(store, partition)
        targets = [Target(url, Role.STANDBY) for url in self._copies(store, partition, owner)]
        if owner is not None:
            # A view of the group may be old. It does not prove that this instance is the owner.
            targets.insert(0, Target(owner, Role.STANDBY if owner == self._local.url else Role.ACTIVE))
        return sorted(targets, key=lambda target: self._reports.why_suspect(target.url) is not None)

    def next_target(self, store: StateStore, partition: int, tried: Collection[str]) -> Target | None:
        """The next instance to ask after those that were tried; None if no instance is left.

        After the known copies come the other peers. They may have a copy that is newer than their last report.
        """
        others = (Target(url, Role.STANDBY) for url in sorted(self.peers))
        targets = (*self.targets(store, partition), *others)
        return next((each for each in targets if each.url not in tried), None)

    async def rediscover(self, deadline: float) -> None:
        """Ask the coordinator for the owners. Wait for its response until the deadline (``time.monotonic``).

        The response to an earlier request is not enough, because it can name the former owner.
        """
        membership, asked_at = self._local.membership, boot_seconds()
        membership.refresh()
        deadline = min(deadline, time.monotonic() + _REDISCOVERY_SECONDS)
        while (view := membership.view) is None or view.asked_at < asked_at:
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_REDISCOVERY_STEP_SECONDS)

    def _copies(self, store: StateStore, partition: int, owner: str | None) -> list[str]:
        """The URLs of the restored copies, except that of the owner. The highest position comes first.

        Lags cannot be compared, because the instances read the end offsets at different times.
        """
        found = []
        for url in self.peers:
            report = self._reports.of(url)
            copy = report.copies.get((store.definition.name, partition)) if report else None
            if copy and copy.restored:
                found.append((-copy.position, url))
        own = store.tasks.get(partition)
        if own and own.serving:
            found.append((-own.progress.position, self._local.url))
        return [url for _, url in sorted(found) if url != owner]
