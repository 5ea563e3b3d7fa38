"""Executes each command exactly once, on the instance that owns the record of the command.

claim     ──► a repeated request gets the known decision; another request with the same key is refused
mark      ──► a record says that the command was submitted
send      ──► the loyalty query receives the command
decide    ──► the decision arrives through the store ``decisions``
visible   ──► the balance shows the decision; only then the client gets it
"""

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import structlog
from cachetools import TTLCache
from fastapi import Request

from api.commands.decisions import (
    FORWARDING_SECONDS,
    GRACE_SECONDS,
    Decided,
    Decision,
    Decisions,
    location_of,
    wait_seconds,
)
from api.commands.preconditions import Preconditions
from api.commands.problems import (
    CommandErased,
    CommandInFlight,
    CommandNotVisible,
    IdempotencyKeyReused,
    KafkaUnavailable,
    TooManyCommands,
)
from api.http.problems import Problem
from api.routing.lookup import Lookup
from api.routing.owner_only import OwnerOnly
from api.routing.peer_messages import PeerResponse
from api.security.permissions import caller_of
from services.clock import now
from services.codecs.events import command_record
from services.codecs.records import DECISION_SEQUENCE, ERASED, MARK_SEQUENCE, PENDING, mark_of
from services.commands.identity import keyed_hash, possible_hashes
from services.commands.log import CommandLog
from services.domain.events import Command
from services.messaging.avro import Record
from services.messaging.publishing import PublishError
from services.state_stores import catalogue
from services.state_stores.definition import ReadConsistency, VersionedValue
from services.state_stores.materialiser import LocalStores

log = structlog.get_logger(__name__)

SEND_AGAIN_SECONDS = 30
"""An instance sends an undecided command again at most once in this time, for example while no loyalty query runs."""

MOST_IN_FLIGHT = 256
"""The most commands that an instance executes at the same time."""

_MOST_OF_A_CALLER = MOST_IN_FLIGHT * 3 // 4
"""The most of them that one caller has. Each instance counts only the requests that it gets from the caller itself. So
without this limit, the requests that other instances forward could take all places of an owner.
"""

_RESTORE_PAUSE_SECONDS = 1.0
"""How long a claim waits before it looks again at a copy that is restored."""

_CLOSE_SECONDS = 10.0
"""How long ``close`` waits for the publications. Kubernetes ends a process after 30 seconds. The requests need five of
them, and the audit records another five.
"""


@dataclass(slots=True)
class _Claim:
    """A command that this instance executes now. Only one request at a time has the claim.

    Attributes:
        caller: the name of the caller; empty without credentials.
        is_marked: whether the mark of the command is in its topic.
        publication: the task that writes the mark and the command.
    """

    request_hash: str
    caller: str
    is_marked: bool = False
    publication: asyncio.Task[None] | None = None


class CommandService:
    """Submits commands.

    Attributes:
        decisions: finds the decisions of submitted commands.
        is_keyed: whether new records have the ``keyed_hash``. An instance of release 0.1 does not know this hash.
    """

    def __init__(
        self, stores: LocalStores, lookup: Lookup, owner_only: OwnerOnly, command_log: CommandLog, *, is_keyed: bool
    ) -> None:
        self._waiters = stores.waiters
        self._store = stores.by_name[catalogue.DECISIONS]
        self.decisions = Decisions(stores, lookup)
        self._preconditions = Preconditions(stores, lookup, self.decisions)
        self._owner_only = owner_only
        self._log = command_log
        self.is_keyed = is_keyed
        self._in_flight: dict[str, _Claim] = {}
        self._sent: TTLCache[str, bool] = TTLCache(math.inf, SEND_AGAIN_SECONDS)
        self._publications: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()

    async def submit(
        self, request: Request, command: Command, fields: Mapping[str, Any], card: str | None, seconds: float
    ) -> Decided | PeerResponse:
        """Submit a command, or find its decision if it was submitted before. Raises Problem.

        Args:
            request: the request. It is forwarded if another instance owns the record of the command.
            fields: the normalized body of the request.
            card: the customer. None: the customer of the redemption that the command ends.
            seconds: how long to wait for the decision, and for the balance to show it.
        """
        key = command.command_id.encode()
        if response := await self._owner_only.forward(request, self._store, key, seconds + FORWARDING_SECONDS):
            return response
        deadline = time.monotonic() + wait_seconds(request, seconds)
        idempotency_key = request.headers["idempotency-key"]
        if self.is_keyed:
            command = replace(command, request_hash=keyed_hash(command.request_hash, idempotency_key))
        hashes = possible_hashes(command.command_id, fields, idempotency_key)
        decision = self._known(command.command_id, hashes)
        if decision and decision["Status"] != PENDING:
            return await self.decisions.await_visibility(decision, deadline, card)
        claim = self._claim(command, caller_of(request).name, has_mark=decision is not None)
        try:
            card = card or await self._preconditions.card_of_redemption(request, command, deadline)
            if decision is None:  # A command with a mark has passed these checks.
                await self._preconditions.require_accounts(command, card, deadline)
            # The partition may have moved while this instance waited for another one. It may also have come back after
            # another owner executed the command.
            self._owner_only.require_ownership(request, self._store, self._store.partition_of(key))
            decision = self._known(command.command_id, hashes)
            if decision and decision["Status"] != PENDING:
                return await self.decisions.await_visibility(decision, deadline, card)
            claim.is_marked = decision is not None
            mark = mark_of(command.command_id, command.kind, command.request_hash)
            record = command_record(card, command, now())
            claim.publication = _start(self._publish(claim, mark, record), self._publications)
            try:
                async with asyncio.timeout(deadline + GRACE_SECONDS - time.monotonic()):
                    # The publication continues without this request, so that a mark never stays without its command.
                    await asyncio.shield(claim.publication)
            except TimeoutError as error:
                raise KafkaUnavailable from error
            decision = await self._await_decision(mark, deadline)
            return await self.decisions.await_visibility(decision, deadline, card)
        finally:
            if claim.publication and (claim.is_marked or not claim.publication.done()):
                _start(self._release(command.command_id, claim, claim.publication), self._releases)
            else:
                del self._in_flight[command.command_id]

    async def close(self) -> None:
        """Finish all publications, so that no mark stays without its command."""
        for task in self._releases:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*self._publications, return_exceptions=True)
        await asyncio.to_thread(self._log.close)

    def _claim(self, command: Command, caller: str, *, has_mark: bool) -> _Claim:
        """Reserve a command without a decision for this request. Raises CommandInFlight and TooManyCommands."""
        command_id = command.command_id
        # A mark does not prove that an earlier owner sent the command. The owner may have died after it wrote the mark.
        if command_id in self._in_flight or (has_mark and command_id in self._sent):
            # Most decisions take about a second. Before a copy has the mark, a read of Location would find no command.
            headers = {"Location": location_of(command_id)} if has_mark else {}
            raise CommandInFlight(retry_after=1, headers=headers)
        of_caller = sum(each.caller == caller for each in self._in_flight.values()) if caller else 0
        if len(self._in_flight) >= MOST_IN_FLIGHT or of_caller >= _MOST_OF_A_CALLER:
            raise TooManyCommands
        claim = self._in_flight[command_id] = _Claim(command.request_hash, caller)
        return claim

    def _known(self, command_id: str, hashes: AbstractSet[str]) -> Decision | None:
        """The decision or the mark of a command. ``hashes`` are the ``possible_hashes`` of the request.

        Raises IdempotencyKeyReused, CommandErased, and problems of the store.
        """
        entry = self._owner_only.get(self._store, command_id.encode())
        known: Decision | None = orjson.loads(entry.body) if entry else None
        claim = self._in_flight.get(command_id)
        known_hash = known["RequestHash"] if known else claim and claim.request_hash
        # The record of a command of an erased customer has no hash if release 0.1 decided the command.
        if known_hash and known_hash not in hashes:
            raise IdempotencyKeyReused
        if known and known["Status"] == ERASED:
            raise CommandErased
        return known

    async def _publish(self, claim: _Claim, mark: Record, command: Record) -> None:
        """Write the mark, unless the topic has it, and then the command. Raises KafkaUnavailable."""
        try:
            if not claim.is_marked:
                await self._log.mark(mark)
                claim.is_marked = True
            await self._log.send(command)
        except PublishError as error:
            # Kafka may have the command although it did not confirm it. The loyalty query drops a duplicate.
            log.warning(
                "Kafka did not confirm a command; the client can repeat it", marked=claim.is_marked, error=str(error)
            )
            raise KafkaUnavailable from error
        self._sent[command["CommandID"]] = True

    async def _await_decision(self, mark: Record, deadline: float) -> Decision:
        """The decision, or the mark if there is no decision at the deadline. Raises CommandErased.

        Raises CommandNotVisible if this instance shows neither. Then it has just lost the partition, or its copy lags.
        """
        entry = await self._wait(mark["CommandID"], DECISION_SEQUENCE, deadline)
        # The response tells the client to ask at the path of the command. A read of this path must find the mark.
        entry = entry or await self._wait(mark["CommandID"], MARK_SEQUENCE, deadline + GRACE_SECONDS)
        if entry is None:
            raise CommandNotVisible
        decision: Decision = orjson.loads(entry.body)
        if decision["Status"] == ERASED:
            raise CommandErased
        return decision

    async def _wait(self, command_id: str, sequence: int, deadline: float) -> VersionedValue | None:
        """The record with the sequence, or the current record at the deadline; None if the copy stops serving."""
        key, seconds = command_id.encode(), max(0.0, deadline - time.monotonic())
        read = partial(self._owner_only.get, self._store, key)
        with suppress(Problem):
            return await self._waiters.wait(key, read, ReadConsistency(sequence).is_satisfied_by, seconds)
        return None

    async def _release(self, command_id: str, claim: _Claim, publication: asyncio.Task[None]) -> None:
        """End the claim when the store shows the mark, or when this instance does not own the partition any more.

        If it ended earlier, the next request could write a second mark after the decision. Compaction would keep the
        mark, and delete the decision.
        """
        try:
            # The publication has logged why Kafka does not answer, and the request has its response.
            with suppress(KafkaUnavailable):
                await asyncio.shield(publication)
            partition = self._store.partition_of(command_id.encode())
            while claim.is_marked and not await self._wait(command_id, MARK_SEQUENCE, math.inf):
                if not self._owner_only.owns(self._store, partition):
                    break
                await asyncio.sleep(_RESTORE_PAUSE_SECONDS)
        finally:
            del self._in_flight[command_id]


def _start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Run a coroutine that continues after the request. Its task is in the set while it runs."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
