"""Delivers one message to one endpoint: attempts, waits between them, and the decision to give up."""

import asyncio
import email.utils
import os
import socket
import ssl
from datetime import UTC, datetime
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy

import anyio
import httpx
import stamina
import structlog

from services import tracing
from services.start_up import StartUpError
from services.webhooks.endpoints import Endpoint
from services.webhooks.message import Message, signed
from services.webhooks.metrics import Metrics

log = structlog.get_logger(__name__)

# The client must read a response completely before it can use the connection again. After more bytes, it closes the
# connection.
_MAX_RESPONSE_BYTES = 64 * 1024
# The texts of these errors can contain the host, so a dead letter gets only these words.
_CAUSES: dict[type[BaseException], str] = {
    ssl.SSLCertVerificationError: "the certificate is not valid",
    socket.gaierror: "the host name is not known",
    ConnectionRefusedError: "the connection was refused",
}
_RETRIED_STATUSES = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class UndeliveredError(Exception):
    """An attempt failed. The message says why, in one line and without the endpoint's URL.

    Attributes:
        final: whether another attempt would be useless.
        retry_after: the number of seconds that the receiver asks to wait; None if it does not ask.
    """

    def __init__(self, reason: str, *, final: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.final = final
        self.retry_after = retry_after


class Delivery:
    """Delivers messages to one endpoint, with at most ``concurrency`` requests at the same time."""

    def __init__(self, endpoint: Endpoint, client: httpx.AsyncClient, metrics: Metrics) -> None:
        self._endpoint = endpoint
        self._client = client
        self._metrics = metrics
        self._slots = asyncio.Semaphore(endpoint.concurrency)

    async def deliver(self, message: Message) -> None:
        """Send the message until the endpoint accepts it.

        Raises UndeliveredError after the last attempt, and after a response that forbids another attempt.
        """
        endpoint = self._endpoint
        attempts = stamina.retry_context(
            on=self._backoff,
            attempts=endpoint.attempts,
            timeout=None,
            wait_initial=endpoint.first_wait,
            wait_max=endpoint.longest_wait,
            # Spreads the next attempts of messages that failed at the same time.
            wait_jitter=endpoint.first_wait,
        )
        async for attempt in attempts:
            with attempt:
                try:
                    async with self._slots:
                        await self._attempt(message)
                except UndeliveredError as error:
                    if error.retry_after is not None:
                        # A receiver can ask for more time, but not for less.
                        error.retry_after = max(error.retry_after, attempt.next_wait)
                    log.warning(
                        "an attempt to deliver a notification to %s failed",
                        endpoint.name,
                        endpoint=endpoint.name,
                        attempt=attempt.num,
                        reason=str(error),
                    )
                    raise

    def _backoff(self, error: Exception) -> bool | float:
        """Whether to try again. If the receiver asks to wait, the number of seconds to wait before the next attempt."""
        if not isinstance(error, UndeliveredError) or error.final:
            return False
        if error.retry_after is None:
            return True
        return min(error.retry_after, self._endpoint.longest_wait.total_seconds())

    async def _attempt(self, message: Message) -> None:
        endpoint, response = self._endpoint, None
        headers = signed(message, endpoint.secrets, datetime.now(UTC)) | tracing.headers()
        try:
            # httpx protects the close of a connection from timeouts of anyio. A timeout of asyncio would interrupt the
            # close, and the connection would stay open for ever.
            with anyio.fail_after(endpoint.timeout.total_seconds()):
                request = self._client.stream("POST", endpoint.url, content=message.body, headers=headers)
                async with request as response:
                    await _drain(response)
        # The response of a receiver can cause any error. It must not end the dispatchers of other endpoints.
        except Exception as error:
            # Only the status counts, so an error in the body after it does not matter.
            if response is None:
                self._metrics.attempts.labels(endpoint.name, "none").inc()
                raise UndeliveredError(f"no answer: {type(error).__name__}{_cause(error)}") from error
        self._metrics.attempts.labels(endpoint.name, str(response.status_code)).inc()
        _check_status(response)


def _cause(error: BaseException | None) -> str:
    """Why there is no connection, in brackets. Empty for other reasons."""
    while error is not None:
        for kind, words in _CAUSES.items():
            if isinstance(error, kind):
                return f" ({words})"
        # If a host has several addresses, each of them has an error.
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
    return ""


async def _drain(response: httpx.Response) -> None:
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > _MAX_RESPONSE_BYTES:
            return


def _check_status(response: httpx.Response) -> None:
    if response.is_success:
        return
    status = response.status_code
    # The receiver's own phrase can contain a card, and analysts read the reasons of dead letters.
    reason = f"answer {status} {httpx.codes.get_reason_phrase(status)}".rstrip()
    if status in _RETRIED_STATUSES or response.is_server_error:
        raise UndeliveredError(reason, retry_after=_retry_after(response.headers.get("retry-after")))
    raise UndeliveredError(reason, final=True)


def _retry_after(value: str | None) -> float | None:
    """The seconds of a Retry-After header (RFC 9110, 10.2.3); None if it is neither a number nor a date."""
    if value is None:
        return None
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        until = email.utils.parsedate_to_datetime(value)
        moment = until if until.tzinfo else until.replace(tzinfo=UTC)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def http_client() -> httpx.AsyncClient:
    """The HTTP client of one endpoint, with its own connections. It follows no redirects and keeps no cookies.

    The endpoint limits the number of requests and their duration, so the client has no limits. Raises StartUpError if
    the proxies or the certificates of the environment do not work.
    """
    try:
        return httpx.AsyncClient(
            follow_redirects=False,
            timeout=None,  # noqa: S113 - ``Delivery`` limits each attempt
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            headers={"user-agent": "retail-loyalty"},
        )
    except OSError as error:
        # The error of OpenSSL does not name the file.
        file = os.environ.get("SSL_CERT_FILE") or "certificates"
        reason = f"{file}: {error.strerror or error}"
    except ImportError as error:
        reason = str(error).rstrip(".")
    except (httpx.InvalidURL, ValueError):
        # The text of the error can contain a part of a proxy's password.
        reason = "a proxy is not a URL, or NO_PROXY has a wrong entry (write for example ::1, and not ::1/128 or [::1])"
    raise StartUpError(
        f"cannot make an HTTP client ({reason}): correct the proxies in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and "
        "NO_PROXY, or the file of certificates in SSL_CERT_FILE"
    )
