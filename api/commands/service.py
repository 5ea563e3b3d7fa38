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
from collections.abc import AsyncIterator, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson
import structlog
from cachetools import TTLCache
from fastapi import Request

from api.commands.problems import (
    CardInUse,
    CommandErased,
    CommandInFlight,
    CommandNotVisible,
    IdempotencyKeyReused,
    KafkaUnavailable,
    RedemptionPending,
    TargetReplaced,
    TooManyCommands,
    UnknownRedemption,
    UnknownTarget,
)
from api.http.problems import Problem
from api.routing.lookup import Lookup
from api.routing.owner_only import OwnerOnly
from api.routing.peer_messages import PeerResponse, seconds_left
from api.routing.problems import OwnerTimeout, Rebalancing, SequenceNotReached, UnknownCustomer
from api.security.permissions import caller_of
from services.codecs.events import command_record
from services.commands.identity import keyed_hash, possible_hashes
from services.commands.log import DECISION_SEQUENCE, DONE, ERASE, ERASED, MARK_SEQUENCE, PENDING, CommandLog, mark_of
from services.domain.account.model import EVENT_MEMORY
from services.domain.events import Adjust, Block, Capture, Command, Merge, Replace, Reserve, Transfer, Unblock, Void
from services.domain.formats import from_time_text
from services.messaging.avro import Record
from services.messaging.publishing import PublishError
from services.state_stores import catalogue
from services.state_stores.definition import ReadConsistency, VersionedValue
from services.state_stores.store import LocalStores, StateStore

log = structlog.get_logger(__name__)

SEND_AGAIN_SECONDS = 30
"""An instance sends an undecided command again at most once in this time, for example while no loyalty query runs."""

MOST_IN_FLIGHT = 256
"""The most commands that an instance executes at the same time."""

_GRACE_SECONDS = 0.9
"""A client that waits for t seconds gets a response after at most t + 1 seconds. In the last second an instance
finishes its work: two writes to Kafka, the read of the mark, or the read of the balance after the decision.
"""
_LOOKUP_SECONDS = 0.6
"""The part of the last second for lookups before these writes. It is enough to ask a standby if the owner accepts no
connection.
"""
_MOST_READS = 5
"""How often a command reads a balance that only a standby shows. A command must not wait long for a dead owner, because
``MOST_IN_FLIGHT`` limits the commands that wait.
"""
_READ_PAUSE_SECONDS = 0.2
_CLOSE_SECONDS = 10.0
"""How long ``close`` waits for the publications. Kubernetes ends a process after 30 seconds. The requests need five of
them, and the audit records another five.
"""
_FORWARDING_SECONDS = 5.0
"""Time for the network between the client's instance and the owner, in addition to the time that the client waits."""

Decision = dict[str, Any]
"""The record of a command in the store (``catalogue.decision_body``). Its status is pending while only the mark exists.
"""


class Outcome(NamedTuple):
    """The result of a command.

    Attributes:
        is_visible: whether the next read of the balance shows the decision.
    """

    decision: Decision
    is_visible: bool


@dataclass(slots=True)
class _Claim:
    """A command that this instance executes now. Only one request at a time has the claim.

    Attributes:
        is_marked: whether the mark of the command is in its topic.
        publication: the task that writes the mark and the command.
    """

    request_hash: str
    is_marked: bool = False
    publication: asyncio.Task[None] | None = None


class CommandService:
    """Submits commands and finds their decisions.

    Attributes:
        is_keyed: whether new records have the ``keyed_hash``. An instance of release 0.1 does not know this hash.
    """

    def __init__(
        self, stores: LocalStores, lookup: Lookup, owner_only: OwnerOnly, command_log: CommandLog, *, is_keyed: bool
    ) -> None:
        self._waiters = stores.waiters
        self._decisions = stores.by_name[catalogue.DECISIONS]
        self._balances = stores.by_name[catalogue.BALANCES]
        self._lookup = lookup
        self._owner_only = owner_only
        self._log = command_log
        self.is_keyed = is_keyed
        self._in_flight: dict[str, _Claim] = {}
        self._sent: TTLCache[str, bool] = TTLCache(math.inf, SEND_AGAIN_SECONDS)
        self._publications: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()

    async def submit(
        self, request: Request, command: Command, fields: Mapping[str, Any], card: str | None, seconds: float
    ) -> Outcome | PeerResponse:
        """Submit a command, or find its decision if it was submitted before. Raises Problem.

        Args:
            request: the request. It is forwarded if another instance owns the record of the command.
            fields: the normalized body of the request.
            card: the customer. None: the customer of the redemption that the command ends.
            seconds: how long to wait for the decision, and for the balance to show it.
        """
        key = command.command_id.encode()
        if response := await self._owner_only.forward(request, self._decisions, key, seconds + _FORWARDING_SECONDS):
            return response
        deadline = time.monotonic() + wait_seconds(request, seconds)
        idempotency_key = request.headers["idempotency-key"]
        if self.is_keyed:
            command = replace(command, request_hash=keyed_hash(command.request_hash, idempotency_key))
        hashes = possible_hashes(command.command_id, fields, idempotency_key)
        decision = self._claim(command, hashes)
        if decision and decision["Status"] != PENDING:
            return await self.await_visibility(decision, deadline, card)
        claim = self._in_flight[command.command_id]
        try:
            card = card or await self._card_of_redemption(request, command, deadline)
            if decision is None:  # A command with a mark has passed these checks.
                await self._require_accounts(command, card, deadline)
            # The partition may have moved while this instance waited for another one. It may also have come back after
            # another owner executed the command.
            self._owner_only.require_ownership(request, self._decisions, self._decisions.partition_of(key))
            decision = self._known(command.command_id, hashes)
            if decision and decision["Status"] != PENDING:
                return await self.await_visibility(decision, deadline, card)
            claim.is_marked = decision is not None
            mark = mark_of(command.command_id, command.kind, command.request_hash)
            record = command_record(card, command, time.time_ns() // 1_000_000)
            claim.publication = _start(self._publish(claim, mark, record), self._publications)
            try:
                async with asyncio.timeout(deadline + _GRACE_SECONDS - time.monotonic()):
                    # The publication continues without this request, so that a mark never stays without its command.
                    await asyncio.shield(claim.publication)
            except TimeoutError as error:
                raise KafkaUnavailable from error
            decision = await self._await_decision(mark, deadline)
            return await self.await_visibility(decision, deadline, card)
        finally:
            if claim.publication and (claim.is_marked or not claim.publication.done()):
                _start(self._release(command.command_id, claim, claim.publication), self._releases)
            else:
                del self._in_flight[command.command_id]

    async def find(self, request: Request, command_id: str, seconds: float) -> Decision | None:
        """The decision of a command, from any instance that has it; None for an unknown command. Raises Problem.

        Args:
            request: the request, for its deadline.
            seconds: how long to wait while the decision is pending.
        """
        async with _at_most(min(seconds + _FORWARDING_SECONDS, seconds_left(request)), self._decisions, command_id):
            return await self._find(command_id, seconds)

    async def _find(self, command_id: str, seconds: float) -> Decision | None:
        decision, stale = await self._lookup.value_of(catalogue.DECISIONS, command_id)
        if decision is None and stale:
            # A standby may lag, so the command may exist. After 404 a client would send it as a new command.
            raise Rebalancing(partition=self._decisions.partition_of(command_id.encode()))
        if decision and decision["Status"] == PENDING and seconds:
            decided = ReadConsistency(DECISION_SEQUENCE)
            try:
                decision, _ = await self._lookup.value_of(catalogue.DECISIONS, command_id, decided, seconds)
            except Problem as problem:
                if problem.code != SequenceNotReached.code:
                    raise
        return None if decision and decision["Status"] == ERASED else decision

    async def await_visibility(self, decision: Decision, deadline: float, card: str | None = None) -> Outcome:
        """Wait until the next read of the balance shows the decision, at most until the deadline. Raises CommandErased.

        ``card`` is the customer if the decision does not name one. Without a card, this does not wait.
        """
        card = decision["CustomerCardNo"] or card
        if decision["Status"] != DONE or card is None:
            return Outcome(decision, is_visible=True)
        erased = decision["Kind"] == ERASE
        opened_time = from_time_text(decision["OpenedTime"])
        changed = ReadConsistency(decision["AccountSequence"] or 0, opened_time, erased)
        for _ in range(_MOST_READS):
            seconds = deadline + _GRACE_SECONDS - time.monotonic()
            try:
                async with _at_most(seconds, self._balances, card):
                    # The wait ends before the lookup is cancelled, so that its last read counts.
                    wait = seconds - _READ_PAUSE_SECONDS
                    found = await self._lookup.value_of(catalogue.BALANCES, card, changed, wait)
            except Problem:
                break
            if not found.stale:
                # An erasure replaces the decisions that the account remembers. The balance of a younger decision can
                # still come.
                if found.value is None and not erased and _age(decision) > EVENT_MEMORY:
                    raise CommandErased
                return Outcome(decision, is_visible=erased or found.value is not None)
            # A standby shows the decision. But the next read may go to the owner, which may not show it yet.
            if seconds < _READ_PAUSE_SECONDS:
                break
            await asyncio.sleep(_READ_PAUSE_SECONDS)
        return Outcome(decision, is_visible=False)

    async def close(self) -> None:
        """Finish all publications, so that no mark stays without its command."""
        for task in self._releases:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*self._publications, return_exceptions=True)
        await asyncio.to_thread(self._log.close)

    def _claim(self, command: Command, hashes: AbstractSet[str]) -> Decision | None:
        """Reserve the command for this request, unless it is decided.

        ``hashes`` are the ``possible_hashes`` of the request.

        Returns the decision, the mark of a command that this instance must send again, or None for a new command.
        """
        command_id = command.command_id
        known = self._known(command_id, hashes)
        if known and known["Status"] != PENDING:
            return known
        claim = self._in_flight.get(command_id)
        # A mark does not prove that an earlier owner sent the command. The owner may have died after it wrote the mark.
        if claim or (known and command_id in self._sent):
            # Most decisions take about a second. Before a copy has the mark, a read of Location would find no command.
            headers = {"Location": location_of(command_id)} if known else {}
            raise CommandInFlight(retry_after=1, headers=headers)
        if len(self._in_flight) >= MOST_IN_FLIGHT:
            raise TooManyCommands
        self._in_flight[command_id] = _Claim(command.request_hash)
        return known

    def _known(self, command_id: str, hashes: AbstractSet[str]) -> Decision | None:
        """The decision or the mark of a command. ``hashes`` are the ``possible_hashes`` of the request.

        Raises IdempotencyKeyReused, CommandErased, and problems of the store.
        """
        entry = self._read(command_id)
        known: Decision | None = orjson.loads(entry.body) if entry else None
        claim = self._in_flight.get(command_id)
        known_hash = known["RequestHash"] if known else claim and claim.request_hash
        # The record of a command of an erased customer has no hash if release 0.1 decided the command.
        if known_hash and known_hash not in hashes:
            raise IdempotencyKeyReused
        if known and known["Status"] == ERASED:
            raise CommandErased
        return known

    async def _require_accounts(self, command: Command, card: str, deadline: float) -> None:
        """Raise Problem for a command that needs an account that does not exist, or a new card that has an account."""
        if _needs_account(command):
            await self._require_customer(command, card, deadline)
        if isinstance(command, Replace) and command.counterparty != card:
            await self._require_target(command, deadline)

    async def _require_customer(self, command: Command, card: str, deadline: float) -> None:
        """Raise UnknownCustomer if the card has no balance. Otherwise the loyalty query would open an account for it.

        No instance may know whether the card has a balance. Then the API sends a command that takes points, because the
        loyalty query refuses it if there are not enough points. The loyalty query does not refuse other commands, so
        they raise Problem.
        """
        try:
            balance = await self._balance(card, deadline)
        except Problem:
            if _takes_points(command):
                return
            raise
        if balance is None:
            raise UnknownCustomer

    async def _require_target(self, command: Replace, deadline: float) -> None:
        """Raise Problem if the target of a replacement has an account, or the target of a merge has none.

        The loyalty query accepts both cases, because the target may get an account at any moment.
        """
        balance = await self._balance(command.counterparty, deadline)
        if balance and balance.get("MovedTo"):
            raise TargetReplaced(newCard=balance["MovedTo"])
        if isinstance(command, Merge) != (balance is not None):
            raise CardInUse if balance else UnknownTarget

    async def _balance(self, card: str, deadline: float) -> dict[str, Any] | None:
        """The balance of a card; None if the card has none. Raises Problem if no instance knows."""
        async with _at_most(deadline + _LOOKUP_SECONDS - time.monotonic(), self._balances, card):
            balance, stale = await self._lookup.value_of(catalogue.BALANCES, card)
        if balance is None and stale:
            raise Rebalancing(partition=self._balances.partition_of(card.encode()))
        return balance

    async def _card_of_redemption(self, request: Request, command: Command, deadline: float) -> str:
        """The customer of the redemption that a command ends. Raises Problem."""
        redemption = None
        if isinstance(command, Capture | Void):
            # A client may end a redemption that is still pending.
            left = max(0.0, deadline - time.monotonic())
            async with _at_most(left + _LOOKUP_SECONDS, self._decisions, command.redemption_id):
                redemption = await self._find(command.redemption_id, left)
        if redemption is None or redemption["Kind"] != "reserve":
            raise UnknownRedemption
        if redemption["Status"] == PENDING:
            raise RedemptionPending
        card: str = redemption["CustomerCardNo"]
        caller_of(request).require_card(card)
        return card

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
        entry = entry or await self._wait(mark["CommandID"], MARK_SEQUENCE, deadline + _GRACE_SECONDS)
        if entry is None:
            raise CommandNotVisible
        decision: Decision = orjson.loads(entry.body)
        if decision["Status"] == ERASED:
            raise CommandErased
        return decision

    def _read(self, command_id: str) -> VersionedValue | None:
        """The record of a command in the local copy. Raises Problem."""
        return self._owner_only.get(self._decisions, command_id.encode())

    async def _wait(self, command_id: str, sequence: int, deadline: float) -> VersionedValue | None:
        """The record with the sequence, or the current record at the deadline; None if the copy stops serving."""
        seconds = max(0.0, deadline - time.monotonic())
        with suppress(Problem):
            return await self._waiters.wait(
                command_id.encode(), lambda: self._read(command_id), ReadConsistency(sequence).is_satisfied_by, seconds
            )
        return None

    async def _release(self, command_id: str, claim: _Claim, publication: asyncio.Task[None]) -> None:
        """End the claim when the store shows the mark.

        If it ended earlier, the next request could write a second mark after the decision. Compaction would keep the
        mark, and delete the decision.
        """
        try:
            # The publication has logged why Kafka does not answer, and the request has its response.
            with suppress(KafkaUnavailable):
                await asyncio.shield(publication)
            if claim.is_marked:
                await self._wait(command_id, MARK_SEQUENCE, time.monotonic() + SEND_AGAIN_SECONDS)
        finally:
            del self._in_flight[command_id]


def _start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Run a coroutine that continues after the request. Its task is in the set while it runs."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def wait_seconds(request: Request, timeout: float) -> float:
    """The seconds that a request may wait for a decision: its timeout, or less if its deadline is earlier."""
    return max(0.0, min(timeout, seconds_left(request) - 1.0))


@asynccontextmanager
async def _at_most(seconds: float, store: StateStore, key: str) -> AsyncIterator[None]:
    """Cancel a lookup of the key after these seconds. Raises OwnerTimeout."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise OwnerTimeout(partition=store.partition_of(key.encode()), tried=[]) from error


def location_of(command_id: str) -> str:
    """The path of the result of a command."""
    return f"/v1/commands/{quote(command_id, safe='')}"


def _age(decision: Decision) -> int:
    """The milliseconds since Kafka stored the command of a decision."""
    return time.time_ns() // 1_000_000 - from_time_text(decision["UpdatedTime"])


def _takes_points(command: Command) -> bool:
    """Whether the loyalty query refuses the command if the card has not enough points."""
    takes = isinstance(command, Adjust) and command.points < 0 and not command.allow_negative
    return takes or isinstance(command, Reserve | Transfer)


def _needs_account(command: Command) -> bool:
    """Whether the API refuses the command for a card without an account."""
    return _takes_points(command) or isinstance(command, Block | Unblock | Replace)
