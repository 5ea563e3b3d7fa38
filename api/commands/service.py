"""The way of a command, all of it, on the instance that owns the command's record.

seen before?     the same request ──► what became of it; another one under its key, or in flight ──► a problem
otherwise        the mark that it was asked for, then the command itself, each once Kafka has it for certain
decided          by the loyalty query: its decision comes back through the store ``decisions``
visible          the store of balances shows what it did; only then the caller is told
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import orjson
import structlog
from fastapi import Request, Response

from api.http import headers, pagination, problems
from api.routing.key_reads import KeyReads
from api.routing.lookup import problem_of
from api.routing.owner_only import OwnerRequests
from services.codecs.events import command_record
from services.commands.log import DECISION_SEQUENCE, DONE, ERASE, MARK_SEQUENCE, PENDING, CommandLog, mark_of
from services.domain.events import Command
from services.domain.formats import to_milliseconds
from services.messaging.avro import Record
from services.messaging.publishing import PublishError
from services.state_stores import catalogue
from services.state_stores.contract import StoreClosedError
from services.state_stores.definition import ReadConsistency, VersionedValue
from services.state_stores.store import LocalStores, NotServingError

log = structlog.get_logger(__name__)

SEND_AGAIN_SECONDS = 30
"""After so long without a decision a retry sends the command again: its first sender may have died in between."""

MOST_IN_FLIGHT = 256
"""Commands that an instance works on at once."""

# Beyond what the caller wants to wait: for Kafka to take two records, for the mark to come back, and for the way.
_PATIENCE_SECONDS = 15.0
_MARK_SECONDS = 5.0
_SHORTEST_LOOK_SECONDS = 1.0

Decision = dict[str, Any]
"""A decision, or the mark that goes before it, as the store shows it (``catalogue.decision_body``)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is a command.

    Attributes:
        make: gives the card and the command, if it is to be sent; raises Problem.
        done: the status of the answer once it is done.
        card: where the request names it; the decision on an erasure does not.
    """

    command_id: str
    request_hash: str
    make: Callable[[], Awaitable[tuple[str, Command]]]
    done: HTTPStatus
    card: str | None = None


class Commands:
    """Sends commands, and answers with what became of them."""

    def __init__(self, stores: LocalStores, reads: KeyReads, owners: OwnerRequests, command_log: CommandLog) -> None:
        self._waiters = stores.waiters
        self._decisions = stores.by_name[catalogue.DECISIONS]
        self._reads = reads
        self._owners = owners
        self._log = command_log
        self._in_flight: dict[str, str] = {}
        self._releases: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request, asked: Asked, seconds: float) -> Response:
        """What became of the command within so many seconds, sent now or before; raises Problem."""

        async def act() -> Response:
            return await self._as_owner(asked, time.monotonic() + seconds)

        key = asked.command_id.encode()
        return await self._owners.answer(request, self._decisions, key, act, seconds + _PATIENCE_SECONDS)

    async def look_up(self, command_id: str, seconds: float) -> Decision | None:
        """What is known of a command, wherever it is; its decision if that comes within so many seconds.

        None for one that nobody has asked for. Raises Problem.
        """
        found = await self._reads.ask(catalogue.DECISIONS, command_id)
        if found.status_code == HTTPStatus.OK and seconds and _value_of(found)["Status"] == PENDING:
            decided = await self._reads.ask(
                catalogue.DECISIONS, command_id, ReadConsistency(DECISION_SEQUENCE), seconds
            )
            found = found if problem_of(decided) == problems.SequenceNotReached.code else decided
        if found.status_code == HTTPStatus.NOT_FOUND:
            return None
        if found.status_code != HTTPStatus.OK:
            raise problems.OtherProblem.from_response(found)
        return _value_of(found)

    async def is_visible(self, decision: Decision, seconds: float, card: str | None = None) -> bool:
        """Whether the customer's next read shows what a decision did, within so many seconds.

        Args:
            card: where the decision does not name it; without either there is nobody to ask about.
        """
        card = decision["CustomerCardNo"] or card
        if decision["Status"] != DONE or card is None:
            return True
        erased = decision["Kind"] == ERASE
        awaited = ReadConsistency(decision["AccountSequence"] or 0, _milliseconds(decision["OpenedTime"]), erased)
        found = await self._reads.ask(catalogue.BALANCES, card, awaited, max(seconds, _SHORTEST_LOOK_SECONDS))
        return found.status_code == HTTPStatus.OK or (erased and found.status_code == HTTPStatus.NOT_FOUND)

    async def close(self) -> None:
        """Give up what is waited for, and send what is under way."""
        for task in self._releases:
            task.cancel()
        await asyncio.to_thread(self._log.close)

    async def _as_owner(self, asked: Asked, until: float) -> Response:
        command_id = asked.command_id
        entry = self._read(command_id)
        known: Decision | None = orjson.loads(entry.body) if entry else None
        in_hand = known["RequestHash"] if known else self._in_flight.get(command_id)
        if in_hand not in (None, asked.request_hash):
            raise problems.IdempotencyKeyReused
        if known and known["Status"] != PENDING:
            return await self._decided(asked, known, until)
        wait = math.ceil(SEND_AGAIN_SECONDS - _age(entry)) if entry else 1
        if command_id in self._in_flight or (entry and wait > 0):
            raise problems.CommandInFlight(_address(command_id), max(1, wait))
        if len(self._in_flight) >= MOST_IN_FLIGHT:
            raise problems.TooManyCommands
        self._in_flight[command_id] = asked.request_hash
        is_marked = known is not None
        try:
            card, command = await asked.make()
            # Asking about the redemption may have taken a while.
            self._owners.require_ownership(self._decisions, self._decisions.partition_of(command_id.encode()))
            mark = mark_of(command_id, command.kind, asked.request_hash)
            if not is_marked:
                await self._mark(mark)
                is_marked = True
            await self._send(command_record(card, command, time.time_ns() // 1_000_000))
            return await self._outcome(asked, mark, until)
        finally:
            self._release(command_id, is_marked=is_marked)

    async def _mark(self, mark: Record) -> None:
        try:
            await self._log.mark(mark)
        except PublishError as error:
            log.warning("a command was not taken", error=str(error))
            raise problems.KafkaUnavailable(1) from error

    async def _send(self, command: Record) -> None:
        try:
            await self._log.send(command)
        except PublishError as error:
            # With the mark there, the command may be there too: a retry waits until it is sent again.
            log.warning("a command may not have been sent", error=str(error))
            raise problems.KafkaUnavailable(SEND_AGAIN_SECONDS) from error

    async def _outcome(self, asked: Asked, mark: Record, until: float) -> Response:
        entry = await self._wait(asked.command_id, DECISION_SEQUENCE, until)
        # Who is sent to ask elsewhere must find it there.
        entry = entry or await self._wait(asked.command_id, MARK_SEQUENCE, time.monotonic() + _MARK_SECONDS)
        decision: Decision = orjson.loads(entry.body if entry else catalogue.decision_body(mark))
        return accepted(decision) if decision["Status"] == PENDING else await self._decided(asked, decision, until)

    async def _decided(self, asked: Asked, decision: Decision, until: float) -> Response:
        if decision["Status"] != DONE:
            raise problems.CommandRefused.from_decision(shown(decision))
        if not await self.is_visible(decision, until - time.monotonic(), asked.card):
            return accepted(decision)
        response = pagination.json_response(shown(decision), Location=_address(asked.command_id))
        response.status_code = asked.done
        if decision["AccountSequence"]:
            response.headers[headers.SEQUENCE] = str(decision["AccountSequence"])
        return response

    def _read(self, command_id: str) -> VersionedValue | None:
        try:
            return self._decisions.get(command_id.encode())
        except NotServingError as error:
            raise problems.not_serving(error) from error
        except StoreClosedError as error:
            raise problems.Stopping from error

    async def _wait(self, command_id: str, sequence: int, until: float) -> VersionedValue | None:
        """The record once it has that sequence; what is there when the time is over, or the partition leaves."""
        key, seconds = command_id.encode(), max(0.0, until - time.monotonic())
        with suppress(NotServingError, StoreClosedError):
            return await self._waiters.wait(key, ReadConsistency(sequence), seconds, lambda: self._decisions.get(key))
        return None

    def _release(self, command_id: str, *, is_marked: bool) -> None:
        """Let the next request with this key in, once it can see the mark of this one, if there is one.

        A second mark, written after the decision, would be what compaction keeps.
        """
        if not is_marked:
            del self._in_flight[command_id]
            return

        async def once_seen() -> None:
            await self._wait(command_id, MARK_SEQUENCE, time.monotonic() + SEND_AGAIN_SECONDS)
            del self._in_flight[command_id]

        release = asyncio.create_task(once_seen())
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)


def accepted(decision: Decision) -> Response:
    """202: not decided yet, or decided and not yet to be seen in the balance."""
    response = pagination.json_response(shown(decision), Location=_address(decision["CommandID"]))
    response.status_code = HTTPStatus.ACCEPTED
    response.headers["Retry-After"] = "1"
    return response


def shown(decision: Decision) -> Decision:
    """What callers see of a decision."""
    return {name: value for name, value in decision.items() if name != "RequestHash"}


def _address(command_id: str) -> str:
    return f"/v1/commands/{quote(command_id, safe='')}"


def _value_of(response: Response) -> Decision:
    value: Decision = orjson.loads(response.body)["value"]
    return value


def _age(entry: VersionedValue) -> float:
    """Seconds since the broker appended the record, by this machine's clock."""
    return time.time() - entry.append_time / 1000


def _milliseconds(shown_time: str | None) -> int:
    """A time as the stores show it, in milliseconds since the epoch; 0 for none."""
    if shown_time is None:
        return 0
    return to_milliseconds(datetime.fromisoformat(shown_time))
