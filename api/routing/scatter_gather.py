"""The way of a question about several keys: to every instance that has a part of the answer, and back as one.

partitions that are here ──► read here
the others               ──► one request to each owner, for its partitions
what an owner has not    ──► its next best copy, and so on; what nobody has makes the answer partial
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import orjson
import structlog
from fastapi import Request, Response

from api.http import pagination, problems
from api.routing.lookup import deadline_of
from api.routing.peer_client import Forwarder, PeerError, PeerTimeoutError
from api.routing.store_queries import Members, StoreQuery
from services.interactive_queries.local_queries import ServingPartitions, serving_partitions
from services.interactive_queries.metadata import Cluster, Target
from services.state_stores.assignment import Role
from services.state_stores.contract import StoreClosedError
from services.state_stores.store import StateStore

log = structlog.get_logger(__name__)

# Beyond a look-up's: a page of 1,000 entries, or a day of windows, is work.
_SECONDS = 5.0
_ATTEMPT_SECONDS = 2.0


class _Part(NamedTuple):
    """What one instance has said.

    Attributes:
        partitions: those that it has read, as ``queries.PartitionRead``.
    """

    members: Members
    partitions: list[dict[str, Any]]


class StoreQueries:
    """Answers questions about several keys."""

    def __init__(self, cluster: Cluster, forwarder: Forwarder) -> None:
        self._local = cluster.local
        self._metadata = cluster.metadata
        self._reports = cluster.reports
        self._forwarder = forwarder

    async def here(self, query: StoreQuery, partitions: Collection[int] | None, max_lag: int | None) -> Response:
        """Answer from this instance alone, from the copies it has of the partitions (None: of all that are wanted).

        Raises Problem where it has nothing to read, if that will change by itself.
        """
        wanted = [number for number in query.wanted if partitions is None or number in partitions]
        share = serving_partitions(self._local, query.store, wanted, max_lag)
        if share.missing and not share.tasks:
            self._raise_if_early(query.store, share.missing)
        try:
            part = await self._read(query, share, max_lag)
        except StoreClosedError as error:
            raise problems.Stopping from error
        return _answer(query, part.members, part.partitions, wanted)

    async def everywhere(self, request: Request, query: StoreQuery, max_lag: int | None) -> Response:
        """Answer from all instances; raises Problem where none has anything."""
        deadline = time.monotonic() + min(_SECONDS, deadline_of(request))
        parts: list[_Part] = []
        tried: defaultdict[int, set[str]] = defaultdict(set)
        failures: dict[str, PeerError] = {}
        pending = set(query.wanted)
        while pending and time.monotonic() < deadline:
            plan = self._plan(query.store, pending, tried)
            if not plan:
                break
            patience = min(deadline - time.monotonic(), _ATTEMPT_SECONDS)
            asked = (self._ask(request, query, target, numbers, max_lag, patience) for target, numbers in plan.items())
            for target, found in zip(plan, await asyncio.gather(*asked), strict=True):
                if isinstance(found, PeerError):
                    failures[target.url] = found
                    self._reports.suspect(target.url, str(found))
                elif found and found.partitions:
                    parts.append(found)
                    pending.difference_update(each["partition"] for each in found.partitions)
        if query.wanted and not parts:
            raise _problem(min(pending), failures, max_lag)
        partitions = sorted((each for part in parts for each in part.partitions), key=lambda each: each["partition"])
        return _answer(query, query.merge([part.members for part in parts]), partitions, query.wanted)

    def _plan(
        self, store: StateStore, pending: Collection[int], tried: Mapping[int, set[str]]
    ) -> Mapping[Target, list[int]]:
        """Whom to ask next, and for which partitions; notes them as tried."""
        plan: defaultdict[Target, list[int]] = defaultdict(list)
        for number in sorted(pending):
            # After those that are known to have it, the rest: a copy may be younger than its holder's last report.
            others = (Target(url, Role.STANDBY) for url in sorted(self._metadata.peers))
            targets = (*self._metadata.targets(store, number), *others)
            if target := next((each for each in targets if each.url not in tried[number]), None):
                tried[number].add(target.url)
                plan[target].append(number)
        return plan

    async def _ask(
        self,
        request: Request,
        query: StoreQuery,
        target: Target,
        numbers: list[int],
        max_lag: int | None,
        patience: float,
    ) -> _Part | PeerError | None:
        """What an instance has of these partitions; None where it answers, and has nothing."""
        try:
            if target.url == self._local.url:
                return await self._read(query, serving_partitions(self._local, query.store, numbers, max_lag), max_lag)
            path = _local_path(request, numbers)
            answer = await self._forwarder.forward(request, target, patience, patience, path=path)
        except (StoreClosedError, problems.Problem):
            return None
        except PeerError as error:
            return error
        if answer.status_code != HTTPStatus.OK:
            return None
        found = orjson.loads(answer.body)
        if not {each["partition"] for each in found["partitions"]} <= set(numbers):
            # Its entries cannot be told apart, and another instance may be giving the same ones.
            log.warning("an instance answered for partitions it was not asked for", instance=target.url)
            return None
        return _Part(found, found["partitions"])

    async def _read(self, query: StoreQuery, share: ServingPartitions, max_lag: int | None) -> _Part:
        # Beside the event loop: a long scan keeps nobody else waiting.
        members = await asyncio.to_thread(query.read, share)
        standings = [self._local.confirm(query.store, standing) for standing in share.statuses]
        if late := next((each for each in standings if not each.is_within(max_lag)), None):
            raise problems.TooStale(max_lag or 0, late.lag if late.lag_known else None)
        partitions = [
            {
                "partition": standing.partition,
                "servedBy": self._local.url,
                "role": standing.role.value,
                "position": standing.position,
                "lag": standing.lag,
                "stale": standing.stale,
            }
            for standing in standings
        ]
        return _Part(members, partitions)

    def _raise_if_early(self, store: StateStore, missing: Collection[int]) -> None:
        held = store.tasks
        for number in missing:
            if task := held.get(number):
                raise problems.Restoring(number, task.progress.restored_share)
        if not self._local.stores.materialiser.restored:
            raise problems.Starting(min(missing))


def _local_path(request: Request, numbers: Collection[int]) -> bytes:
    """The path and query under which another instance answers for these partitions, whatever the caller named."""
    path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    start = len(b"/v1/stores/") + path[len(b"/v1/stores/") :].index(b"/")
    chosen = "&".join(f"partition={number}" for number in numbers).encode()
    asked: list[bytes] = request.scope["query_string"].split(b"&")
    kept = [part for part in asked if part and unquote_plus(part.partition(b"=")[0].decode("latin-1")) != "partition"]
    parameters = b"&".join([*kept, chosen])
    return path[:start] + b"/local" + path[start:] + b"?" + parameters


def _answer(query: StoreQuery, members: Members, partitions: list[dict[str, Any]], wanted: Collection[int]) -> Response:
    read = {each["partition"] for each in partitions}
    missing = [number for number in sorted(wanted) if number not in read]
    return pagination.json_response(
        {
            "store": query.store.definition.name,
            **members,
            "partial": bool(missing),
            "missingPartitions": missing,
            "partitions": partitions,
        }
    )


def _problem(partition: int, failures: Mapping[str, PeerError], max_lag: int | None) -> problems.Problem:
    if max_lag is not None:
        return problems.TooStale(max_lag, None)
    if failures:
        timed_out = any(isinstance(error, PeerTimeoutError) for error in failures.values())
        return problems.owner_unreachable(partition, list(failures), timed_out=timed_out)
    return problems.Rebalancing(partition)
