"""Responses with their headers for caching, and the headers that name the copy that was read and its freshness."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
from fastapi import Response

from api.http.problems import Problem
from services.interactive_queries.local import ReplicaStatus
from services.state_stores.definition import VersionedValue

REVALIDATE = "private, no-cache"
"""Clients may keep the response. They must ask for a newer one before they use it again."""
NO_STORE = "no-store"

SEQUENCE = "Loyalty-Sequence"
STALE = "Loyalty-Stale"

FRESHNESS = {
    "Loyalty-Served-By": "URL of the instance whose copy was read.",
    "Loyalty-Role": "active or standby.",
    "Loyalty-Partition": "The partition of the key.",
    "Loyalty-Offset": "The next changelog offset to apply. The response contains all records before it.",
    "Loyalty-Lag": "Changelog records from that offset to the end, as far as the instance knows.",
    SEQUENCE: "The sequence of the entry. 0: there is no entry.",
    STALE: "true: from a standby, or from an owner that cannot prove that it is still the owner.",
}
_SERVED_BY, _ROLE, _PARTITION, _OFFSET, _LAG, _SEQUENCE, _STALE = (name.lower().encode() for name in FRESHNESS)
_CACHING = (b"cache-control", REVALIDATE.encode())
_JSON = (b"content-type", b"application/json")

RawHeaders = list[tuple[bytes, bytes]]
"""Headers as ASGI sends them."""


def text_headers(described: Mapping[str, str]) -> dict[str, Any]:
    """Headers with these descriptions, for OpenAPI."""
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in described.items()}


_ENTRY_HEADERS = text_headers({"ETag": "Changes with the entry.", **FRESHNESS})
ENTRY_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"headers": _ENTRY_HEADERS},
    304: {"description": "The caller's copy (If-None-Match) is the current one.", "headers": _ENTRY_HEADERS},
}
"""The responses of a read of one key, for OpenAPI."""


class EncodedResponse(Response):
    """A response whose headers are already bytes. Starlette needs as long to encode them as the store to read a key."""

    def __init__(self, status_code: int, raw_headers: RawHeaders, body: bytes = b"") -> None:
        self.status_code = status_code
        self.body = body
        self.raw_headers = raw_headers
        self.background = None


class LocalRead(NamedTuple):
    """The result of a read of the local copy.

    Attributes:
        value: None if the key does not exist.
        served_by: URL of this instance.
    """

    value: VersionedValue | None
    status: ReplicaStatus
    served_by: str

    @property
    def sequence(self) -> int:
        return self.value.sequence if self.value else 0

    def freshness(self) -> RawHeaders:
        status = self.status
        return [
            (_SERVED_BY, self.served_by.encode()),
            (_ROLE, status.role.encode()),
            (_PARTITION, b"%d" % status.partition),
            (_OFFSET, b"%d" % status.position),
            (_LAG, b"%d" % status.lag),
            (_SEQUENCE, b"%d" % self.sequence),
            (_STALE, b"true" if status.stale else b"false"),
        ]

    def with_freshness(self, problem: Problem) -> Problem:
        """The problem with the headers of this read."""
        problem.headers = {name.decode(): value.decode() for name, value in self.freshness()}
        return problem

    def response(
        self, body: Callable[[VersionedValue], bytes], not_found: type[Problem], if_none_match: str | None
    ) -> Response:
        """The response with the entry as JSON, or 304 if the client has this version.

        Raises:
            not_found: there is no entry.
            Problem: ``body`` has raised it. It gets the headers of this read, and the entity tag of the entry.
        """
        if self.value is None:
            raise self.with_freshness(not_found())
        etag = etag_of(self.value)
        # Make the body first, because it may raise a problem. Then If-None-Match does not count (RFC 9110, 13.2.1).
        try:
            content = body(self.value)
        except Problem as problem:
            # With the entity tag, the client can demand this version from a copy that lags.
            self.with_freshness(problem).headers["etag"] = etag
            raise
        headers = [(b"etag", etag.encode()), _CACHING]
        if if_none_match is not None and matches(if_none_match, etag):
            return EncodedResponse(304, headers + self.freshness())
        headers += [(b"content-length", b"%d" % len(content)), _JSON]
        return EncodedResponse(200, headers + self.freshness(), content)


def etag_of(entry: VersionedValue) -> str:
    """The entity tag: the opened time and the sequence. A new account of the same card counts from 1 again."""
    return f'"{entry.opened_time}.{entry.sequence}"' if entry.opened_time else f'"{entry.sequence}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match contains the tag, weak or strong, or ``*`` (RFC 9110, 8.8.3 and 13.1.2)."""
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in if_none_match.split(","))


def json_response(
    body: Mapping[str, Any], status: int = 200, *, caching: str = REVALIDATE, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(orjson.dumps(body), status, {"Cache-Control": caching, **(headers or {})}, "application/json")
