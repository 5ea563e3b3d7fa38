"""Reads many partitions: each instance reads its own, and one instance merges the results.

partitions of this instance ──► read here
other partitions            ──► one request to each owner
partitions without a result ──► one request to the next instance that may have a copy, and so on
partitions without any copy ──► the result is partial
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson
import structlog
from fastapi import Request

from api.http.problems import Problem
from api.routing.locator import Locator, Target
from api.routing.peer_client import PeerClient
from api.routing.peer_messages import PeerError, PeerRequest, no_answer, seconds_left
from api.routing.problems import OwnerTimeout, Restoring, Starting, Stopping, TooStale
from services.interactive_queries.local import LocalInstance
from services.interactive_queries.local_queries import ServingPartitions, serving_partitions
from services.state_stores.contract import StoreClosedError, StoreCorruptError, StoreError
from services.state_stores.store import StateStore

log = structlog.get_logger(__name__)

# The time of the whole query.
_SECONDS = 5.0
# The time of one request to a peer. It is longer than for a lookup, because a page of 1,000 entries or a day of windows
# takes longer.
_ATTEMPT_SECONDS = 2.0

Members = dict[str, Any]
"""Members of a JSON body."""


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A query over several keys of a store.

    Attributes:
        partitions: the partitions that may contain the keys.
        read: reads the partitions that this instance holds.
        merge: merges the results of several instances, in any order.
    """

    store: StateStore
    partitions: Collection[int]
    read: Callable[[ServingPartitions], Members]
    merge: Callable[[Sequence[Members]], Members]


class _Result(NamedTuple):
    """The result of one instance.

    Attributes:
        members: the members of its JSON body.
        partitions: the partitions that it read, as JSON (see ``PartitionRead`` in ``api.schemas.stores``).
    """

    members: Members
    partitions: list[Members]


class ScatterGather:
    """Runs store queries."""

    def __init__(self, local: LocalInstance, locator: Locator, peers: PeerClient) -> None:
        self._local = local
        self._locator = locator
        self._peers = peers

    async def read_local(self, query: StoreQuery, partitions: Collection[int] | None, max_lag: int | None) -> Members:
        """The JSON body of the result from this instance alone.

        Args:
            partitions: read only these; None: all partitions of the query.

        Raises:
            Problem: this instance has nothing to read yet.
        """
        wanted = [number for number in query.partitions if partitions is None or number in partitions]
        result = await self._read(query, wanted, max_lag)
        if wanted and not result.partitions:
            self._require_restored(query.store, wanted)
        return _body(query, result.members, result.partitions, wanted)

    async def read_all(self, request: Request, query: StoreQuery, max_lag: int | None) -> Members:
        """The JSON body of the merged result of all instances. Raises Problem if no instance has a result."""
        deadline = time.monotonic() + min(_SECONDS, seconds_left(request))
        results: list[_Result] = []
        tried: defaultdict[int, set[str]] = defaultdict(set)
        failures: dict[str, PeerError] = {}
        pending = set(query.partitions)
        while pending and (timeout_seconds := min(deadline - time.monotonic(), _ATTEMPT_SECONDS)) > 0:
            plan = self._plan(query.store, pending, tried)
            if not plan:
                break
            requests = (
                self._ask(request, query, target, numbers, max_lag, timeout_seconds) for target, numbers in plan.items()
            )
            for target, result in zip(plan, await asyncio.gather(*requests), strict=True):
                if isinstance(result, PeerError):
                    failures[target.url] = result
                elif result and result.partitions:
                    results.append(result)
                    pending.difference_update(each["partition"] for each in result.partitions)
        if query.partitions and not results:
            if not tried:  # no time was left to ask anybody
                raise OwnerTimeout(partition=min(pending), tried=[])
            raise no_answer(min(pending), failures) if max_lag is None else TooStale(maxLag=max_lag, lag=None)
        read = sorted((each for result in results for each in result.partitions), key=lambda each: each["partition"])
        return _body(query, query.merge([result.members for result in results]), read, query.partitions)

    def _plan(
        self, store: StateStore, pending: Collection[int], tried: Mapping[int, set[str]]
    ) -> Mapping[Target, list[int]]:
        """The instances to ask next, each with its partitions. Adds the instances to ``tried``."""
        plan: defaultdict[Target, list[int]] = defaultdict(list)
        for number in sorted(pending):
            if target := self._locator.next_target(store, number, tried[number]):
                tried[number].add(target.url)
                plan[target].append(number)
        return plan

    async def _ask(
        self,
        request: Request,
        query: StoreQuery,
        target: Target,
        partitions: list[int],
        max_lag: int | None,
        timeout_seconds: float,
    ) -> _Result | PeerError | None:
        """The result of one instance; None if its response has no result."""
        try:
            if target.url == self._local.url:
                return await self._read(query, partitions, max_lag)
            peer_request = await PeerRequest.from_client(request, _local_path(request, partitions))
            response = await self._peers.forward(peer_request, target, timeout_seconds, timeout_seconds)
        except Problem:
            return None
        except PeerError as error:
            return error
        if response.status_code != HTTPStatus.OK:
            return None
        members = orjson.loads(response.content)
        if not {each["partition"] for each in members["partitions"]} <= set(partitions):
            # The result of another instance may have the same entries. They could not be told apart.
            log.warning("an instance sent partitions that were not requested; ignored its result", instance=target.url)
            return None
        return _Result(members, members["partitions"])

    async def _read(
        self, query: StoreQuery, partitions: Collection[int], max_lag: int | None, *, again: bool = True
    ) -> _Result:
        """Read those of the partitions that this instance serves. Raises Problem."""
        serving = serving_partitions(self._local, query.store, partitions, max_lag)
        try:
            # A long scan in a thread does not delay other requests.
            members = await asyncio.to_thread(query.read, serving)
        except StoreCorruptError:
            # The task has marked the damaged partition, so the next read skips it.
            return await self._read(query, partitions, max_lag)
        except StoreClosedError as error:
            if not again:
                raise Stopping from error
            # A rebalance has closed a partition during the read. The next read skips it.
            return await self._read(query, partitions, max_lag, again=False)
        except StoreError as error:
            raise Stopping from error
        statuses = [self._local.confirm(query.store, status) for status in serving.statuses]
        if late := next((each for each in statuses if not each.is_within(max_lag)), None):
            raise TooStale(maxLag=max_lag, lag=late.lag if late.lag_known else None)
        read = [
            {
                "partition": status.partition,
                "servedBy": self._local.url,
                "role": status.role.value,
                "position": status.position,
                "lag": status.lag,
                "stale": status.stale,
            }
            for status in statuses
        ]
        return _Result(members, read)

    def _require_restored(self, store: StateStore, missing: Collection[int]) -> None:
        """Raise Problem if this instance is still restoring one of the partitions, or has just started."""
        tasks = store.tasks
        for number in missing:
            if task := tasks.get(number):
                raise Restoring(partition=number, restoredShare=round(task.progress.restored_share, 4))
        if not self._local.stores.materialiser.restored:
            raise Starting(partition=min(missing))


def _local_path(request: Request, partitions: Collection[int]) -> bytes:
    """The path and query of the same request to one instance, for these partitions."""
    # The route has matched the decoded path.
    path = quote(request.scope["path"]).encode()
    start = path.index(b"/", len(b"/v1/stores/"))
    parameters = [request.scope["query_string"], *(b"partition=%d" % number for number in partitions)]
    return path[:start] + b"/local" + path[start:] + b"?" + b"&".join(filter(None, parameters))


def _body(query: StoreQuery, members: Members, partitions: list[Members], wanted: Collection[int]) -> Members:
    read = {each["partition"] for each in partitions}
    missing = [number for number in sorted(wanted) if number not in read]
    return {
        "store": query.store.definition.name,
        **members,
        "partial": bool(missing),
        "missingPartitions": missing,
        "partitions": partitions,
    }
