"""Finds the instances that can serve a partition."""

import asyncio
import time
from collections.abc import Collection

from services.interactive_queries.metadata import Cluster, MetadataNotAvailableError, Target
from services.state_stores.assignment import Role
from services.state_stores.store import StateStore

_REDISCOVERY_SECONDS = 1.0
_REDISCOVERY_STEP_SECONDS = 0.02


class Locator:
    """Knows what the group and the reports of the peers say about partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._metadata = cluster.metadata
        self._membership = cluster.local.membership

    def owner_url(self, store: StateStore, key: bytes) -> str | None:
        """The URL of the instance that owns the key; None if no owner is known."""
        try:
            return self._metadata.of_key(store, key).active
        except MetadataNotAvailableError:
            return None

    def copies(self, store: StateStore, partition: int) -> list[Target]:
        """The instances that have a copy of the partition, the best one first."""
        return self._metadata.targets(store, partition)

    def next_candidate(self, store: StateStore, partition: int, tried: Collection[str]) -> Target | None:
        """The best instance to ask after those that were tried; None if no instance is left.

        All other peers follow the known copies, because a copy may be younger than the last report of its instance.
        """
        others = (Target(url, Role.STANDBY) for url in sorted(self._metadata.peers))
        candidates = (*self._metadata.targets(store, partition), *others)
        return next((each for each in candidates if each.url not in tried), None)

    async def rediscover(self, deadline: float) -> None:
        """Ask the group for its current owners and wait for the answer, at most until the deadline."""
        before = self._membership.view
        self._membership.refresh()
        deadline = min(deadline, time.monotonic() + _REDISCOVERY_SECONDS)
        while self._membership.view is before and time.monotonic() < deadline:  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(_REDISCOVERY_STEP_SECONDS)
