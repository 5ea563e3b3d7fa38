"""The steps of each request of the client, without input and output.

A flow is a generator. It yields calls and pauses, receives responses, and returns the result. ``api.client.clients``
runs the flows with a sync and an async HTTP client, so both have the same rules for repetitions.
"""

import random
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from http import HTTPStatus
from itertools import repeat
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from .errors import ProblemError, UnavailableError
from .models import Balance, Command, EntryPage, Redemption

LONGEST_WAIT_SECONDS = 10.0
"""How long the server may wait before it answers one call."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_MOST_VERSIONS = 10_000
_ETAG = re.compile(r'"((?P<opened>\d+)\.)?(?P<sequence>\d+)"', re.ASCII)
_read_any_balance = msgspec.json.Decoder(Balance).decode
_read_command = msgspec.json.Decoder(Command).decode
_read_redemption = msgspec.json.Decoder(Redemption).decode
_read_entries = msgspec.json.Decoder(EntryPage).decode


Version = tuple[int, int]
"""The opened time of an account in milliseconds since the epoch, and a sequence. A later version is higher."""
_NOTHING: Version = (0, 0)


class Call(NamedTuple):
    """One HTTP request.

    Attributes:
        wait_seconds: how long the server may wait before it answers.
    """

    method: str
    path: str
    params: Mapping[str, Any]
    headers: Mapping[str, str] = {}
    json: Mapping[str, Any] | None = None
    wait_seconds: float = 0


class Pause(NamedTuple):
    """A wait before the next call."""

    seconds: float


T = TypeVar("T")
C = TypeVar("C", bound=Command)
Outcome = httpx.Response | httpx.RequestError | OSError
"""The result of a call: the response, or the error of the request."""
Flow = Generator[Call | Pause, Any, T]
"""Yields calls and pauses, receives the outcome of each call, and returns a result."""


class Flows:
    """The flows of one client.

    Args:
        seconds: how long a flow tries to get a final response.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: OrderedDict[str, Version] = OrderedDict()

    def balance(self, card: str) -> Flow[Balance]:
        """The balance, never older than what ``balance`` or a command has shown to this client."""
        opened, sequence = _NOTHING

        def calls() -> Iterator[Call]:
            nonlocal opened, sequence
            while True:
                # Another task of this client can see a newer version before the next attempt.
                opened, sequence = self._seen.get(card, _NOTHING)
                params = {"minSequence": sequence, "openedTime": opened} if sequence else {}
                yield Call("GET", f"{_customer(card)}/balance", params)

        def read(body: bytes) -> Balance:
            balance = _read_any_balance(body)
            if _version(balance) < self._seen.get(card, _NOTHING):
                raise msgspec.ValidationError("the balance is older than what this client has seen of the card")
            return balance

        try:
            balance = yield from self._answer(calls(), read)
        except ProblemError as problem:
            if problem.type == "unknown-customer" and sequence:
                self._remember(card, _after_erasure(opened))
            elif problem.type == "card-replaced" and (tag := _ETAG.search(problem.headers.get("ETag", ""))):
                self._remember(card, (int(tag["opened"] or 0), int(tag["sequence"])))
            raise
        self._remember(card, _version(balance))
        return balance

    def entries(self, card: str, cursor: str | None, limit: int) -> Flow[EntryPage]:
        params: dict[str, Any] = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        call = Call("GET", f"{_customer(card)}/entries", params)
        return self._answer(repeat(call), _read_entries)

    def redeem(self, card: str, points: Decimal, reason: str, key: str | None) -> Flow[Redemption]:
        body = {"points": _text(points), "reason": reason}
        return self._command(_read_redemption, "POST", f"{_customer(card)}/redemptions", key, body)

    def capture(self, redemption: str, key: str | None) -> Flow[Command]:
        return self._command(_read_command, "POST", f"/v1/redemptions/{_quoted(redemption)}/capture", key)

    def void(self, redemption: str, key: str | None) -> Flow[Command]:
        return self._command(_read_command, "POST", f"/v1/redemptions/{_quoted(redemption)}/void", key)

    def adjust(self, card: str, points: Decimal, reason: str, actor: str, key: str | None) -> Flow[Command]:
        body = {"points": _text(points), "reason": reason, "actor": actor}
        return self._command(_read_command, "POST", f"{_customer(card)}/adjustments", key, body)

    def transfer(self, sender: str, receiver: str, points: Decimal, reason: str, key: str | None) -> Flow[Command]:
        body = {"from": sender, "to": receiver, "points": _text(points), "reason": reason}
        return self._command(_read_command, "POST", "/v1/transfers", key, body)

    def erase(self, card: str, key: str | None) -> Flow[Command]:
        command = yield from self._command(_read_command, "DELETE", _customer(card), key)
        self._remember(card, _after_erasure(_milliseconds(command.opened_time)))
        return command

    def _command(
        self,
        read: Callable[[bytes], C],
        method: str,
        path: str,
        key: str | None,
        body: Mapping[str, Any] | None = None,
    ) -> Flow[C]:
        """Execute a command once, however often its request is sent. Returns its decision."""
        key = str(uuid.uuid4()) if key is None else key
        if not key:
            raise ValueError("the idempotency key is empty: give the key of the command, or None for a new one")
        if not (key.isascii() and key.isprintable()):
            raise ValueError(f"the idempotency key {key!r} has characters that an HTTP header cannot have: use ASCII")
        if key != key.strip():
            raise ValueError(f"the idempotency key {key!r} has a blank at an end, which HTTP does not keep: remove it")
        try:
            call = Call(method, path, {}, {"Idempotency-Key": key}, body)
            command = yield from self._answer(repeat(call), read, key)
        except ProblemError as problem:
            # A problem can follow a lost response, for example if the credentials expire between two attempts.
            problem.idempotency_key = key
            raise
        if command.card and command.account_sequence:
            self._remember(command.card, (_milliseconds(command.opened_time), command.account_sequence))
        return command

    def _answer(self, calls: Iterable[Call], read: Callable[[bytes], T], key: str | None = None) -> Flow[T]:
        """Make one call after the other until an answer is final. Raises ProblemError, UnavailableError and ValueError.

        The pauses grow and are random, so that clients that fail at the same time do not repeat at the same time.

        Args:
            calls: the call of each attempt, without an end.
            read: makes the result from the body of a success. Raises ValueError or RecursionError if the answer is not
                final, for example because a proxy has sent a page of its own.
        """
        deadline = time.monotonic() + self._seconds
        for attempt, call in enumerate(calls):
            left = max(deadline - time.monotonic(), 0)
            wait = min(left, LONGEST_WAIT_SECONDS)
            timeout = {"timeout": round(wait, 3)} if key or call.params.get("minSequence") else {}
            timed = call._replace(params={**call.params, **timeout}, wait_seconds=wait)
            retry_after, cause = 0.0, ""
            outcome: Outcome = yield timed
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                if outcome.is_success and outcome.status_code != HTTPStatus.ACCEPTED:
                    return read(outcome.content)
            except (httpx.RequestError, OSError, ValueError, RecursionError) as error:
                cause = f"{type(error).__name__}: {error}".removesuffix(": ")  # a timeout has no text
            else:
                problem = ProblemError.of(outcome)
                if not problem.is_temporary:
                    raise problem
                retry_after, cause = problem.retry_after, str(problem)
            # Limit the exponent, because 2 ** 1024 is too large for a float.
            longest = min(_FIRST_PAUSE_SECONDS * 2 ** min(attempt, 10), _LONGEST_PAUSE_SECONDS)
            pause = retry_after + random.uniform(0, longest)  # noqa: S311 - not a secret
            if time.monotonic() + pause >= deadline:
                raise UnavailableError(cause, key)
            yield Pause(pause)
        raise AssertionError  # the calls do not end

    def _remember(self, card: str, version: Version) -> None:
        self._seen[card] = max(version, self._seen.pop(card, version))
        if len(self._seen) > _MOST_VERSIONS:
            self._seen.popitem(last=False)


def _version(balance: Balance) -> Version:
    return _milliseconds(balance.opened_time), balance.sequence


def _after_erasure(opened: int) -> Version:
    """The lowest version of an account that is opened after an erasure.

    Only the client compares it. Its sequence is 0, so the client sends no ``minSequence``: the API would answer 503
    instead of 404 while there is no such account.
    """
    return opened + 1, 0


def _milliseconds(moment: datetime | None) -> int:
    """Milliseconds since the epoch; 0 for an account that was opened before accounts had this time."""
    return round(moment.timestamp() * 1000) if moment else 0


def _customer(card: str) -> str:
    return f"/v1/customers/{_quoted(card)}"


def _text(points: Decimal) -> str:
    """The points without an exponent, because the API refuses exponents."""
    return f"{Decimal(points):f}"


def _quoted(text: str) -> str:
    return quote(text, safe="")
