"""Forwards requests that only the owner of a key may serve.

The owner decides about a command: it reads the record of the command and then writes the next one. Two instances that
did so at the same time would both find no record. Therefore no standby may replace the owner.
"""

import time

from fastapi import Request

from api.http import headers, problems
from api.routing.locator import Locator
from api.routing.peer_client import PeerClient, PeerError, PeerRequest, PeerResponse, no_answer
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.metadata import Target
from services.state_stores.assignment import Role
from services.state_stores.store import NotServingError, StateStore


class OwnerOnly:
    """Forwards requests to the owner of a key."""

    def __init__(self, local: LocalInstance, locator: Locator, peers: PeerClient) -> None:
        self._local = local
        self._locator = locator
        self._peers = peers

    async def forward(self, request: Request, store: StateStore, key: bytes, seconds: float) -> PeerResponse | None:
        """Forward the request, unless this instance is the owner of the key and must serve it: then return None.

        Args:
            seconds: how long the owner may take.

        Raises:
            Problem: no owner can serve the request now.
        """
        partition = store.partition_of(key)
        if headers.FORWARDED_TO in request.headers:
            # Two instances that disagree about the owner would forward the request to each other for ever.
            self.require_ownership(store, partition)
            return None
        deadline = time.monotonic() + min(seconds, headers.seconds_left(request))
        peer_request = await PeerRequest.from_client(request)
        for may_rediscover in (True, False):
            owner = self._locator.owner_url(store, key)
            if owner == self._local.url:
                if self._local.owns(store, partition):
                    self.require_ownership(store, partition)
                    return None
            elif owner is not None:
                left = max(0.0, deadline - time.monotonic())
                try:
                    response = await self._peers.forward(peer_request, Target(owner, Role.ACTIVE), left, left)
                except PeerError as error:
                    raise no_answer(partition, {owner: error}) from error
                if response.problem_code != problems.NotTheOwner.code:
                    return response
            if may_rediscover:
                await self._locator.rediscover(deadline)
        raise problems.Rebalancing(partition)

    def require_ownership(self, store: StateStore, partition: int) -> None:
        """Raise Problem unless this instance is the only possible owner and has applied all records."""
        if not self._local.owns(store, partition):
            raise problems.NotTheOwner(partition)
        try:
            status = self._local.status(store, partition)
        except NotServingError as error:
            raise problems.from_store_error(error) from error
        if status.stale:
            raise problems.OwnerInDoubt(partition)
