"""Entity tags of store entries, and conditional requests (RFC 9110, 8.8.3 and 13.1.2)."""

from collections.abc import Callable

from fastapi import Response

from api.http.headers import RawHeaders
from services.state_stores.definition import VersionedValue

_CACHING = (b"cache-control", b"private, no-cache")
_JSON = (b"content-type", b"application/json")


class _ReadyResponse(Response):
    """A response with headers that are already encoded. Starlette's encoding takes as long as the lookup."""

    def __init__(self, status_code: int, raw_headers: RawHeaders, body: bytes = b"") -> None:
        self.status_code = status_code
        self.body = body
        self.raw_headers = raw_headers
        self.background = None


def answer(entry: VersionedValue, body: Callable[[VersionedValue], bytes], if_none_match: str | None) -> Response:
    """The JSON body of an entry with its entity tag. The status is 304 if the client already has this version."""
    etag = etag_of(entry)
    if if_none_match is not None and matches(if_none_match, etag):
        return _ReadyResponse(304, [(b"etag", etag.encode()), _CACHING])
    content = body(entry)
    length = (b"content-length", b"%d" % len(content))
    return _ReadyResponse(200, [(b"etag", etag.encode()), _CACHING, length, _JSON], content)


def etag_of(entry: VersionedValue) -> str:
    """The opened time and the sequence. A new account of the same card counts from 1 again."""
    return f'"{entry.opened_time}.{entry.sequence}"' if entry.opened_time else f'"{entry.sequence}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match contains the tag, weak or strong, or is ``*``."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
