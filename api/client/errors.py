"""The errors of the client."""

import copyreg
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import httpx

_PREFIX = "urn:problem-type:loyalty:"
_PASSING_STATUSES = {
    HTTPStatus.ACCEPTED,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
_PASSING_TYPES = {"command-in-flight", "redemption-pending"}


class LoyaltyError(Exception):
    """The base of all errors of the client."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the constructor with the message only. A pool of processes waits for ever for an error that
        # it cannot unpickle.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ProblemError(LoyaltyError):
    """The API refused a request (RFC 9457).

    Attributes:
        type: the name of the problem, for example ``insufficient-points``. docs/reference/problems.md lists all.
        members: all members of the problem.
        retry_after: after how many seconds a repetition is useful.
        headers: the headers of the response.
        idempotency_key: the key of the command. Unless ``status`` is 409, an earlier attempt may have been executed:
            repeat the command with this key to find out. None: the request was a read.
    """

    def __init__(
        self, status: int, members: Mapping[str, Any], retry_after: float = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.type = str(members.get("type", "")).removeprefix(_PREFIX)
        self.members = members
        self.retry_after = retry_after
        self.headers = headers or {}
        self.idempotency_key: str | None = None
        is_accepted = status == HTTPStatus.ACCEPTED
        other = "the command has no visible decision yet" if is_accepted else "the response has no problem document"
        text = members.get("detail") or members.get("title") or other
        super().__init__(f"{f'{status} {self.type}'.rstrip()}: {text}")

    @classmethod
    def of(cls, response: httpx.Response) -> "ProblemError":
        try:
            members = response.json()
        except (ValueError, RecursionError):  # A proxy has answered. JSON can have too many levels for Python.
            members = {}
        seconds = response.headers.get("Retry-After", "0")
        return cls(
            response.status_code,
            members if isinstance(members, dict) else {},
            float(seconds) if seconds.isdecimal() else 0,
            response.headers,
        )

    @property
    def is_temporary(self) -> bool:
        """Whether the same request can succeed later. A proxy that stops may send 500 without a problem document."""
        is_bare = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not self.type
        return is_bare or self.status in _PASSING_STATUSES or self.type in _PASSING_TYPES


class UnavailableError(LoyaltyError):
    """No final answer came before the deadline.

    Attributes:
        idempotency_key: the key of the command. It may have been executed: repeat it with this key to find out. None:
            the request was a read.
    """

    def __init__(self, cause: str, idempotency_key: str | None) -> None:
        self.idempotency_key = idempotency_key
        unknown = f" The command may be executed. Repeat it with idempotency_key={idempotency_key!r}."
        super().__init__(
            f"The API gave no final answer in time: {cause.rstrip('.')}.{unknown if idempotency_key else ''}"
        )
