"""Pages of store entries: ranges of keys, and the cursors between two pages."""

import hashlib
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson

from api.http import problems
from api.http.parameters import MOST_WINDOWS
from api.security.caller import Caller
from api.security.permissions import visible
from services.domain.formats import to_milliseconds
from services.interactive_queries.local_queries import KeyRange
from services.state_stores.definition import VersionedValue
from services.state_stores.store import StateStore

_SCOPE_BYTES = 6
_REQUEST_HASH = b'"RequestHash":"'
"""Only a decision contains these bytes, because JSON escapes the quotes of a text."""


def entry_body(key: bytes, partition: int, entry: VersionedValue, caller: Caller) -> dict[str, Any]:
    """A ``StoreEntry`` as the caller may see it. Its value is the stored JSON, which is rarely parsed again."""
    body = visible(caller, entry.body)
    if _REQUEST_HASH in body:
        # Only the owner of a command compares hashes, in its own store.
        body = orjson.dumps({name: value for name, value in orjson.loads(body).items() if name != "RequestHash"})
    return {
        "key": key.decode(),
        "value": orjson.Fragment(body),
        "sequence": entry.sequence,
        "partition": partition,
        "offset": entry.offset,
    }


def key_range(first: str | None, last: str | None, prefix: str) -> KeyRange:
    """The range of the parameters ``from``, ``to`` and ``prefix``."""
    return KeyRange.between((first or "").encode(), None if last is None else last.encode(), prefix.encode())


def cursor_after(key: bytes, store: str, keys: KeyRange) -> str:
    """A cursor for the keys after this one.

    It contains no state of an instance. So it stays valid when instances start or stop, and when partitions move.
    """
    return urlsafe_b64encode(_scope(store, keys) + key).decode().rstrip("=")


def resume(cursor: str | None, store: str, keys: KeyRange) -> KeyRange:
    """The rest of the range after a cursor. Raises InvalidParameters for a cursor of another query."""
    if cursor is None:
        return keys
    try:
        token = b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise problems.InvalidParameters.in_query("cursor", "is not a cursor: use next of a response") from error
    if token[:_SCOPE_BYTES] != _scope(store, keys):
        reason = "is not from a response to this query: store, from, to and prefix must stay as they were"
        raise problems.InvalidParameters.in_query("cursor", reason)
    return keys.after(token[_SCOPE_BYTES:])


def milliseconds(first: datetime, last: datetime, window: timedelta) -> tuple[int, int]:
    """Both times in milliseconds since the epoch.

    Raises InvalidParameters if the first is after the last, or if they span too many windows.
    """
    if first > last:
        raise problems.InvalidParameters.in_query("from", "must not be after to")
    if (last - first) // window >= MOST_WINDOWS:
        raise problems.InvalidParameters.in_query("to", f"must be less than {MOST_WINDOWS} windows after from")
    # A window that starts before the first time, in the same millisecond, is not in the range.
    return to_milliseconds(first) + (first.microsecond % 1_000 > 0), to_milliseconds(last)


def checked_partitions(numbers: Sequence[int] | None, store: StateStore) -> Sequence[int] | None:
    """The numbers. Raises InvalidParameters for a partition that the store does not have."""
    count = store.partitions
    for number in numbers or ():
        if not 0 <= number < count:
            raise problems.InvalidParameters.in_query("partition", f"must be from 0 to {count - 1}")
    return numbers


def _scope(store: str, keys: KeyRange) -> bytes:
    return hashlib.sha256(repr((store, keys)).encode()).digest()[:_SCOPE_BYTES]
