"""Reads one key from the instance that can serve it.

This instance owns the key   ──► read the local copy
A peer forwarded the request ──► read the local copy and never forward again
Another instance owns it     ──► forward to the owner; ask the group once more if the owner has changed;
                                 forward to the standbys if the owner does not respond
"""

import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import orjson
from fastapi import Request

from api.http.metrics import Metrics
from api.http.parameters import LONGEST_TIMEOUT_SECONDS
from api.http.problems import OtherProblem, Problem
from api.http.responses import STALE, LocalRead
from api.routing.locator import Locator, Target
from api.routing.peer_client import PeerClient
from api.routing.peer_messages import (
    PeerError,
    PeerRequest,
    PeerResponse,
    no_answer,
    role_in,
    seconds_left,
)
from api.routing.problems import (
    ANOTHER_MAY_ANSWER,
    NotTheOwner,
    OwnerTimeout,
    Rebalancing,
    SequenceNotReached,
    TooStale,
    from_store_error,
)
from services.clock import boot_seconds, now
from services.interactive_queries.local import LocalInstance
from services.state_stores.assignment import Role
from services.state_stores.contract import StoreError
from services.state_stores.definition import ANY_VERSION, ReadConsistency
from services.state_stores.store import NotServingError, StateStore

# The time for an owner that does not respond, for a standby after it, and for the network.
_FORWARDING_SECONDS = 5.0
# A live owner responds within milliseconds. After this time the lookup tries the next copy.
_ATTEMPT_SECONDS = 1.0
# Reserves time to send the response before the deadline.
_RESPONSE_SECONDS = 0.5
# The changelog of balances shows a new account within this time after the decision of a command.
_NEW_ACCOUNT_MILLISECONDS = 60_000


@dataclass(slots=True)
class KeyRead:
    """What to read.

    Attributes:
        consistency: the version that the caller requires.
        wait_seconds: how long to wait for this version.
        max_lag: how many records a standby may lag behind; None: any number.
        request: the request of the client, which is forwarded unchanged; None for a read of this instance itself.
    """

    store: StateStore
    key: bytes
    consistency: ReadConsistency = ANY_VERSION
    wait_seconds: float = 0.0
    max_lag: int | None = None
    request: Request | None = None
    partition: int = field(init=False)
    _deadline: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.partition = self.store.partition_of(self.key)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the response."""
        now = time.monotonic()
        if self._deadline is None:  # Computed at the first use, because most reads are served at once.
            seconds = self.wait_seconds + _FORWARDING_SECONDS
            self._deadline = now + (min(seconds, seconds_left(self.request)) if self.request else seconds)
        return max(0.0, self._deadline - now)

    async def to_peer_request(self) -> PeerRequest:
        """The request that reads the same key from a peer."""
        if self.request:
            return await PeerRequest.from_client(self.request)
        parameters = {
            "minSequence": self.consistency.sequence,
            "openedTime": self.consistency.opened_time,
            "erased": str(self.consistency.erased).lower(),
            "timeout": f"{self.wait_seconds:.3f}",
        }
        path = f"/v1/stores/{self.store.definition.name}/keys/{quote(self.key, safe='')}?{urlencode(parameters)}"
        return PeerRequest("GET", path.encode())


class KeyValue(NamedTuple):
    """The JSON value of a key, for this instance itself.

    Attributes:
        value: None if the key does not exist.
        stale: whether another instance may have newer data. If so, the key may exist although ``value`` is None.
    """

    value: dict[str, Any] | None
    stale: bool


class Lookup:
    """Reads single keys."""

    def __init__(self, local: LocalInstance, locator: Locator, peers: PeerClient, metrics: Metrics) -> None:
        self._local = local
        self._locator = locator
        self._peers = peers
        self._metrics = metrics

    async def value_of(
        self, store: str, key: str, consistency: ReadConsistency = ANY_VERSION, wait_seconds: float = 0.0
    ) -> KeyValue:
        """Read the JSON value of a key for this instance itself.

        Raises Problem if no instance has the required version within the time.
        """
        wait_seconds = min(max(0.0, wait_seconds), LONGEST_TIMEOUT_SECONDS)
        found = await self.query(KeyRead(self._local.stores.by_name[store], key.encode(), consistency, wait_seconds))
        if isinstance(found, LocalRead):
            return KeyValue(orjson.loads(found.value.body) if found.value else None, found.status.stale)
        stale = found.headers.get(STALE.lower()) == "true"
        if found.status_code == HTTPStatus.OK:
            return KeyValue(orjson.loads(found.content)["value"], stale)
        if found.status_code == HTTPStatus.NOT_FOUND:
            return KeyValue(None, stale)
        raise OtherProblem.from_response(found.content, found.headers.get("retry-after"))

    async def known_value_of(self, store: str, key: str) -> KeyValue:
        """Read the JSON value of a key for this instance itself. Raises Problem if no instance knows whether it exists.

        A standby may lag, so a key that it does not have may exist.
        """
        found = await self.value_of(store, key)
        if found.value is None and found.stale:
            raise Rebalancing(partition=self._local.stores.by_name[store].partition_of(key.encode()))
        return found

    async def query(self, read: KeyRead) -> LocalRead | PeerResponse:
        """Read the key from the instance that can serve it. Raises Problem."""
        if read.request and (role := role_in(read.request)):
            return await self.query_for_peer(read, role)
        if self._local.owns(read.store, read.partition):
            try:
                return await self.query_local(read, as_owner=True)
            except Problem as problem:
                if problem.code not in ANOTHER_MAY_ANSWER:
                    raise
        return await self._forward(read)

    async def query_for_peer(self, read: KeyRead, role: str) -> LocalRead:
        """Read the local copy for a peer, in the role that the peer expects. Raises Problem."""
        # Without a lease, this instance does not know the owner better than the peer. But it may have a copy.
        as_owner = role == Role.ACTIVE and self._local.membership.lease_holds
        if as_owner and not self._local.owns(read.store, read.partition):
            raise NotTheOwner(partition=read.partition)
        return await self.query_local(read, as_owner=as_owner)

    async def query_local(self, read: KeyRead, *, as_owner: bool = False) -> LocalRead:
        """Read the local copy. Wait until it has the required version.

        Args:
            as_owner: stop waiting when this instance loses the partition.

        Raises:
            Problem: this instance cannot serve the read, or the time is over.
        """
        if read.consistency == ANY_VERSION:
            return self._require_consistency(read, self._get(read), is_enough=True)
        started = boot_seconds()

        def is_enough(found: LocalRead) -> bool:
            return read.consistency.is_satisfied_by(found.value) or _is_erased(read, found, started)

        def read_again() -> LocalRead:
            if as_owner and not self._local.owns(read.store, read.partition):
                raise NotTheOwner(partition=read.partition)
            return self._get(read)

        seconds = min(read.wait_seconds, max(0.0, read.seconds_left - _RESPONSE_SECONDS))
        found = await self._local.stores.waiters.wait(read.key, read_again, is_enough, seconds)
        return self._require_consistency(read, found, is_enough=is_enough(found))

    def _get(self, read: KeyRead) -> LocalRead:
        """The entry of the local copy now. Raises Problem."""
        try:
            task = read.store.serving(read.partition)
            # Get the status before the value. So the status is never newer than the value.
            status, value = self._local.status_of(read.store, task), task.get(read.key)
        except (NotServingError, StoreError) as error:
            raise from_store_error(error, read.partition) from error
        return LocalRead(value, self._local.confirm(read.store, status), self._local.url)

    def _require_consistency(self, read: KeyRead, found: LocalRead, *, is_enough: bool) -> LocalRead:
        """Return what was found. Raise Problem if the copy lags too much, or if its version is not enough."""
        status, required = found.status, read.consistency
        if not status.is_within(read.max_lag):
            problem = TooStale(maxLag=read.max_lag, lag=status.lag if status.lag_known else None)
            raise found.with_freshness(problem)
        if not is_enough:
            reached = SequenceNotReached(minSequence=required.sequence, currentSequence=found.sequence)
            raise found.with_freshness(reached)
        if status.stale and found.value:
            self._metrics.stale_answers.inc()
        return found

    async def _forward(self, read: KeyRead) -> LocalRead | PeerResponse:
        """Ask the owner and then the standbys until one of them answers. Raises Problem if none does."""
        failures: dict[str, PeerError] = {}
        try:
            return await self._ask_copies(read, failures, is_rediscovered=False)
        except _OwnerChangedError:
            await self._locator.rediscover(time.monotonic() + read.seconds_left)
            return await self._ask_copies(read, failures, is_rediscovered=True)

    async def _ask_copies(
        self, read: KeyRead, failures: dict[str, PeerError], *, is_rediscovered: bool
    ) -> LocalRead | PeerResponse:
        """Ask the instances that have a copy, except those that have failed before."""
        refusals: list[PeerResponse] = []
        targets = [each for each in self._locator.targets(read.store, read.partition) if each.url not in failures]
        for target in targets:
            if not (left := read.seconds_left):
                break
            # The last instance may use all the time that is left, unless it is a suspect.
            is_last = target is targets[-1] and not self._locator.why_suspect(target.url)
            timeout_seconds = left if is_last else min(left, read.wait_seconds + _ATTEMPT_SECONDS)
            try:
                found = await self._ask(read, target, timeout_seconds)
            except PeerError as error:
                failures[target.url] = error
                continue
            if isinstance(found, LocalRead) or found.problem_code not in ANOTHER_MAY_ANSWER:
                return found
            if found.problem_code != NotTheOwner.code:
                refusals.append(found)
            elif not is_rediscovered:
                raise _OwnerChangedError
        if refusals:
            return refusals[0]  # The refusals have the order of ``targets``, so the first one is the best.
        if not failures and not read.seconds_left:
            raise OwnerTimeout(partition=read.partition, tried=[])
        raise no_answer(read.partition, dict(sorted(failures.items())))

    async def _ask(self, read: KeyRead, target: Target, timeout_seconds: float) -> LocalRead | PeerResponse:
        if target.url == self._local.url:
            try:
                return await self.query_local(read)
            except Problem as problem:
                return PeerResponse.from_problem(problem)
        try:
            response = await self._peers.forward(
                await read.to_peer_request(), target, read.seconds_left, timeout_seconds
            )
        except PeerError as error:
            self._metrics.forwarded.labels(error.outcome).inc()
            raise
        is_refused = response.problem_code in ANOTHER_MAY_ANSWER
        self._metrics.forwarded.labels("refused" if is_refused else "answered").inc()
        return response


def _is_erased(read: KeyRead, found: LocalRead, started: float) -> bool:
    """Whether the account that the caller has seen is erased.

    It is, if the owner has applied every record from before the read and has no entry. This does not hold for a new
    account, because the decision of a command can show it before the changelog of balances does.
    """
    opened_time = read.consistency.opened_time
    is_old = 0 < opened_time < now() - _NEW_ACCOUNT_MILLISECONDS
    return is_old and found.value is None and found.status.has_all_before(started)


class _OwnerChangedError(Exception):
    """The instance that the group named as the owner does not own the partition any more."""
