"""Entity tags of store entries, and conditional requests (RFC 9110, 8.8.3 and 13.1.2)."""

from collections.abc import Callable

from fastapi import Response

from api.http.lookup_routes import EncodedResponse
from services.state_stores.definition import VersionedValue

_CACHING = (b"cache-control", b"private, no-cache")
_JSON = (b"content-type", b"application/json")


def answer(entry: VersionedValue, body: Callable[[VersionedValue], bytes], if_none_match: str | None) -> Response:
    """The JSON body of an entry with its entity tag. The status is 304 if the client already has this version."""
    etag = etag_of(entry)
    if if_none_match is not None and matches(if_none_match, etag):
        return EncodedResponse(304, [(b"etag", etag.encode()), _CACHING])
    content = body(entry)
    length = (b"content-length", b"%d" % len(content))
    return EncodedResponse(200, [(b"etag", etag.encode()), _CACHING, length, _JSON], content)


def etag_of(entry: VersionedValue) -> str:
    """The opened time and the sequence. A new account of the same card counts from 1 again."""
    return f'"{entry.opened_time}.{entry.sequence}"' if entry.opened_time else f'"{entry.sequence}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match contains the tag, weak or strong, or is ``*``."""
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
