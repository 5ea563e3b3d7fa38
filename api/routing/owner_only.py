"""Forwards requests that only the owner of a key may serve. A standby never replaces the owner.

Before the owner sends a command, it reads the record of the command, and then writes one. If two instances did this at
the same time, both would find no record, and both would send the command.
"""

import time

from fastapi import Request

from api.routing.locator import Locator, Target
from api.routing.peer_client import PeerClient
from api.routing.peer_messages import PeerError, PeerRequest, PeerResponse, no_answer, role_in, seconds_left
from api.routing.problems import NotTheOwner, OwnerInDoubt, Rebalancing, from_store_error
from services.interactive_queries.local import LocalInstance
from services.state_stores.assignment import Role
from services.state_stores.contract import StoreError
from services.state_stores.definition import VersionedValue
from services.state_stores.store import NotServingError, StateStore

# A live owner needs up to a second to write to Kafka. So a shorter wait without a response proves nothing.
_SUSPECT_AFTER_SECONDS = 2.0


class OwnerOnly:
    """Forwards requests to the owner of a key."""

    def __init__(self, local: LocalInstance, locator: Locator, peers: PeerClient) -> None:
        self._local = local
        self._locator = locator
        self._peers = peers

    async def forward(self, request: Request, store: StateStore, key: bytes, seconds: float) -> PeerResponse | None:
        """Forward the request to the owner of the key. Return None if this instance is the owner and must serve it.

        Args:
            seconds: how long the owner may take.

        Raises:
            Problem: no owner can serve the request now.
        """
        partition = store.partition_of(key)
        if self._must_serve(request, store, partition):
            return None
        deadline = time.monotonic() + min(seconds, seconds_left(request))
        response = await self._forward_to_owner(request, store, partition, deadline)
        if response is None:
            await self._locator.rediscover(deadline)
            if self._must_serve(request, store, partition):
                return None
            response = await self._forward_to_owner(request, store, partition, deadline)
        if response is None:
            raise Rebalancing(partition=partition)
        return response

    def owns(self, store: StateStore, partition: int) -> bool:
        """Whether this instance owns the partition, also while it restores its copy."""
        return self._local.owns(store, partition)

    def require_ownership(self, request: Request, store: StateStore, partition: int) -> None:
        """Raise Problem unless this instance is the only possible owner and has applied all records."""
        if not self._local.owns(store, partition):
            # Only a peer can find the owner again. A client repeats its request.
            raise (NotTheOwner if role_in(request) else Rebalancing)(partition=partition)
        try:
            status = self._local.status_of(store, store.serving(partition))
        except NotServingError as error:
            raise from_store_error(error, partition) from error
        if status.stale:
            raise OwnerInDoubt(partition=partition)

    def get(self, store: StateStore, key: bytes) -> VersionedValue | None:
        """The entry of the local copy now. Raises Problem."""
        partition = store.partition_of(key)
        try:
            return store.serving(partition).get(key)
        except (NotServingError, StoreError) as error:
            raise from_store_error(error, partition) from error

    def _must_serve(self, request: Request, store: StateStore, partition: int) -> bool:
        # Never forward a request twice. Two instances that disagree about the owner would forward it for ever.
        if role_in(request) or self._local.owns(store, partition):
            self.require_ownership(request, store, partition)
            return True
        return False

    async def _forward_to_owner(
        self, request: Request, store: StateStore, partition: int, deadline: float
    ) -> PeerResponse | None:
        """The response of the owner; None if no owner is known, or if it does not own the partition any more."""
        owner = self._locator.owner(store, partition)
        if owner in (None, self._local.url):
            return None
        try:
            if self._locator.why_suspect(owner):
                # A live owner sends its report within milliseconds. A dead one must not use up the client's time.
                await self._peers.report(owner)
            left = max(0.0, deadline - time.monotonic())
            sent = await PeerRequest.from_client(request)
            response = await self._peers.forward(sent, Target(owner, Role.ACTIVE), left, left, _SUSPECT_AFTER_SECONDS)
        except PeerError as error:
            raise no_answer(partition, {owner: error}) from error
        return None if response.problem_code == NotTheOwner.code else response
