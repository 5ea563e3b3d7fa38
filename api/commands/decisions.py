"""Finds the decision of a command, and waits until the balance shows it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import anyio
from fastapi import Request

from api.commands.problems import CommandErased
from api.http.problems import Problem
from api.routing.lookup import Lookup
from api.routing.peer_messages import seconds_left
from api.routing.problems import OwnerTimeout, SequenceNotReached
from services.clock import now
from services.codecs.records import DECISION_SEQUENCE, DONE, ERASE, ERASED, PENDING
from services.domain.account.model import EVENT_MEMORY
from services.domain.formats import from_time_text
from services.state_stores import catalogue
from services.state_stores.definition import ReadConsistency
from services.state_stores.materialiser import LocalStores
from services.state_stores.store import StateStore

GRACE_SECONDS = 0.9
"""A client that waits for t seconds gets a response after at most t + 1 seconds. In the last second an instance
finishes its work: two writes to Kafka, the read of the mark, or the read of the balance after the decision.
"""
FORWARDING_SECONDS = 5.0
"""Time for the network between the client's instance and the owner, in addition to the time that the client waits."""
_MOST_READS = 5
"""How often a command reads a balance that only a standby shows. A command must not wait long for a dead owner, because
``MOST_IN_FLIGHT`` limits the commands that wait.
"""
_READ_PAUSE_SECONDS = 0.2

Decision = dict[str, Any]
"""The record of a command in the store (``catalogue.decision_body``). Its status is pending while only the mark exists.
"""


class Decided(NamedTuple):
    """The result of a command.

    Attributes:
        is_visible: whether the next read of the balance shows the decision.
    """

    decision: Decision
    is_visible: bool


class Decisions:
    """Reads the records of commands, and the balances that show them."""

    def __init__(self, stores: LocalStores, lookup: Lookup) -> None:
        self._store = stores.by_name[catalogue.DECISIONS]
        self._balances = stores.by_name[catalogue.BALANCES]
        self._lookup = lookup

    async def find(self, command_id: str, wait_seconds: float, most_seconds: float) -> Decision | None:
        """The decision of a command, from any instance that has it; None for an unknown command. Raises Problem.

        Args:
            wait_seconds: how long to wait while the decision is pending.
            most_seconds: the longest time for everything, also if the owner does not answer.
        """
        with at_most(most_seconds, self._store, command_id):
            # After 404 for a command that exists, a client would send it as a new command.
            decision, _ = await self._lookup.known_value_of(catalogue.DECISIONS, command_id)
            if decision and decision["Status"] == PENDING and wait_seconds:
                decided = ReadConsistency(DECISION_SEQUENCE)
                try:
                    decision, _ = await self._lookup.value_of(catalogue.DECISIONS, command_id, decided, wait_seconds)
                except Problem as problem:
                    if problem.code != SequenceNotReached.code:
                        raise
        return None if decision and decision["Status"] == ERASED else decision

    async def await_visibility(self, decision: Decision, deadline: float, card: str | None = None) -> Decided:
        """Wait until the next read of the balance shows the decision, at most until the deadline. Raises CommandErased.

        ``card`` is the customer if the decision does not name one. Without a card, this does not wait.
        """
        card = decision["CustomerCardNo"] or card
        if decision["Status"] != DONE or card is None:
            return Decided(decision, is_visible=True)
        erased = decision["Kind"] == ERASE
        opened_time = from_time_text(decision["OpenedTime"])
        changed = ReadConsistency(decision["AccountSequence"] or 0, opened_time, erased)
        for _ in range(_MOST_READS):
            seconds = deadline + GRACE_SECONDS - time.monotonic()
            try:
                with at_most(seconds, self._balances, card):
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
                return Decided(decision, is_visible=erased or found.value is not None)
            # A standby shows the decision. But the next read may go to the owner, which may not show it yet.
            if seconds < _READ_PAUSE_SECONDS:
                break
            await asyncio.sleep(_READ_PAUSE_SECONDS)
        return Decided(decision, is_visible=False)


@contextmanager
def at_most(seconds: float, store: StateStore, key: str) -> Iterator[None]:
    """Cancel a lookup of the key after these seconds. Raises OwnerTimeout.

    The lookup must not use ``asyncio.gather``: the cancellation would interrupt the close of connections in its tasks.
    """
    try:
        with anyio.fail_after(seconds):  # a timeout of asyncio would leave connections to peers open: see PeerClient
            yield
    except TimeoutError as error:
        raise OwnerTimeout(partition=store.partition_of(key.encode()), tried=[]) from error


def wait_seconds(request: Request, timeout: float) -> float:
    """The seconds that a request may wait for a decision: its timeout, or less if its deadline is earlier."""
    return max(0.0, min(timeout, seconds_left(request) - 1.0))


def location_of(command_id: str) -> str:
    """The path of the result of a command."""
    return f"/v1/commands/{quote(command_id, safe='')}"


def _age(decision: Decision) -> int:
    """The milliseconds since Kafka stored the command of a decision."""
    return now() - from_time_text(decision["UpdatedTime"])
