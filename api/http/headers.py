"""The headers of this API, and the headers that instances forward to each other."""

from typing import Any

from fastapi import Request

from services.interactive_queries.local import ReplicaStatus

SERVED_BY = "Loyalty-Served-By"
ROLE = "Loyalty-Role"
PARTITION = "Loyalty-Partition"
OFFSET = "Loyalty-Offset"
LAG = "Loyalty-Lag"
SEQUENCE = "Loyalty-Sequence"
STALE = "Loyalty-Stale"

FORWARDED_TO = "Loyalty-Forwarded-To"
"""A forwarded request has it: the role in which the receiver reads its copy."""
DEADLINE = "Loyalty-Deadline"
"""A forwarded request has it: the seconds until the deadline of the client."""

FRESHNESS = {
    SERVED_BY: "URL of the instance whose copy was read.",
    ROLE: "active or standby.",
    PARTITION: "The partition of the key.",
    OFFSET: "The next changelog offset to apply. The response contains all records before it.",
    LAG: "Changelog records from that offset to the end, as far as the instance knows.",
    SEQUENCE: "The sequence of the entry. 0: there is no entry.",
    STALE: "true: from a standby, or from an owner that cannot prove that it is still the owner.",
}

FRESHNESS_HEADERS: dict[str, Any] = {
    "ETag": {"description": "Changes with the entry.", "schema": {"type": "string"}},
    **{name: {"description": text, "schema": {"type": "string"}} for name, text in FRESHNESS.items()},
}
"""The headers of a response about one key, for OpenAPI."""

REQUEST_HEADERS = (
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "if-none-match",
    "traceparent",
    "tracestate",
    "x-request-id",
)
"""The headers of a client's request that an instance forwards."""

RESPONSE_HEADERS = (
    "allow",
    "cache-control",
    "content-type",
    "etag",
    "location",
    "retry-after",
    "vary",
    "x-request-id",
    *(name.lower() for name in FRESHNESS),
)
"""The headers of a peer's response that the client gets."""


RawHeaders = list[tuple[bytes, bytes]]
"""Headers as ASGI sends them."""

_SERVED_BY, _ROLE, _PARTITION, _OFFSET, _LAG, _SEQUENCE, _STALE = (name.lower().encode() for name in FRESHNESS)


def freshness(served_by: str, status: ReplicaStatus, sequence: int) -> RawHeaders:
    """The headers of a response from a local copy."""
    return [
        (_SERVED_BY, served_by.encode()),
        (_ROLE, status.role.encode()),
        (_PARTITION, b"%d" % status.partition),
        (_OFFSET, b"%d" % status.position),
        (_LAG, b"%d" % status.lag),
        (_SEQUENCE, b"%d" % sequence),
        (_STALE, b"true" if status.stale else b"false"),
    ]


def received(request: Request, name: str) -> str | None:
    """A header of a request; None if it is absent. Starlette's own lookup is slow because it raises an exception."""
    wanted = name.lower().encode()
    for header, value in request.scope["headers"]:
        if header == wanted:
            return str(value, "latin-1")
    return None


def seconds_left(request: Request) -> float:
    """Seconds until the deadline that a peer sent; infinity if there is none."""
    try:
        return max(0.0, float(received(request, DEADLINE) or "inf"))
    except ValueError:
        return float("inf")


def texts(raw_headers: RawHeaders) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers}
