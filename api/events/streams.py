"""Server-sent events (HTML Living Standard, section 9.2): their text, and the open streams of this instance."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.http.problems import Problem
from api.http.responses import NO_STORE
from api.security.permissions import caller_of

MEDIA_TYPE = "text/event-stream"

HEARTBEAT_SECONDS = 10.0
"""The time between two comments in a stream without events. The comments detect a dead connection, and proxies do not
close the stream.
"""

HEARTBEAT = b":\n\n"
START = b"retry: 1000\n\n"
"""The first bytes of a stream: a client waits a second before it connects again."""

_LONGEST_SECONDS = 600.0
"""After this time a client must connect again, so that streams move to instances that started later."""

T = TypeVar("T")


class Event(NamedTuple):
    """One event. ``data`` is one line."""

    name: str
    data: bytes
    event_id: str = ""

    def encode(self) -> bytes:
        event_id = f"id: {self.event_id}\n" if self.event_id else ""
        return f"event: {self.name}\n{event_id}data: ".encode() + self.data + b"\n\n"


class TooManyStreams(
    Problem,
    status=HTTPStatus.TOO_MANY_REQUESTS,
    code="too-many-streams",
    title="Too many event streams",
    retry_after=10,
    example={"limit": 100},
):
    """The caller has {limit} event streams open on this instance. Close one of them, or use one stream for each card
    only.
    """


class EndOfStreamError(Exception):
    """The stream must end now: the instance stops, or the stream is old. The client connects again."""


class _EventResponse(StreamingResponse):
    """Ends its generator and closes their source. Starlette only stops to read the generator if the client leaves."""

    def __init__(
        self, parts: AsyncGenerator[bytes], close: Callable[[], Awaitable[None]], headers: Mapping[str, str]
    ) -> None:
        super().__init__(parts, headers=headers, media_type=MEDIA_TYPE)
        self._parts = parts
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._parts.aclose()
            finally:
                await self._close()


class EventStreams:
    """The open streams of this instance. Only the event loop may call it, except for ``close``.

    Args:
        most_of_a_caller: how many streams one caller may have open.
    """

    def __init__(self, most_of_a_caller: int) -> None:
        self._most = most_of_a_caller
        self._open: Counter[str] = Counter()
        self._closing = False
        self._waiting: set[asyncio.Timeout] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def close(self) -> None:
        """End all streams. Any thread may call it."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, so no stream is open
                self._loop.call_soon_threadsafe(self._close)

    @contextmanager
    def hold_place(self, request: Request) -> Iterator[None]:
        """Hold one of the caller's places. Raises TooManyStreams if none is free.

        Forwarded requests are not counted, because the instance that got the request from the caller counts the stream.
        """
        caller = caller_of(request)
        if caller.is_forwarded:
            yield
            return
        if self._open[caller.name] >= self._most:
            raise TooManyStreams(limit=self._most)
        self._open[caller.name] += 1
        try:
            yield
        finally:
            self._open[caller.name] -= 1
            if not self._open[caller.name]:
                del self._open[caller.name]

    def response(
        self, request: Request, events: AsyncGenerator[bytes], close: Callable[[], Awaitable[None]] | None = None
    ) -> Response:
        """Send the parts of a generator until it ends, or until the stream must end.

        Before each part, also before a heartbeat, this checks that the credentials of the caller are still valid.

        Args:
            close: closes the source of the events. It is called at the end of each response, also if the client has
                left before the generator began.
        """
        caller, security = caller_of(request), request.app.state.dependencies.security

        async def limited() -> AsyncGenerator[bytes]:
            deadline = time.monotonic() + _LONGEST_SECONDS
            try:
                async for part in events:
                    if security and not await security.still_admits(request.scope, caller):
                        return
                    yield part
                    if self._closing or time.monotonic() > deadline:
                        return
            except EndOfStreamError:
                return
            finally:
                await events.aclose()

        # Some proxies collect a response before they pass it on, unless this header forbids it.
        headers = {"Cache-Control": NO_STORE, "X-Accel-Buffering": "no"}
        return _EventResponse(limited(), close or events.aclose, headers)

    async def step(self, step: Awaitable[T], seconds: float = HEARTBEAT_SECONDS) -> T:
        """Wait for the next event. Raises TimeoutError, and EndOfStreamError when the instance stops."""
        try:
            async with asyncio.timeout(0 if self._closing else seconds) as limit:
                self._waiting.add(limit)
                try:
                    return await step
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if self._closing:
                raise EndOfStreamError from None
            raise

    def _close(self) -> None:
        self._closing = True
        now = asyncio.get_running_loop().time()
        for limit in [each for each in self._waiting if not each.expired()]:
            limit.reschedule(now)
