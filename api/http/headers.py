"""Every header of our own, and which of others' cross between instances."""

from fastapi import Request

from services.interactive_queries.local import ReplicaStatus

# What an answer says of itself.
SERVED_BY = "Loyalty-Served-By"
ROLE = "Loyalty-Role"
PARTITION = "Loyalty-Partition"
OFFSET = "Loyalty-Offset"
LAG = "Loyalty-Lag"
SEQUENCE = "Loyalty-Sequence"
STALE = "Loyalty-Stale"

# What a forwarded request says: as what its receiver is asked, and how many seconds there are for the answer.
FORWARDED_TO = "Loyalty-Forwarded-To"
DEADLINE = "Loyalty-Deadline"

FRESHNESS = {
    SERVED_BY: "URL of the instance whose copy was read.",
    ROLE: "active or standby.",
    PARTITION: "The key's partition.",
    OFFSET: "The next changelog offset to apply: all records below it are in the answer.",
    LAG: "Changelog records between that and the end, as far as the instance knows.",
    SEQUENCE: "The entry's sequence; 0: there is no entry.",
    STALE: "true: from a standby, or from an owner that cannot prove that it still is one.",
}

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
"""What of a caller's request goes to another instance; all else stays here."""

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
"""What of its answer goes to the caller."""


RawHeaders = list[tuple[bytes, bytes]]
"""As ASGI sends them."""

_SERVED_BY, _ROLE, _PARTITION, _OFFSET, _LAG, _SEQUENCE, _STALE = (name.lower().encode() for name in FRESHNESS)


def freshness(served_by: str, standing: ReplicaStatus, sequence: int) -> RawHeaders:
    """The headers of an answer from a local copy."""
    return [
        (_SERVED_BY, served_by.encode()),
        (_ROLE, standing.role.encode()),
        (_PARTITION, b"%d" % standing.partition),
        (_OFFSET, b"%d" % standing.position),
        (_LAG, b"%d" % standing.lag),
        (_SEQUENCE, b"%d" % sequence),
        (_STALE, b"true" if standing.stale else b"false"),
    ]


def received(request: Request, name: str) -> str | None:
    """A header of a request; None for an absent one, of which Starlette's own look-up makes an exception."""
    wanted = name.lower().encode()
    for header, value in request.scope["headers"]:
        if header == wanted:
            return str(value, "latin-1")
    return None


def texts(raw_headers: RawHeaders) -> dict[str, str]:
    """The same as names and texts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers}


def seconds_left(request: Request) -> float:
    """Seconds until the deadline that a peer sent; infinity if there is none."""
    try:
        return max(0.0, float(received(request, DEADLINE) or "inf"))
    except ValueError:
        return float("inf")
