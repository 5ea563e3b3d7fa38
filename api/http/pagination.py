"""What queries on stores have in common: parameters, cursors, and the shape of their answers."""

import hashlib
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import orjson
from fastapi import Path, Query, Response
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from api.http import etag, problems
from services.domain.formats import to_milliseconds
from services.interactive_queries.local_queries import KeyRange
from services.state_stores.assignment import Role
from services.state_stores.definition import VersionedValue
from services.state_stores.store import StateStore

LONGEST_PAGE = 1_000
LONGEST_KEY = 512
MOST_KEYS = 1_000
MOST_WINDOWS = 1_440
"""A day of minutes."""

CACHING = {"Cache-Control": "private, no-cache"}

_SCOPE_BYTES = 6


def _utf8(text: str) -> str:
    # JSON can carry halves of surrogate pairs, which no key in UTF-8 has.
    text.encode()
    return text


Text = Annotated[str, AfterValidator(_utf8)]

StoreName = Annotated[
    str, Path(description="A store of the table; /v1/stores lists them.", examples=["customer-balances"])
]
Key = Annotated[str, Path(max_length=LONGEST_KEY, description="May contain slashes.", examples=["9265846829"])]
Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="Entries a page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=1_000, description="`next` of the page before; everything but limit as it was for that page."),
]
From = Annotated[str | None, Query(alias="from", max_length=LONGEST_KEY, description="First key, itself included.")]
To = Annotated[str | None, Query(max_length=LONGEST_KEY, description="Last key, itself included.")]
Prefix = Annotated[str, Query(max_length=LONGEST_KEY, description="Only keys that begin so.")]
FromTime = Annotated[
    AwareDatetime,
    Query(
        alias="from",
        description="First start of a window, itself included; RFC 3339 with a time zone, or milliseconds since 1970.",
    ),
]
ToTime = Annotated[
    AwareDatetime,
    Query(alias="to", description=f"Last start of a window, itself included; up to {MOST_WINDOWS} windows."),
]
Partitions = Annotated[
    list[int] | None,
    Query(
        alias="partition", max_length=1_000, description="Only these partitions; repeat it for several. Default: all."
    ),
]

_CAMEL_CASE = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Keys(BaseModel):
    """Which keys."""

    keys: list[Annotated[Text, Field(max_length=LONGEST_KEY)]] = Field(
        max_length=MOST_KEYS, description="A key given twice is answered once.", examples=[["9265846829", "9200000000"]]
    )


class StoreEntry(BaseModel):
    """A key of a store, and where it comes from."""

    key: str
    value: dict[str, Any] = Field(description="As the store keeps it, ready to send.")
    sequence: int = Field(description="Grows with every change of the key.")
    partition: int
    offset: int = Field(description="Of the changelog record that gave it.")


class PartitionRead(BaseModel):
    """Which copy of a partition was read, and how it stood when the query began."""

    model_config = _CAMEL_CASE

    partition: int
    served_by: str = Field(description="URL of the instance.")
    role: Role
    position: int = Field(description="The next changelog offset to apply: all records below it are in the answer.")
    lag: int = Field(ge=0, description="Changelog records between that and the end, as far as the instance knows.")
    stale: bool = Field(description="From a standby, or from an owner that cannot prove that it still is one.")


class Answer(BaseModel):
    """What every answer about several keys says of itself."""

    model_config = _CAMEL_CASE

    store: str
    partial: bool = Field(description="Whether partitions are missing that the query should have read.")
    missing_partitions: list[int]
    partitions: list[PartitionRead] = Field(description="Those that were read.")


class Entries(Answer):
    """Entries in the order of their keys (the order of UTF-8 bytes)."""

    entries: list[StoreEntry]


class FoundKeys(Entries):
    """The asked-for keys that exist."""

    unknown_keys: list[str] = Field(description="Those that do not; keys of missing partitions are in neither list.")


class EntryPage(Entries):
    """A page of entries."""

    next: str | None = Field(description="The cursor of the next page; null: this was the last.")


class Count(Answer):
    count: int = Field(ge=0, description="Keys in the partitions that were read.")


def entry_body(key: bytes, partition: int, entry: VersionedValue) -> dict[str, Any]:
    """A StoreEntry; the value's JSON goes in as it is stored."""
    return {
        "key": key.decode(),
        "value": orjson.Fragment(entry.body),
        "sequence": entry.sequence,
        "partition": partition,
        "offset": entry.offset,
    }


def json_response(body: dict[str, Any], **headers: str) -> Response:
    return Response(orjson.dumps(body), media_type="application/json", headers={**CACHING, **headers})


def renderer(store: StateStore, key: bytes, if_none_match: str | None) -> Callable[[VersionedValue | None], Response]:
    """Makes the answer about one key out of its entry; 304 where the caller's copy is the current one."""

    def render(entry: VersionedValue | None) -> Response:
        if entry is None:
            raise problems.UnknownKey
        return etag.answer(entry, body, if_none_match)

    def body(entry: VersionedValue) -> bytes:
        return orjson.dumps(entry_body(key, store.partition_of(key), entry))

    return render


def key_range(first: str | None, last: str | None, prefix: str) -> KeyRange:
    """The range of the parameters ``from``, ``to`` and ``prefix``."""
    return KeyRange.between((first or "").encode(), None if last is None else last.encode(), prefix.encode())


def cursor_after(key: bytes, store: str, keys: KeyRange) -> str:
    """A cursor for what follows a key.

    It holds the key and nothing of any instance, so it stays good while instances come and go and partitions move.
    """
    return urlsafe_b64encode(_scope(store, keys) + key).decode().rstrip("=")


def resume(cursor: str | None, store: str, keys: KeyRange) -> KeyRange:
    """What a cursor has left of the range; raises Problem for one that is not of this very query."""
    if cursor is None:
        return keys
    try:
        token = b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise _bad("cursor", "not a cursor") from error
    if token[:_SCOPE_BYTES] != _scope(store, keys):
        raise _bad("cursor", "not a cursor of this query: store, from, to and prefix must stay as they were")
    return keys.after(token[_SCOPE_BYTES:])


def milliseconds(first: datetime, last: datetime, window: timedelta) -> tuple[int, int]:
    """Both times in milliseconds since the epoch; raises Problem if they span too many windows."""
    if (last - first) // window >= MOST_WINDOWS:
        raise _bad("to", f"more than {MOST_WINDOWS} windows after from")
    return _milliseconds(first, round_up=True), _milliseconds(last, round_up=False)


def checked_partitions(numbers: Sequence[int] | None, store: StateStore) -> Sequence[int] | None:
    """The numbers; raises Problem for one that the store does not have."""
    count = store.definition.changelog.partitions
    for number in numbers or ():
        if not 0 <= number < count:
            raise _bad("partition", f"the store has partitions 0 to {count - 1}")
    return numbers


def _milliseconds(time: datetime, *, round_up: bool) -> int:
    milliseconds = to_milliseconds(time)
    return milliseconds + 1 if round_up and time.microsecond % 1_000 else milliseconds


def _scope(store: str, keys: KeyRange) -> bytes:
    return hashlib.sha256(repr((store, keys)).encode()).digest()[:_SCOPE_BYTES]


def _bad(parameter: str, reason: str) -> problems.Problem:
    return problems.InvalidParameters.in_query(parameter, reason)
