"""The way of a request that only the owner of a key may answer: here, or one hop away; no copy stands in.

What a command has come to is decided by looking at its record and then writing the next one, and two instances that
did so at once would both see nothing. The owner of the record's partition does it one after the other.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from api.http import headers, problems
from api.routing.lookup import deadline_of, problem_of
from api.routing.peer_client import Forwarder, PeerError, PeerTimeoutError
from services.interactive_queries.metadata import Cluster, MetadataNotAvailableError, Target
from services.state_stores.assignment import Role
from services.state_stores.store import NotServingError, StateStore

_REDISCOVERY_SECONDS = 1.0
_REDISCOVERY_STEP_SECONDS = 0.02


class OwnerRequests:
    """Hands requests to owners."""

    def __init__(self, cluster: Cluster, forwarder: Forwarder) -> None:
        self._local = cluster.local
        self._metadata = cluster.metadata
        self._reports = cluster.reports
        self._forwarder = forwarder

    async def answer(
        self, request: Request, store: StateStore, key: bytes, act: Callable[[], Awaitable[Response]], seconds: float
    ) -> Response:
        """What ``act`` answers on the instance that owns the key's partition; raises Problem.

        Args:
            seconds: that another instance may take.
        """
        partition = store.partition_of(key)
        if headers.FORWARDED_TO in request.headers:
            # Whoever sent it knows the owner; asked a third, two that know differently would play ball.
            self.require_ownership(store, partition)
            return await act()
        until = time.monotonic() + min(seconds, deadline_of(request))
        for is_last in (False, True):
            response = await self._once(request, store, key, act, until)
            if response is not None:
                return response
            if not is_last:
                await self._rediscover(until)
        raise problems.Rebalancing(partition)

    def require_ownership(self, store: StateStore, partition: int) -> None:
        """Raise Problem unless nobody else can own the partition now, and all of its records are here."""
        if not self._local.owns(store, partition):
            raise problems.NotTheOwner(partition)
        try:
            standing = self._local.status(store, partition)
        except NotServingError as error:
            raise problems.not_serving(error) from error
        if standing.stale:
            raise problems.OwnerInDoubt(partition)

    async def _once(
        self, request: Request, store: StateStore, key: bytes, act: Callable[[], Awaitable[Response]], until: float
    ) -> Response | None:
        """The owner's answer; None if nobody is known to be that, or whoever was is not any more."""
        partition = store.partition_of(key)
        try:
            owner = self._metadata.of_key(store, key).active
        except MetadataNotAvailableError:
            return None
        if owner == self._local.url:
            if not self._local.owns(store, partition):
                return None
            self.require_ownership(store, partition)
            return await act()
        left = max(0.0, until - time.monotonic())
        try:
            response = await self._forwarder.forward(request, Target(owner, Role.ACTIVE), left, left)
        except PeerError as error:
            self._reports.suspect(owner, str(error))
            timed_out = isinstance(error, PeerTimeoutError)
            raise problems.owner_unreachable(partition, [owner], timed_out=timed_out) from error
        return None if problem_of(response) == problems.NotTheOwner.code else response

    async def _rediscover(self, until: float) -> None:
        """Wait until the group has been asked anew; what is known by then has to do."""
        membership = self._local.membership
        before = membership.view
        membership.refresh()
        limit = min(until, time.monotonic() + _REDISCOVERY_SECONDS)
        while membership.view is before and time.monotonic() < limit:  # noqa: ASYNC110  # another thread's
            await asyncio.sleep(_REDISCOVERY_STEP_SECONDS)
