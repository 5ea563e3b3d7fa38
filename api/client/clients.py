"""The sync and the async client. They run the flows of ``api.client.flows`` with httpx."""

import asyncio
import time
from decimal import Decimal
from typing import Any, Self

import httpx

from .flows import Call, Flow, Flows, Outcome, Pause, T
from .models import Balance, Command, EntryPage, Redemption

_GRACE_SECONDS = 5
"""The server responds at most one second after the wait of a call. The rest is for the network."""
_FAILURES = (httpx.RequestError, OSError)
"""The errors of a request. httpx has no error of its own for a TLS error of a connection of the async client."""


class LoyaltyClient:
    """A client for one thread at a time.

    Args:
        base_url: any instance of the API, or a load balancer in front of all. It begins with http:// or https://.
        credentials: an API key or a bearer token. The client removes blanks around it. None: the API needs no
            credentials.
        seconds: how long the client repeats a request before it raises UnavailableError. In the last attempt, the
            connection, the TLS handshake and the response may each take five seconds longer. A response may take even
            longer if the server sends it slowly. The sync client may also take longer to look up the name of the host,
            and to try each of its addresses for five seconds.
        transport: replaces the connection, for tests and proxies.

    Every command takes an ``idempotency_key``. Give the key of an earlier process to repeat its command. Without a key
    the client makes a new one. All methods raise ProblemError and UnavailableError. ValueError means that ``base_url``,
    ``credentials`` or ``idempotency_key`` is wrong, and that the client has sent nothing. If ``base_url`` is no URL,
    the constructor may also raise httpx.InvalidURL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        credentials: str | None = None,
        seconds: float = 30,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._flows = Flows(seconds)
        self._http = httpx.Client(base_url=_checked(base_url), headers=_headers(credentials), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def balance(self, card: str) -> Balance:
        """The points of a customer, never older than what ``balance`` or a command has shown to this client."""
        return self._run(self._flows.balance(card))

    def entries(self, card: str, cursor: str | None = None, limit: int = 100) -> EntryPage:
        """A page of the entries of an account, newest first."""
        return self._run(self._flows.entries(card, cursor, limit))

    def redeem(self, card: str, points: Decimal, reason: str = "", idempotency_key: str | None = None) -> Redemption:
        """Reserve points. ``capture`` spends them, ``void`` frees them."""
        return self._run(self._flows.redeem(card, points, reason, idempotency_key))

    def capture(self, redemption: str, idempotency_key: str | None = None) -> Command:
        """Spend the points of a redemption."""
        return self._run(self._flows.capture(redemption, idempotency_key))

    def void(self, redemption: str, idempotency_key: str | None = None) -> Command:
        """Free the points of a redemption."""
        return self._run(self._flows.void(redemption, idempotency_key))

    def adjust(
        self, card: str, points: Decimal, reason: str, actor: str, idempotency_key: str | None = None
    ) -> Command:
        """Add points, or take them."""
        return self._run(self._flows.adjust(card, points, reason, actor, idempotency_key))

    def transfer(
        self, sender: str, receiver: str, points: Decimal, reason: str = "", idempotency_key: str | None = None
    ) -> Command:
        """Move points from one card to another."""
        return self._run(self._flows.transfer(sender, receiver, points, reason, idempotency_key))

    def erase(self, card: str, idempotency_key: str | None = None) -> Command:
        """Erase a customer: points, reservations and decisions."""
        return self._run(self._flows.erase(card, idempotency_key))

    def _run(self, flow: Flow[T]) -> T:
        outcome: Outcome | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = self._outcome(step)

    def _outcome(self, step: Call | Pause) -> Outcome | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._http.request(**_arguments(step))
        except _FAILURES as error:
            return error


class AsyncLoyaltyClient:
    """The same client for asyncio; see LoyaltyClient. Several tasks can share it.

    The client has at most 100 connections. A request waits for a free one, and fails with PoolTimeout of httpx if none
    becomes free in time. The client then repeats it.

    A command that you cancel may be executed. To be able to repeat it, give it an ``idempotency_key`` of your own.
    """

    def __init__(
        self,
        base_url: str,
        *,
        credentials: str | None = None,
        seconds: float = 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._flows = Flows(seconds)
        self._http = httpx.AsyncClient(base_url=_checked(base_url), headers=_headers(credentials), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def balance(self, card: str) -> Balance:
        """The points of a customer, never older than what ``balance`` or a command has shown to this client."""
        return await self._run(self._flows.balance(card))

    async def entries(self, card: str, cursor: str | None = None, limit: int = 100) -> EntryPage:
        """A page of the entries of an account, newest first."""
        return await self._run(self._flows.entries(card, cursor, limit))

    async def redeem(
        self, card: str, points: Decimal, reason: str = "", idempotency_key: str | None = None
    ) -> Redemption:
        """Reserve points. ``capture`` spends them, ``void`` frees them."""
        return await self._run(self._flows.redeem(card, points, reason, idempotency_key))

    async def capture(self, redemption: str, idempotency_key: str | None = None) -> Command:
        """Spend the points of a redemption."""
        return await self._run(self._flows.capture(redemption, idempotency_key))

    async def void(self, redemption: str, idempotency_key: str | None = None) -> Command:
        """Free the points of a redemption."""
        return await self._run(self._flows.void(redemption, idempotency_key))

    async def adjust(
        self, card: str, points: Decimal, reason: str, actor: str, idempotency_key: str | None = None
    ) -> Command:
        """Add points, or take them."""
        return await self._run(self._flows.adjust(card, points, reason, actor, idempotency_key))

    async def transfer(
        self, sender: str, receiver: str, points: Decimal, reason: str = "", idempotency_key: str | None = None
    ) -> Command:
        """Move points from one card to another."""
        return await self._run(self._flows.transfer(sender, receiver, points, reason, idempotency_key))

    async def erase(self, card: str, idempotency_key: str | None = None) -> Command:
        """Erase a customer: points, reservations and decisions."""
        return await self._run(self._flows.erase(card, idempotency_key))

    async def _run(self, flow: Flow[T]) -> T:
        outcome: Outcome | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = await self._outcome(step)

    async def _outcome(self, step: Call | Pause) -> Outcome | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self._http.request(**_arguments(step))
        except _FAILURES as error:
            return error


def _checked(base_url: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        raise ValueError(f"{base_url!r} is not a URL of the API: begin with http:// or https://")
    return base_url


def _headers(credentials: str | None) -> dict[str, str]:
    key = (credentials or "").strip()  # A file with a key ends with a line feed.
    if not all("!" <= character <= "~" for character in key):
        # An error can reach a log. So it does not repeat the credentials.
        raise ValueError(
            "the credentials contain a blank or a character that is not ASCII, so an HTTP header cannot have them: "
            "give only the API key or the token"
        )
    return {"Authorization": f"Bearer {key}"} if key else {}


def _arguments(call: Call) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "headers": call.headers,
        "json": call.json,
        "timeout": httpx.Timeout(call.wait_seconds + _GRACE_SECONDS, connect=_GRACE_SECONDS),
    }
