"""Delivers a message to an endpoint: tries, waits, tries again, gives up."""

import asyncio
import email.utils
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus

import httpx
import stamina
import structlog

from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Message, signed
from services.webhooks.metrics import Metrics

log = structlog.get_logger(__name__)

# Enough for the answer of any receiver to be read, so that its connection can be used again.
_LARGEST_ANSWER = 64 * 1024
_TRY_AGAIN = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class UndeliveredError(Exception):
    """A try that failed; the message says why, in one line without the endpoint's URL.

    Attributes:
        final: another try would not help.
        wait: seconds that the receiver asked to wait.
    """

    def __init__(self, reason: str, *, final: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.final = final
        self.wait = wait


class Delivery:
    """Delivers to one endpoint, with so many requests at the same time as it wants."""

    def __init__(self, endpoint: Endpoint, client: httpx.AsyncClient, metrics: Metrics) -> None:
        self._endpoint = endpoint
        self._client = client
        self._metrics = metrics
        self._turn = asyncio.Semaphore(endpoint.concurrency)

    async def deliver(self, message: Message) -> None:
        """Try until the endpoint has the message; raises UndeliveredError after the last try, or a final refusal."""
        endpoint = self._endpoint
        attempts = stamina.retry_context(
            on=self._pause,
            attempts=endpoint.attempts,
            timeout=None,
            wait_initial=endpoint.first_wait,
            wait_max=endpoint.longest_wait,
            # So that what failed together does not come again together.
            wait_jitter=endpoint.first_wait,
        )
        async for attempt in attempts:
            with attempt:
                try:
                    async with self._turn:
                        await self._try(message)
                except UndeliveredError as error:
                    log.warning(
                        "not delivered",
                        endpoint=endpoint.name,
                        webhook_id=message.identity,
                        attempt=attempt.num,
                        reason=str(error),
                    )
                    raise

    def _pause(self, error: Exception) -> bool | float:
        """Whether to try again; or after how many seconds, where the receiver said so."""
        if not isinstance(error, UndeliveredError) or error.final:
            return False
        return True if error.wait is None else min(error.wait, self._endpoint.longest_wait.total_seconds())

    async def _try(self, message: Message) -> None:
        endpoint, answer = self._endpoint, None
        headers = signed(message, endpoint.secrets, datetime.now(UTC))
        try:
            async with (
                asyncio.timeout(endpoint.timeout.total_seconds()),
                self._client.stream("POST", endpoint.url, content=message.body, headers=headers) as answer,
            ):
                await _drain(answer)
        except (httpx.HTTPError, TimeoutError) as error:
            # With its status here, what the answer goes on to say does not matter.
            if answer is None:
                self._metrics.attempts.labels(endpoint.name, "none").inc()
                raise UndeliveredError(f"no answer: {type(error).__name__}") from error
        self._metrics.attempts.labels(endpoint.name, str(answer.status_code)).inc()
        _judge(answer)


async def _drain(answer: httpx.Response) -> None:
    size = 0
    async for chunk in answer.aiter_raw():
        size += len(chunk)
        if size > _LARGEST_ANSWER:
            return


def _judge(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    status = answer.status_code
    reason = f"answer {status} {answer.reason_phrase}".rstrip()
    if status in _TRY_AGAIN or answer.is_server_error:
        raise UndeliveredError(reason, wait=_retry_after(answer.headers.get("retry-after")))
    raise UndeliveredError(reason, final=True)


def _retry_after(value: str | None) -> float | None:
    """Seconds, from a Retry-After in seconds or as a date (RFC 9110, 10.2.3); None for what is neither."""
    if value is None:
        return None
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        until = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


@asynccontextmanager
async def http_client() -> AsyncIterator[httpx.AsyncClient]:
    """The client of one endpoint: its own connections, no redirects, and no limit but the endpoint's."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(follow_redirects=False, timeout=None, limits=limits) as client:  # noqa: S113 - of its own
        client.headers["user-agent"] = "retail-loyalty"
        yield client
