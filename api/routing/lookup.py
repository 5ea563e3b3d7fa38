"""The way of a request for one key, all of it: here if its partition is here, else one hop to whoever has it.

owner here ──► the local copy, active
forwarded  ──► the local copy, as what the sender asks for, and nowhere else
otherwise  ──► the owner; if the partition has moved from it, whoever the group says now, once;
               if it does not answer, the standbys, nearest to the end first; each answer as it comes
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
from fastapi import Request, Response

from api.http import headers, problems
from api.http.metrics import Metrics
from api.routing.peer_client import Forwarder, PeerError, PeerTimeoutError
from services.interactive_queries.local import ReplicaStatus
from services.interactive_queries.metadata import Cluster, Target
from services.state_stores.assignment import Role
from services.state_stores.contract import StoreClosedError
from services.state_stores.definition import ANY_VERSION, ReadConsistency, VersionedValue
from services.state_stores.store import NotServingError, StateStore

# Beyond what the caller itself wants to wait: for an owner that hangs, one standby, and the way between them.
_PATIENCE_SECONDS = 5.0
# An owner that is alive answers in milliseconds; after this the next copy is asked.
_ATTEMPT_SECONDS = 1.0
# Who has waited until the deadline answers too late.
_ANSWER_SECONDS = 0.5
_REDISCOVERY_SECONDS = 1.0
_REDISCOVERY_STEP_SECONDS = 0.02


@dataclass(slots=True)
class KeyQuery:
    """What is asked.

    Attributes:
        render: an entry, or None where there is none, to its answer.
        awaited: what the entry must show.
        wait_seconds: how long to wait for it.
        max_lag: records that the answering copy may lag behind, if it is not active; None: any number.
        partition: of the key.
    """

    store: StateStore
    key: bytes
    render: Callable[[VersionedValue | None], Response]
    awaited: ReadConsistency = ANY_VERSION
    wait_seconds: float = 0.0
    max_lag: int | None = None
    partition: int = field(init=False)

    def __post_init__(self) -> None:
        self.partition = self.store.partition_of(self.key)


class _Clock:
    """The time that a request has; reckoned when it is asked for, as most are answered before."""

    __slots__ = ("_query", "_request", "_started")

    def __init__(self, query: KeyQuery, request: Request | None = None) -> None:
        self._query = query
        self._request = request
        self._started = time.monotonic()

    @property
    def left(self) -> float:
        seconds = self._query.wait_seconds + _PATIENCE_SECONDS
        if self._request:
            seconds = min(seconds, deadline_of(self._request))
        return max(0.0, self._started + seconds - time.monotonic())


_Found = tuple[ReplicaStatus, VersionedValue | None]
"""How a copy stood, and what was then read."""


class KeyQueries:
    """Answers key queries."""

    def __init__(self, cluster: Cluster, forwarder: Forwarder, metrics: Metrics) -> None:
        self._local = cluster.local
        self._metadata = cluster.metadata
        self._reports = cluster.reports
        self._forwarder = forwarder
        self._metrics = metrics

    def store(self, name: str) -> StateStore:
        return self._local.stores.by_name[name]

    async def answer(self, request: Request, query: KeyQuery) -> Response:
        """The answer, ours or another instance's; raises Problem."""
        if asked_as := headers.received(request, headers.FORWARDED_TO):
            return await self._as_asked(query, asked_as, _Clock(query, request))
        clock = None
        if self._local.owns(query.store, query.partition):
            try:
                if query.awaited == ANY_VERSION:
                    return self._respond(query, *self._read(query))
                clock = _Clock(query, request)
                return await self._here(query, clock, as_owner=True)
            except problems.Problem as problem:
                if not problem.another_may_answer:
                    raise
        return await self._elsewhere(request, query, clock or _Clock(query, request))

    async def answer_here(self, query: KeyQuery) -> Response:
        """The answer from the copy that is here, whoever owns the partition; raises Problem."""
        return await self._here(query, _Clock(query), as_owner=False)

    async def _as_asked(self, query: KeyQuery, asked_as: str, clock: _Clock) -> Response:
        """Answer another instance; never ask a third."""
        # One that is cut off from the group does not know better than the sender, and has at least a copy.
        as_owner = asked_as == Role.ACTIVE and self._local.membership.lease_holds
        return await self._here(query, clock, as_owner=as_owner)

    async def _here(self, query: KeyQuery, clock: _Clock, *, as_owner: bool) -> Response:
        """Answer from the local copy; as the owner only for as long as this instance is that."""
        found: list[_Found] = []

        def read() -> VersionedValue | None:
            if as_owner and not self._local.owns(query.store, query.partition):
                raise problems.NotTheOwner(query.partition)
            found[:] = [self._read(query)]
            return found[0][1]

        seconds = min(query.wait_seconds, max(0.0, clock.left - _ANSWER_SECONDS))
        await self._local.stores.waiters.wait(query.key, query.awaited, seconds, read)
        return self._respond(query, *found[0])

    def _read(self, query: KeyQuery) -> _Found:
        """Read the copy that is here, whoever owns the partition."""
        try:
            task = query.store.serving(query.partition)
            return self._local.status_of(query.store, task), task.get(query.key)
        except NotServingError as error:
            raise problems.not_serving(error) from error
        except StoreClosedError as error:
            raise problems.Stopping from error

    def _respond(self, query: KeyQuery, before: ReplicaStatus, entry: VersionedValue | None) -> Response:
        standing = self._local.confirm(query.store, before)
        sequence = entry.sequence if entry else 0
        own_headers = headers.freshness(self._local.url, standing, sequence)
        try:
            if not standing.is_within(query.max_lag):
                raise problems.TooStale(query.max_lag or 0, standing.lag if standing.lag_known else None)
            if not query.awaited.is_satisfied_by(entry):
                raise problems.SequenceNotReached(query.awaited.sequence, sequence)
            response = query.render(entry)
        except problems.Problem as problem:
            problem.headers = {**problem.headers, **headers.texts(own_headers)}
            raise
        response.raw_headers.extend(own_headers)
        if standing.stale:
            self._metrics.stale_answers.inc()
        return response

    async def _elsewhere(self, request: Request, query: KeyQuery, clock: _Clock) -> Response:
        """Try the owner, then the copies, until one answers."""
        attempts = _Attempts()
        response = await self._try_all(request, query, clock, attempts)
        if response is None and attempts.moved:
            await self._rediscover(clock)
            attempts.forget_answers()
            response = await self._try_all(request, query, clock, attempts)
        if response is not None:
            return response
        return attempts.outcome(query.partition)

    async def _try_all(
        self, request: Request, query: KeyQuery, clock: _Clock, attempts: "_Attempts"
    ) -> Response | None:
        targets = [
            each for each in self._metadata.targets(query.store, query.partition) if each.url not in attempts.failed
        ]
        for number, target in enumerate(targets):
            if clock.left <= 0:
                break
            is_last = number == len(targets) - 1
            patience = clock.left if is_last else min(clock.left, query.wait_seconds + _ATTEMPT_SECONDS)
            response = await self._try(request, query, target, clock, patience, attempts)
            if response is not None:
                return response
            if attempts.moved and not attempts.rediscovered:
                break
        return None

    async def _try(
        self,
        request: Request,
        query: KeyQuery,
        target: Target,
        clock: _Clock,
        patience: float,
        attempts: "_Attempts",
    ) -> Response | None:
        """One instance's answer; None, and a note of why, where another one may have a better one."""
        if target.url == self._local.url:
            try:
                return await self._here(query, clock, as_owner=False)
            except problems.Problem as problem:
                if not problem.another_may_answer:
                    raise
                attempts.note_refusal(problem.code, problem.response())
                return None
        try:
            response = await self._forwarder.forward(request, target, min(clock.left, patience), patience)
        except PeerError as error:
            self._reports.suspect(target.url, str(error))
            self._metrics.forwarded.labels("timeout" if isinstance(error, PeerTimeoutError) else "unreachable").inc()
            attempts.note_failure(target.url, error)
            return None
        kind = problem_of(response)
        if kind in problems.ANOTHER_MAY_ANSWER:
            self._metrics.forwarded.labels("refused").inc()
            attempts.note_refusal(kind, response)
            return None
        self._metrics.forwarded.labels("answered").inc()
        return response

    async def _rediscover(self, clock: _Clock) -> None:
        """Wait until the group has been asked anew; what is known by then has to do."""
        before = self._local.membership.view
        self._local.membership.refresh()
        limit = time.monotonic() + min(clock.left, _REDISCOVERY_SECONDS)
        while self._local.membership.view is before and time.monotonic() < limit:  # noqa: ASYNC110  # another thread's
            await asyncio.sleep(_REDISCOVERY_STEP_SECONDS)


class _Attempts:
    """What has been tried for a request, and in vain."""

    def __init__(self) -> None:
        self.failed: dict[str, PeerError] = {}
        self.moved = False
        self.rediscovered = False
        self._refusals: list[Response] = []

    def note_failure(self, url: str, error: PeerError) -> None:
        self.failed[url] = error

    def note_refusal(self, kind: str, response: Response) -> None:
        self.moved = self.moved or kind == problems.NotTheOwner.code
        if kind != problems.NotTheOwner.code:
            self._refusals.append(response)

    def forget_answers(self) -> None:
        """Ask again whoever has answered; not whoever has not."""
        self._refusals.clear()
        self.rediscovered = True

    def outcome(self, partition: int) -> Response:
        """What the caller is told: the first refusal, as that came from nearest to the owner, or else what failed."""
        if self._refusals:
            return self._refusals[0]
        if self.failed:
            timed_out = any(isinstance(error, PeerTimeoutError) for error in self.failed.values())
            return problems.owner_unreachable(partition, sorted(self.failed), timed_out=timed_out).response()
        return problems.Rebalancing(partition).response()


def deadline_of(request: Request) -> float:
    """Seconds that the sender has left by its own word; infinity if it does not say."""
    try:
        return max(0.0, float(headers.received(request, headers.DEADLINE) or "inf"))
    except ValueError:
        return float("inf")


def problem_of(response: Response) -> str | None:
    """The last part of a problem's type; None for an answer that is no problem."""
    if response.headers.get("content-type") != problems.MEDIA_TYPE:
        return None
    try:
        return str(orjson.loads(response.body)["type"]).removeprefix(problems.TYPE_PREFIX)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
